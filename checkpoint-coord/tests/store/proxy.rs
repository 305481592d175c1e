// SPDX-License-Identifier: Apache-2.0
//! A network between a store and etcd that can be broken in several ways.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::server::own_address;

/// What the network does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It works.
    Pass,
    /// It works, but everything takes its time.
    Slow,
    /// It works, but little comes through at a time.
    Narrow,
    /// Connections stand, and nothing comes through.
    Hold,
    /// Connections are closed at once.
    Cut,
}

/// The network to one server.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    mode: watch::Sender<Mode>,
    connections: Arc<AtomicUsize>,
    answers: Arc<AtomicUsize>,
}

impl Proxy {
    pub(crate) async fn to(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((own_address(), 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mode = watch::Sender::new(Mode::Pass);
        let answers = Arc::new(AtomicUsize::new(0));
        let connections = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::clone(&connections);
        let path = Path {
            upstream,
            modes: mode.subscribe(),
            answers: Arc::clone(&answers),
        };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(forward(client, path.clone()));
            }
        });
        Self {
            address,
            mode,
            connections,
            answers,
        }
    }

    /// How many connections there have been.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// How often something came from the server.
    pub(crate) fn answers(&self) -> usize {
        self.answers.load(Ordering::SeqCst)
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

#[derive(Clone)]
struct Path {
    upstream: SocketAddr,
    modes: watch::Receiver<Mode>,
    answers: Arc<AtomicUsize>,
}

async fn forward(mut client: TcpStream, path: Path) {
    let mut cut = path.modes.clone();
    let both_ways = async {
        let Ok(mut server) = TcpStream::connect(path.upstream).await else {
            return;
        };
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let questions = AtomicUsize::new(0);
        tokio::select! {
            () = pump(from_client, to_server, path.modes.clone(), &questions) => {}
            () = pump(from_server, to_client, path.modes.clone(), &path.answers) => {}
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
    count: &AtomicUsize,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        let mut rest = &buffer[..length];
        while !rest.is_empty() {
            let passes = modes.wait_for(|mode| !matches!(mode, Mode::Hold | Mode::Cut));
            let Ok(mode) = passes.await.map(|mode| *mode) else {
                return;
            };
            let at_once = match mode {
                Mode::Narrow => rest.len().min(4 * 1024),
                _ => rest.len(),
            };
            if matches!(mode, Mode::Slow | Mode::Narrow) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let (now, later) = rest.split_at(at_once);
            if to.write_all(now).await.is_err() {
                return;
            }
            rest = later;
        }
        count.fetch_add(1, Ordering::SeqCst);
    }
}
