// SPDX-License-Identifier: Apache-2.0
//! A node's network: cut, lossy, slow.

use std::net::Ipv4Addr;

use super::{Active, Order};
use crate::failure::Failure;
use crate::scenario::{Direction, Injection};
use crate::world::World;
use crate::world::host::Filter;

/// A node whose network is not well.
#[derive(Debug)]
pub(super) struct BadNetwork {
    node: usize,
    how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Dropped,
    Unplugged,
    Shaped,
}

/// Does it.
pub(super) fn inject(
    injection: &Injection,
    order: Order<'_>,
    world: &mut World,
) -> Result<BadNetwork, Failure> {
    let node = order.node()?;
    let peers = peers(injection, node, world);
    let host = world.host(node)?;
    let how = match injection {
        Injection::Cut {
            direction, reset, ..
        } => {
            host.drop_packets(Filter {
                direction: *direction,
                peers: &peers,
                percent: None,
                reset: *reset,
            })?;
            How::Dropped
        }
        Injection::Loss { percent } => {
            host.drop_packets(Filter {
                direction: Direction::Incoming,
                peers: &[],
                percent: Some(*percent),
                reset: false,
            })?;
            How::Dropped
        }
        Injection::LinkDown => {
            host.link(false)?;
            How::Unplugged
        }
        Injection::Rate { kilobits } => {
            let rate = format!("{kilobits}kbit");
            host.shape(&["tbf", "rate", &rate, "burst", "16kb", "latency", "400ms"])?;
            How::Shaped
        }
        Injection::Delay { milliseconds } => {
            host.shape(&["netem", "delay", &format!("{milliseconds}ms")])?;
            How::Shaped
        }
        _ => {
            return Err(Failure::Unexpected(format!(
                "{} is nothing that a network does",
                injection.name()
            )));
        }
    };
    Ok(BadNetwork { node, how })
}

/// Whose packets are meant; empty for everybody's.
fn peers(injection: &Injection, node: usize, world: &World) -> Vec<Ipv4Addr> {
    let Injection::Cut {
        only_etcd,
        only_nodes,
        ..
    } = injection
    else {
        return Vec::new();
    };
    let mut peers = Vec::new();
    if *only_etcd {
        peers.extend(
            world
                .etcd
                .iter()
                .flat_map(crate::world::etcd::Etcd::addresses),
        );
    }
    if *only_nodes {
        let others = world.nodes.iter().enumerate();
        let others = others.filter(|(index, _)| *index != node);
        peers.extend(others.map(|(_, node)| node.address));
    }
    peers
}

impl Active for BadNetwork {
    fn evidence(&mut self, world: &mut World) -> Result<Option<String>, Failure> {
        let host = world.host(self.node)?;
        Ok(match self.how {
            How::Dropped => {
                let packets = host.dropped()?;
                (packets > 0).then(|| format!("{packets} packets met the rules"))
            }
            How::Unplugged => {
                (!host.has_carrier()?).then(|| "the interface has no carrier".to_owned())
            }
            How::Shaped => {
                let shown = host.shaped()?;
                let sent = shown.lines().find(|line| line.contains("Sent"));
                sent.filter(|line| !line.contains("Sent 0 bytes"))
                    .map(|line| line.trim().to_owned())
            }
        })
    }

    fn heal(&mut self, world: &mut World) -> Result<Option<String>, Failure> {
        let host = world.host(self.node)?;
        Ok(Some(match self.how {
            How::Dropped => {
                let packets = host.dropped()?;
                host.let_packets_through()?;
                format!("the rules are gone; {packets} packets had met them")
            }
            How::Unplugged => {
                host.link(true)?;
                "the cable is plugged in".to_owned()
            }
            How::Shaped => {
                host.unshape()?;
                "the queueing discipline is gone".to_owned()
            }
        }))
    }
}
