// SPDX-License-Identifier: Apache-2.0
//! Workers that a cgroup holds back: too little memory or CPU time, or frozen.

use std::fs;

use super::order::{self, Ordered};
use super::{Active, Order};
use crate::failure::Failure;
use crate::scenario::Injection;
use crate::world::World;
use crate::world::cgroup::{Controller, Group};

/// What a worker may take beyond what it has.
const HEADROOM_BYTES: u64 = 48 * 1024 * 1024;

/// A worker in a cgroup of its own.
#[derive(Debug)]
pub(super) struct HeldBack {
    group: Group,
    pid: i32,
    how: How,
}

#[derive(Debug)]
enum How {
    Memory(Ordered),
    Cpu,
    Frozen,
}

/// Holds the worker back.
pub(super) fn inject(
    injection: &Injection,
    order: Order<'_>,
    world: &mut World,
) -> Result<HeldBack, Failure> {
    let process = order.process()?;
    let controller = match injection {
        Injection::OutOfMemory => Controller::Memory,
        Injection::CpuLimit { .. } => Controller::Cpu,
        _ => Controller::Freezer,
    };
    let root = world.layout.root.file_name().unwrap_or_default();
    let name = format!("{}-{}", root.to_string_lossy(), order.id.replace('/', "-"));
    let group = Group::new(controller, &name, &mut world.undo)?;
    let how = match injection {
        Injection::OutOfMemory => {
            group.limit_memory(resident_bytes(process.pid) + HEADROOM_BYTES)?;
            group.take_in(process.pid)?;
            How::Memory(order::allocate(order, world)?)
        }
        Injection::CpuLimit { percent } => {
            group.limit_cpu(*percent)?;
            group.take_in(process.pid)?;
            How::Cpu
        }
        _ => {
            group.take_in(process.pid)?;
            group.freeze(true)?;
            How::Frozen
        }
    };
    Ok(HeldBack {
        group,
        pid: process.pid,
        how,
    })
}

impl Active for HeldBack {
    fn evidence(&mut self, world: &mut World) -> Result<Option<String>, Failure> {
        Ok(match &mut self.how {
            How::Memory(ordered) => {
                let kills = self.group.memory_kills();
                let gone = ordered.evidence(world)?.is_some();
                (kills > 0 && gone).then(|| {
                    format!(
                        "{}: the cgroup counts {kills} kills for lack of memory",
                        self.pid
                    )
                })
            }
            How::Cpu => {
                let times = self.group.throttled();
                (times > 0).then(|| format!("{} was held back {times} times", self.pid))
            }
            How::Frozen => self
                .group
                .is_frozen()
                .then(|| format!("{}: the cgroup is FROZEN", self.pid)),
        })
    }

    fn heal(&mut self, _world: &mut World) -> Result<Option<String>, Failure> {
        if matches!(self.how, How::Frozen) {
            self.group.freeze(false)?;
        }
        self.group.remove()?;
        Ok(Some("the cgroup is gone".to_owned()))
    }
}

fn resident_bytes(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
