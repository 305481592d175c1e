// SPDX-License-Identifier: Apache-2.0
//! A network between a node and a leader that can be broken in several ways.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the network does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// It works.
    Pass,
    /// Connections stand, and nothing comes through until it works again.
    Hold,
    /// Connections are closed at once.
    Cut,
}

/// The network to one leader.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    mode: watch::Sender<Mode>,
}

impl Proxy {
    pub(super) async fn to(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mode = watch::Sender::new(Mode::Pass);
        let modes = mode.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, upstream, modes.clone()));
            }
        });
        Self { address, mode }
    }

    pub(super) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn forward(mut client: TcpStream, upstream: SocketAddr, modes: watch::Receiver<Mode>) {
    let mut cut = modes.clone();
    let both_ways = async {
        let Ok(mut server) = TcpStream::connect(upstream).await else {
            return;
        };
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::select! {
            () = pump(from_client, to_server, modes.clone()) => {}
            () = pump(from_server, to_client, modes.clone()) => {}
        }
    };
    tokio::select! {
        () = both_ways => {}
        _ = cut.wait_for(|mode| *mode == Mode::Cut) => {}
    }
}

/// Ends when either side is closed, or when the test is over.
async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut modes: watch::Receiver<Mode>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        if modes.wait_for(|mode| *mode == Mode::Pass).await.is_err() {
            return;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
