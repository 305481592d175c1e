// SPDX-License-Identifier: Apache-2.0
//! The TCP connections of a process: to whom, and whether something is stuck in them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Descriptors that are looked at, bytes that are read of the kernel's table, and connections that are told of.
const MOST_DESCRIPTORS: usize = 8192;
const MOST_BYTES: u64 = 4 * 1024 * 1024;
const MOST_SOCKETS: usize = 256;

/// A TCP socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// This end.
    pub local: SocketAddr,
    /// The other end; port 0 for one that listens.
    pub remote: SocketAddr,
    /// The kernel's name of its state, such as `established`.
    pub state: String,
    /// Bytes that the other end has not acknowledged.
    pub unsent: u64,
    /// Bytes that the process has not read.
    pub unread: u64,
    /// How often the kernel has tried to send what is not acknowledged.
    pub retransmits: u64,
}

/// The TCP sockets that the process has open, below `proc_root`, which is `/proc` but in tests. Of thousands, not all; those
/// in which something is stuck come first.
pub fn sockets_of(proc_root: &Path, pid: u32) -> Vec<Socket> {
    let process = proc_root.join(pid.to_string());
    let open = open_inodes(&process);
    if open.is_empty() {
        return Vec::new();
    }
    let tables = ["net/tcp", "net/tcp6"].map(|name| read(&process.join(name)));
    let lines = tables.iter().flat_map(|table| table.lines());
    let mut sockets: Vec<Socket> = lines
        .filter_map(parse)
        .filter(|(inode, _)| open.contains(inode))
        .map(|(_, socket)| socket)
        .collect();
    sockets.sort_by_key(|socket| {
        let is_stuck = socket.unsent > 0 || socket.unread > 0;
        (!is_stuck, socket.state.clone(), socket.remote)
    });
    sockets.truncate(MOST_SOCKETS);
    sockets
}

fn open_inodes(process: &Path) -> BTreeSet<u64> {
    let entries = fs::read_dir(process.join("fd")).into_iter().flatten();
    let links = entries
        .flatten()
        .take(MOST_DESCRIPTORS)
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    links
        .filter_map(|link| {
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            inode.parse().ok()
        })
        .collect()
}

fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    // A table that cannot be read is as good as an empty one.
    let _read = File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A line of the kernel's table, with the socket's inode.
fn parse(line: &str) -> Option<(u64, Socket)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (unsent, unread) = fields.get(4)?.split_once(':')?;
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let socket = Socket {
        local: address(fields.get(1)?)?,
        remote: address(fields.get(2)?)?,
        state: state(fields.get(3)?).to_owned(),
        unsent: hexadecimal(unsent)?,
        unread: hexadecimal(unread)?,
        retransmits: hexadecimal(fields.get(6)?)?,
    };
    Some((fields.get(9)?.parse().ok()?, socket))
}

/// Addresses are written as words of four bytes in the machine's own order.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = host.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let host = match host.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            let bytes: [u8; 16] = words.try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(host, port))
}

fn state(number: &str) -> &'static str {
    match number {
        "01" => "established",
        "02" => "syn_sent",
        "03" => "syn_received",
        "04" => "fin_wait_1",
        "05" => "fin_wait_2",
        "06" => "time_wait",
        "07" => "closed",
        "08" => "close_wait",
        "09" => "last_ack",
        "0A" => "listen",
        "0B" => "closing",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn own_connections_are_found_and_what_is_stuck_in_them() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(port).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        client.write_all(b"unread").unwrap();
        // It is there as soon as the other end has it.
        accepted.peek(&mut [0; 6]).unwrap();
        let sockets = sockets_of(Path::new("/proc"), std::process::id());
        let own = |socket: &&Socket| socket.local == port;
        let listening = sockets
            .iter()
            .filter(own)
            .find(|socket| socket.state == "listen");
        assert!(listening.is_some(), "{sockets:?}");
        let unread = sockets
            .iter()
            .filter(own)
            .find(|socket| socket.unread == 6)
            .unwrap();
        assert_eq!(unread.state, "established");
        assert_eq!(unread.remote, client.local_addr().unwrap());
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        for line in [
            "",
            "sl local_address",
            "0: 0100007F:0016",
            "0: x:y z:w 01 a:b",
        ] {
            assert!(parse(line).is_none(), "{line}");
        }
        assert_eq!(
            address("0000000000000000FFFF00000100007F:0050")
                .unwrap()
                .port(),
            80
        );
        assert!(sockets_of(Path::new("/nonexistent"), 1).is_empty());
    }
}
