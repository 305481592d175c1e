// SPDX-License-Identifier: Apache-2.0
//! One connection to the leader's agent.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::AsyncBufReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::ANSWER_WITHIN;
use super::failure::StreamFailure;
use crate::peers::identity::{AgentEndpoint, PeerIdentity};
use crate::peers::{WINDOW, tls};

/// TLS and HTTP want a name. It is neither sent nor checked: the certificate is known.
const NAME: &str = "leader.invalid";
/// A leader whose host or agent has stopped is noticed within twice this.
const PING: Duration = Duration::from_secs(10);

/// Connects, and proves both ends to one another.
pub(in crate::peers) async fn dial(
    identity: &PeerIdentity,
    endpoint: &AgentEndpoint,
) -> Result<Channel, StreamFailure> {
    let connecting = timeout(ANSWER_WITHIN, connect(identity, endpoint));
    let stream = connecting
        .await
        .map_err(|_| StreamFailure::NoAnswer(ANSWER_WITHIN))??;
    // Used once: a stream that breaks is no business of the channel's.
    let mut stream = Some(TokioIo::new(stream));
    let connector = service_fn(move |_| {
        let stream = stream.take();
        async move { stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    Endpoint::from_static("http://leader.invalid")
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .keep_alive_while_idle(true)
        .buffer_size(1)
        .connect_with_connector(connector)
        .await
        .map_err(|error| StreamFailure::of_status(tonic::Status::from_error(Box::new(error))))
}

async fn connect(
    identity: &PeerIdentity,
    endpoint: &AgentEndpoint,
) -> Result<TlsStream<TcpStream>, StreamFailure> {
    let failed = |source| StreamFailure::Connect {
        address: endpoint.address.clone(),
        source,
    };
    let config = tls::client_config(identity, endpoint.certificate).map_err(StreamFailure::Tls)?;
    let name = ServerName::try_from(NAME).map_err(|error| failed(io::Error::other(error)))?;
    let stream = TcpStream::connect(&endpoint.address)
        .await
        .map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let handshake = |error| StreamFailure::of_handshake(error, &endpoint.address);
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(handshake)?;
    // The leader judges this node's certificate when the handshake is over for this end. In HTTP/2 a server speaks first,
    // so its verdict can be had before anything is sent.
    stream.fill_buf().await.map_err(handshake)?;
    Ok(stream)
}
