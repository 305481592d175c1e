// SPDX-License-Identifier: Apache-2.0
//! Ports for rank 0: new for each generation, and nobody else's until the worker binds them.
//!
//! The reservation is a socket that is bound but does not listen. The kernel then gives the port to nobody who asks for
//! any free one, while a worker that sets `SO_REUSEADDR` or `SO_REUSEPORT` (as torch's store, gRPC and Python's servers
//! do) can bind it and listen.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::OwnedFd;

use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// A port that is held for a worker.
#[derive(Debug)]
pub(super) struct Reservation {
    /// The port, never 0.
    pub(super) port: u16,
    /// Holds it as long as it is open.
    pub(super) socket: OwnedFd,
}

/// Reserves a port on all addresses of this node: `wanted`, or any free one.
pub(super) fn reserve(wanted: Option<u16>) -> io::Result<Reservation> {
    let port = wanted.unwrap_or(0);
    reserve_at(SocketAddr::V6(SocketAddrV6::new(
        Ipv6Addr::UNSPECIFIED,
        port,
        0,
        0,
    )))
    .or_else(|_without_ipv6| {
        reserve_at(SocketAddr::V4(SocketAddrV4::new(
            Ipv4Addr::UNSPECIFIED,
            port,
        )))
    })
}

fn reserve_at(address: SocketAddr) -> io::Result<Reservation> {
    let family = if address.is_ipv6() {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, false)?;
    }
    set_socket_reuseaddr(&socket, true)?;
    set_socket_reuseport(&socket, true)?;
    bind(&socket, &address)?;
    let bound = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok(Reservation {
        port: bound.port(),
        socket,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_reserved_port_is_given_to_nobody_but_can_be_bound_by_the_worker() {
        let reserved = reserve(None).unwrap();
        for _ in 0..200 {
            let other = TcpListener::bind("127.0.0.1:0").unwrap();
            assert_ne!(other.local_addr().unwrap().port(), reserved.port);
        }
        // The standard library sets SO_REUSEADDR, as the workers' libraries do.
        let worker = TcpListener::bind(("0.0.0.0", reserved.port)).unwrap();
        let client = TcpStream::connect(("127.0.0.1", reserved.port)).unwrap();
        let (_connection, peer) = worker.accept().unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
    }

    #[test]
    fn a_port_that_was_offered_earlier_can_be_reserved_again() {
        let port = reserve(None).unwrap().port;
        assert_eq!(reserve(Some(port)).unwrap().port, port);
    }
}
