// SPDX-License-Identifier: Apache-2.0
//! What can happen to etcd.

use rustix::process::Signal;
use steadfast_process::tree::Process;

use super::signal::system_signal;
use super::{Active, Order};
use crate::failure::Failure;
use crate::scenario::{EtcdMembers, Injection, SignalName};
use crate::world::World;
use crate::world::etcd::Etcd;

/// An etcd that is not well.
#[derive(Debug)]
pub(super) enum SickEtcd {
    Killed(String),
    Stopped { members: Vec<usize>, pids: Vec<u32> },
    Full(String),
    Told(String),
}

/// Does it.
pub(super) fn inject(
    injection: &Injection,
    order: Order<'_>,
    world: &mut World,
) -> Result<SickEtcd, Failure> {
    if matches!(injection, Injection::LeaseRevoked) {
        let index = order.node()?;
        let name = world
            .nodes
            .get(index)
            .map(|node| node.name.clone())
            .unwrap_or_default();
        let lease = etcd(world)?.revoke_lease_of(&format!("/steadfast/chaos/members/{name}"))?;
        return Ok(SickEtcd::Told(format!(
            "lease {lease} of {name} was revoked"
        )));
    }
    let etcd = etcd(world)?;
    Ok(match injection {
        Injection::Etcd { signal, members } => hit(etcd, *signal, *members)?,
        Injection::EtcdWipe => {
            let leader = etcd.leader()?;
            let other = (0..etcd.len())
                .find(|index| *index != leader)
                .unwrap_or(leader);
            SickEtcd::Told(etcd.wipe(other)?)
        }
        Injection::EtcdFull => SickEtcd::Full(etcd.fill()?),
        _ => SickEtcd::Told(format!("compacted at revision {}", etcd.compact()?)),
    })
}

fn hit(etcd: &mut Etcd, signal: SignalName, which: EtcdMembers) -> Result<SickEtcd, Failure> {
    let all = 0..etcd.len();
    let members: Vec<usize> = match which {
        EtcdMembers::All => all.collect(),
        EtcdMembers::Leader => vec![etcd.leader()?],
        EtcdMembers::Follower => {
            let leader = etcd.leader()?;
            all.filter(|index| *index != leader).take(1).collect()
        }
        EtcdMembers::Majority => {
            // The leader among them, so that an election is tried, and fails.
            let leader = etcd.leader()?;
            let others = all.filter(|index| *index != leader);
            let most = etcd.len() / 2 + 1;
            std::iter::once(leader).chain(others).take(most).collect()
        }
    };
    let names: Vec<&str> = members.iter().map(|index| etcd.name(*index)).collect();
    let names = names.join(", ");
    if names.is_empty() {
        return Err(Failure::Unexpected("etcd has no such member".to_owned()));
    }
    let pids: Vec<u32> = members
        .iter()
        .filter_map(|index| etcd.pid(*index))
        .collect();
    let signal = Signal::from_named_raw(system_signal(signal) as i32)
        .ok_or_else(|| Failure::Unexpected("there is no such signal".to_owned()))?;
    for member in &members {
        etcd.signal(*member, signal);
    }
    if signal == Signal::KILL {
        return Ok(SickEtcd::Killed(names));
    }
    Ok(SickEtcd::Stopped { members, pids })
}

fn etcd(world: &mut World) -> Result<&mut Etcd, Failure> {
    world
        .etcd
        .as_mut()
        .ok_or_else(|| Failure::Unexpected("there is no etcd".to_owned()))
}

impl Active for SickEtcd {
    fn evidence(&mut self, _world: &mut World) -> Result<Option<String>, Failure> {
        Ok(match self {
            // They were waited for.
            Self::Killed(names) => Some(format!("{names}: dead")),
            Self::Stopped { pids, .. } => {
                let state = |pid: &u32| Some(Process::read(i32::try_from(*pid).ok()?)?.state);
                let all = pids.iter().all(|pid| state(pid) == Some('T'));
                (all && !pids.is_empty()).then(|| format!("{pids:?}: state T"))
            }
            Self::Full(alarm) => Some(alarm.clone()),
            Self::Told(words) => Some(words.clone()),
        })
    }

    fn heal(&mut self, world: &mut World) -> Result<Option<String>, Failure> {
        let etcd = etcd(world)?;
        Ok(Some(match self {
            Self::Killed(names) => {
                etcd.start_again()?;
                format!("{names}: started again")
            }
            Self::Stopped { members, .. } => {
                for member in members.iter() {
                    etcd.signal(*member, Signal::CONT);
                }
                "SIGCONT".to_owned()
            }
            Self::Full(_) => {
                etcd.empty()?;
                "emptied, and the alarm is off".to_owned()
            }
            Self::Told(_) => return Ok(None),
        }))
    }
}
