// SPDX-License-Identifier: Apache-2.0
//! What a worker does to itself, upon an order to the hand that it has inside (`world/sitecustomize.py`).

use std::fs;

use serde_json::{Value, json};
use steadfast_process::tree::Process;

use super::{Active, Order};
use crate::bench::launch::write;
use crate::failure::Failure;
use crate::scenario::{Injection, LeftBehind, SaveMoment};
use crate::world::World;

/// An order to a worker.
#[derive(Debug)]
pub(super) struct Ordered {
    id: String,
    process: Process,
    effect: Effect,
}

/// What shows that an order was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// The process is gone.
    Death,
    /// It says that it has begun.
    Entered,
    /// It has read the order, and what it does is up to its program.
    Read,
}

/// Gives the order.
pub(super) fn inject(
    injection: &Injection,
    order: Order<'_>,
    world: &mut World,
) -> Result<Ordered, Failure> {
    let (does, fields, effect) = match injection {
        Injection::Exit { code, says } => {
            ("exit", json!({ "code": code, "says": says }), Effect::Death)
        }
        Injection::Raise { message } => ("raise", json!({ "message": message }), Effect::Read),
        Injection::Segfault => ("segfault", json!({}), Effect::Death),
        Injection::Hang => ("hang", json!({}), Effect::Entered),
        Injection::Spin => ("spin", json!({}), Effect::Entered),
        Injection::HoldLock => ("hold-lock", json!({}), Effect::Entered),
        Injection::Slow { seconds } => ("slow", json!({ "seconds": seconds }), Effect::Entered),
        Injection::NoFiles => ("no-files", json!({}), Effect::Entered),
        Injection::DieInSave { moment } => {
            let moment = match moment {
                SaveMoment::BeforeFsync => "before-fsync",
                SaveMoment::BeforeRename => "before-rename",
                SaveMoment::AfterRename => "after-rename",
            };
            ("die-in-save", json!({ "moment": moment }), Effect::Death)
        }
        Injection::LeaveBehind { how } => {
            let how = match how {
                LeftBehind::Setsid => "setsid",
                LeftBehind::DoubleFork => "double-fork",
            };
            ("leave-behind", json!({ "how": how }), Effect::Entered)
        }
        _ => {
            return Err(Failure::Unexpected(format!(
                "no worker can carry out {}",
                injection.name()
            )));
        }
    };
    give(does, fields, effect, order, world)
}

/// Orders a worker to take more and more memory.
pub(super) fn allocate(order: Order<'_>, world: &mut World) -> Result<Ordered, Failure> {
    give("allocate", json!({}), Effect::Death, order, world)
}

fn give(
    does: &str,
    mut fields: Value,
    effect: Effect,
    order: Order<'_>,
    world: &mut World,
) -> Result<Ordered, Failure> {
    let process = order.process()?;
    let rank = order
        .victim
        .rank
        .ok_or_else(|| Failure::Unexpected(format!("{} hits no rank", order.id)))?;
    if let Some(fields) = fields.as_object_mut() {
        fields.insert("do".to_owned(), does.into());
        fields.insert("id".to_owned(), order.id.into());
        fields.insert("pid".to_owned(), process.pid.into());
    }
    // It must never be read half-written.
    let path = world.layout.orders(rank);
    let new = path.with_extension("new");
    write(&new, &fields.to_string())?;
    fs::rename(&new, &path).map_err(|error| Failure::write(path.display(), error))?;
    Ok(Ordered {
        id: order.id.to_owned(),
        process,
        effect,
    })
}

impl Active for Ordered {
    fn evidence(&mut self, world: &mut World) -> Result<Option<String>, Failure> {
        let Some(_) = world.life.was_read(&self.id) else {
            return Ok(None);
        };
        let pid = self.process.pid;
        let is_gone = Process::read(pid)
            .is_none_or(|now| now.start_ticks != self.process.start_ticks || now.is_dead());
        Ok(match self.effect {
            Effect::Death => is_gone.then(|| format!("{pid} has read the order, and is dead")),
            Effect::Entered => world
                .life
                .has_entered(&self.id)
                .map(|_| format!("{pid} says that it has begun")),
            Effect::Read => Some(format!("{pid} has read the order")),
        })
    }

    fn heal(&mut self, _world: &mut World) -> Result<Option<String>, Failure> {
        // What a worker did to itself ends with it.
        Ok(None)
    }
}
