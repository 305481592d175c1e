// SPDX-License-Identifier: Apache-2.0
//! Breaking things: each way in a file of its own, with evidence that it has really happened.

mod checkpoint;
mod disk;
mod etcd;
mod garbage;
mod gpu;
mod held_back;
mod network;
mod order;
mod power;
mod sick_disk;
mod signal;
mod supervisor;

use std::fmt::Debug;

use crate::failure::Failure;
use crate::scenario::Injection;
use crate::world::World;

pub(crate) use crate::world::Victim;

/// A fault that has been injected.
pub(crate) trait Active: Debug {
    /// The evidence that it has had its effect, in words; asked again and again until there is some.
    fn evidence(&mut self, world: &mut World) -> Result<Option<String>, Failure>;

    /// Undoes it. Gives what was done, in words; `None` if there is nothing to undo.
    fn heal(&mut self, world: &mut World) -> Result<Option<String>, Failure>;
}

/// What a fault is injected with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order<'a> {
    /// Its own name among all of the run, and how manieth time it is.
    pub(crate) id: &'a str,
    /// Whom it hits.
    pub(crate) victim: &'a Victim,
}

/// Does it.
pub(crate) fn inject(
    injection: &Injection,
    order: Order<'_>,
    world: &mut World,
) -> Result<Box<dyn Active>, Failure> {
    Ok(match injection {
        Injection::Signal { signal } => Box::new(signal::inject(*signal, order)?),
        Injection::Exit { .. }
        | Injection::Raise { .. }
        | Injection::Segfault
        | Injection::Hang
        | Injection::Spin
        | Injection::HoldLock
        | Injection::Slow { .. }
        | Injection::NoFiles
        | Injection::DieInSave { .. }
        | Injection::LeaveBehind { .. } => Box::new(order::inject(injection, order, world)?),
        Injection::CpuLimit { .. } | Injection::OutOfMemory | Injection::Freeze => {
            Box::new(held_back::inject(injection, order, world)?)
        }
        Injection::Agent { .. }
        | Injection::Keeper { .. }
        | Injection::Supervisor { .. }
        | Injection::Command { .. } => Box::new(supervisor::inject(injection, order, world)?),
        Injection::PowerOff | Injection::Reboot | Injection::PauseNode => {
            Box::new(power::inject(injection, order, world)?)
        }
        Injection::Cut { .. }
        | Injection::LinkDown
        | Injection::Loss { .. }
        | Injection::Rate { .. }
        | Injection::Delay { .. } => Box::new(network::inject(injection, order, world)?),
        Injection::Garbage { connections } => {
            Box::new(garbage::inject(*connections, order, world)?)
        }
        Injection::Etcd { .. }
        | Injection::EtcdWipe
        | Injection::EtcdFull
        | Injection::EtcdCompact
        | Injection::LeaseRevoked => Box::new(etcd::inject(injection, order, world)?),
        Injection::DiskFull { .. }
        | Injection::InodesFull { .. }
        | Injection::ReadOnly { .. }
        | Injection::FsFreeze { .. } => Box::new(disk::inject(injection, world)?),
        Injection::DiskError { .. }
        | Injection::ShortWrites { .. }
        | Injection::SlowDisk { .. } => Box::new(sick_disk::inject(injection, world)?),
        Injection::DamageCheckpoint { how } => Box::new(checkpoint::inject(*how, world)?),
        Injection::Xid { .. }
        | Injection::KernelLog { .. }
        | Injection::Gpu { .. }
        | Injection::NvmlHang { .. } => Box::new(gpu::inject(injection, order, world)?),
    })
}

/// A fault that has nothing to undo and whose evidence was there at once.
#[derive(Debug)]
struct Done {
    evidence: String,
}

impl Active for Done {
    fn evidence(&mut self, _world: &mut World) -> Result<Option<String>, Failure> {
        Ok(Some(self.evidence.clone()))
    }

    fn heal(&mut self, _world: &mut World) -> Result<Option<String>, Failure> {
        Ok(None)
    }
}

impl Order<'_> {
    /// The node that is hit.
    fn node(&self) -> Result<usize, Failure> {
        self.victim
            .node
            .ok_or_else(|| Failure::Unexpected(format!("{} hits no node", self.id)))
    }

    /// The training process that is hit.
    fn process(&self) -> Result<steadfast_process::tree::Process, Failure> {
        self.victim
            .pid
            .and_then(steadfast_process::tree::Process::read)
            .ok_or_else(|| Failure::Unexpected(format!("{}: the worker has just ended", self.id)))
    }
}
