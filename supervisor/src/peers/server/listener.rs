// SPDX-License-Identifier: Apache-2.0
//! Where a server listens.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket};

/// Thousands of nodes connect within the same second when the leader changes. The kernel takes less if it allows less.
const BACKLOG: u32 = 4096;

/// Why an agent cannot listen to others.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    /// The name has no address.
    #[error("failed to find the address of {host}, under which other nodes are to reach this one")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No port can be had.
    #[error("failed to listen for other nodes at {host}")]
    Listen {
        /// The name or address.
        host: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The TLS library refuses.
    #[error("failed to prepare encryption for the talk between agents")]
    Tls(#[source] rustls::Error),
}

/// A listening socket, and how others reach it.
pub(super) async fn bind(host: &str) -> Result<(TcpListener, String), BindError> {
    allow_many_connections();
    let unresolved = |source| BindError::Resolve {
        host: host.to_owned(),
        source,
    };
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, 0))
        .await
        .map_err(unresolved)?
        .collect();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    // An address that other nodes know, but this host does not (behind a translation), leaves all interfaces.
    let anywhere = SocketAddr::from((IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0));
    for address in addresses.into_iter().chain([anywhere]) {
        match listen(address) {
            Ok((listener, port)) => return Ok((listener, with_port(host, port))),
            Err(error) => failure = error,
        }
    }
    Err(BindError::Listen {
        host: host.to_owned(),
        source: failure,
    })
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, u16)> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

fn with_port(host: &str, port: u16) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(_) => format!("[{host}]:{port}"),
        Err(_) => format!("{host}:{port}"),
    }
}

/// Each stream is an open file. Workers are children of the keeper, so the limit that they see stays what it was.
fn allow_many_connections() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
        } else {
            Ok(())
        }
    });
    if let Err(error) = raised {
        tracing::debug!(%error, "The limit of open files stays as it is.");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_and_addresses_get_a_port() {
        let (listener, address) = bind("127.0.0.1").await.unwrap();
        assert_eq!(address, listener.local_addr().unwrap().to_string());
        let (listener, address) = bind("localhost").await.unwrap();
        assert_eq!(
            address,
            format!("localhost:{}", listener.local_addr().unwrap().port())
        );
        assert_eq!(with_port("2001:db8::7", 80), "[2001:db8::7]:80");
    }

    #[tokio::test]
    async fn an_address_of_somebody_else_leaves_all_interfaces() {
        // A block that is reserved for documentation.
        let (listener, address) = bind("192.0.2.1").await.unwrap();
        let local = listener.local_addr().unwrap();
        assert!(local.ip().is_unspecified(), "{local}");
        assert_eq!(address, format!("192.0.2.1:{}", local.port()));
    }

    #[tokio::test]
    async fn a_name_without_address_is_an_error() {
        let error = bind("does-not-exist.invalid").await.unwrap_err();
        assert!(matches!(error, BindError::Resolve { .. }), "{error}");
    }
}
