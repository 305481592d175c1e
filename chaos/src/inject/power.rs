// SPDX-License-Identifier: Apache-2.0
//! Nodes that lose their power, are started again, or stand still.

use nix::sys::signal::Signal;

use super::{Active, Order};
use crate::failure::Failure;
use crate::scenario::Injection;
use crate::world::World;

/// A node that is off, or stands still.
#[derive(Debug)]
pub(super) struct Powerless {
    node: usize,
    how: How,
    had_host: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Off,
    Reboots,
    Paused,
}

/// Does it.
pub(super) fn inject(
    injection: &Injection,
    order: Order<'_>,
    world: &mut World,
) -> Result<Powerless, Failure> {
    let index = order.node()?;
    let how = match injection {
        Injection::PowerOff => How::Off,
        Injection::Reboot => How::Reboots,
        _ => How::Paused,
    };
    let mut had_host = false;
    if how != How::Paused
        && let Ok(host) = world.host(index)
    {
        // First the cable, so that no connection is closed in good order.
        host.link(false)?;
        had_host = true;
    }
    let node = world
        .nodes
        .get_mut(index)
        .ok_or_else(|| Failure::Unexpected("there is no such node".to_owned()))?;
    node.is_off = how != How::Paused;
    let signal = if how == How::Paused {
        Signal::SIGSTOP
    } else {
        Signal::SIGKILL
    };
    if node.signal_all(signal) == 0 {
        return Err(Failure::Unexpected(format!(
            "nothing runs on {}",
            node.name
        )));
    }
    // Processes that were being started meanwhile.
    node.signal_all(signal);
    Ok(Powerless {
        node: index,
        how,
        had_host,
    })
}

impl Active for Powerless {
    fn evidence(&mut self, world: &mut World) -> Result<Option<String>, Failure> {
        let Some(node) = world.nodes.get(self.node) else {
            return Ok(None);
        };
        let living = node.processes();
        let mut living = living.iter().filter(|process| !process.is_dead());
        Ok(match self.how {
            How::Paused => living
                .all(|process| process.state == 'T')
                .then(|| format!("all processes of {} are in state T", node.name)),
            How::Off | How::Reboots => {
                if living.next().is_some() {
                    // One that was born while the others were being killed.
                    node.signal_all(Signal::SIGKILL);
                    return Ok(None);
                }
                (!node.is_running()).then(|| format!("no process of {} is left", node.name))
            }
        })
    }

    fn heal(&mut self, world: &mut World) -> Result<Option<String>, Failure> {
        if self.how == How::Paused {
            let node = world.nodes.get(self.node);
            let count = node.map_or(0, |node| node.signal_all(Signal::SIGCONT));
            return Ok(Some(format!("SIGCONT to {count} processes")));
        }
        if self.had_host {
            world.host(self.node)?.link(true)?;
        }
        if self.how == How::Off {
            return Ok(None);
        }
        world.start_node(self.node)?;
        Ok(Some(
            "the node was started again, with another boot id".to_owned(),
        ))
    }
}
