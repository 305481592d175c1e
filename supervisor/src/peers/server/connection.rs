// SPDX-License-Identifier: Apache-2.0
//! An encrypted connection whose other end is a known node, and which can be ended from outside.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use steadfast_core::NodeName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use crate::peers::Fingerprint;

/// Who is at the other end, as its certificate says.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) node: NodeName,
    pub(super) certificate: Fingerprint,
    /// Cancelled to cut the connection.
    pub(super) cut: CancellationToken,
    /// Cancelled when the node has begun to talk, or is gone.
    pub(super) began: CancellationToken,
}

/// The connection itself.
pub(super) struct Connection {
    stream: TlsStream<TcpStream>,
    caller: Caller,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    /// One of the connections that a server may have.
    _room: OwnedSemaphorePermit,
}

impl Connection {
    pub(super) fn new(
        stream: TlsStream<TcpStream>,
        caller: Caller,
        room: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            stream,
            cut: Box::pin(caller.cut.clone().cancelled_owned()),
            caller,
            _room: room,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.caller.began.cancel();
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // HTTP/2 always reads, so this is always looked at.
        if self.cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
