// SPDX-License-Identifier: Apache-2.0
//! Random bytes on every port on which a supervisor listens.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use steadfast_sim::Random;

use super::{Active, Done, Order};
use crate::failure::Failure;
use crate::world::World;

const PATIENCE: Duration = Duration::from_millis(500);
const BYTES: usize = 4096;
/// State of a listening socket in /proc/net/tcp.
const LISTENS: &str = "0A";

/// Sends it.
pub(super) fn inject(
    connections: u32,
    order: Order<'_>,
    world: &mut World,
) -> Result<impl Active + use<>, Failure> {
    let index = order.node()?;
    let node = world
        .nodes
        .get(index)
        .ok_or_else(|| Failure::Unexpected("there is no such node".to_owned()))?;
    let agent = node
        .agent()
        .ok_or_else(|| Failure::Unexpected(format!("{} has no agent", node.name)))?;
    let ports = listening(agent.pid);
    if ports.is_empty() {
        return Err(Failure::Unexpected(format!(
            "nothing listens on {}",
            node.name
        )));
    }
    let network = PathBuf::from(format!("/proc/{}/ns/net", agent.pid));
    let (address, seed) = (node.address, world.random.draw());
    let wanted = ports.clone();
    // A thread of its own: it enters the node's network, and never comes back.
    let sent = std::thread::spawn(move || {
        let network = File::open(network).map_err(|error| error.to_string())?;
        if let Err(error) = setns(network, CloneFlags::CLONE_NEWNET)
            && error != nix::errno::Errno::EPERM
        {
            return Err(error.to_string());
        }
        Ok(send(&wanted, address, connections, seed))
    });
    let bytes = sent
        .join()
        .map_err(|_| Failure::Unexpected("the thread that sends garbage has failed".to_owned()))?
        .map_err(Failure::Unexpected)?;
    if bytes == 0 {
        return Err(Failure::Unexpected(format!(
            "no port of {ports:?} took a byte"
        )));
    }
    Ok(Done {
        evidence: format!("{bytes} random bytes went to the ports {ports:?}"),
    })
}

fn send(ports: &BTreeSet<u16>, address: Ipv4Addr, connections: u32, seed: u64) -> usize {
    let mut random = Random::new(seed);
    let mut sent = 0;
    for port in ports {
        for _ in 0..connections {
            let noise: Vec<u8> = (0..BYTES / 8)
                .flat_map(|_| random.draw().to_le_bytes())
                .collect();
            let target = SocketAddr::new(IpAddr::V4(address), *port);
            let Ok(mut stream) = TcpStream::connect_timeout(&target, PATIENCE) else {
                continue;
            };
            // The other end may hang up in the middle, which is right.
            if stream.set_write_timeout(Some(PATIENCE)).is_ok() {
                sent += stream.write(&noise).unwrap_or(0);
            }
        }
    }
    sent
}

/// The TCP ports on which a process listens.
fn listening(pid: i32) -> BTreeSet<u16> {
    let sockets: BTreeSet<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter_map(|target| {
            let target = target.to_string_lossy().into_owned();
            Some(
                target
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .to_owned(),
            )
        })
        .collect();
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/{pid}/net/{name}")));
    let lines: Vec<String> = tables
        .into_iter()
        .flatten()
        .flat_map(|table| table.lines().skip(1).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    lines
        .iter()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let is_ours = sockets.contains(*fields.get(9)?);
            let (_, port) = fields.get(1)?.rsplit_once(':')?;
            let port = u16::from_str_radix(port, 16).ok()?;
            (is_ours && fields.get(3) == Some(&LISTENS)).then_some(port)
        })
        .collect()
}
