// SPDX-License-Identifier: Apache-2.0
//! Signals to the processes of a supervisor, and commands to it.

use steadfast_process::tree::Process;

use super::signal::Signalled;
use super::{Active, Done, Order};
use crate::failure::Failure;
use crate::scenario::Injection;
use crate::world::World;

/// A supervisor that was meddled with.
#[derive(Debug)]
pub(super) enum Meddled {
    Signalled(Signalled),
    Commanded(Done),
}

/// Does it.
pub(super) fn inject(
    injection: &Injection,
    order: Order<'_>,
    world: &mut World,
) -> Result<Meddled, Failure> {
    let index = order.node()?;
    if let Injection::Command { words } = injection {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = world.ask(index, &words)?;
        let first = said.lines().next().unwrap_or("no words");
        return Ok(Meddled::Commanded(Done {
            evidence: format!("`steadfast {}`: {first}", words.join(" ")),
        }));
    }
    let node = world
        .nodes
        .get_mut(index)
        .ok_or_else(|| Failure::Unexpected("there is no such node".to_owned()))?;
    let keeper = || {
        let pid = node.keeper().and_then(|pid| i32::try_from(pid).ok());
        pid.and_then(Process::read)
    };
    let (signal, processes) = match injection {
        Injection::Agent { signal } => (signal, vec![node.agent()]),
        Injection::Keeper { signal } => (signal, vec![keeper()]),
        Injection::Supervisor { signal } => (signal, vec![node.agent(), keeper()]),
        _ => {
            return Err(Failure::Unexpected(format!(
                "{} is nothing that a supervisor can meet",
                injection.name()
            )));
        }
    };
    let found: Vec<Process> = processes.into_iter().flatten().collect();
    let ends_it = !matches!(injection, Injection::Agent { .. })
        && *signal == crate::scenario::SignalName::Kill;
    let sent = Signalled::send(*signal, found)?;
    node.is_off |= ends_it;
    Ok(Meddled::Signalled(sent))
}

impl Active for Meddled {
    fn evidence(&mut self, world: &mut World) -> Result<Option<String>, Failure> {
        match self {
            Self::Signalled(signalled) => signalled.evidence(world),
            Self::Commanded(done) => done.evidence(world),
        }
    }

    fn heal(&mut self, world: &mut World) -> Result<Option<String>, Failure> {
        match self {
            Self::Signalled(signalled) => signalled.heal(world),
            Self::Commanded(done) => done.heal(world),
        }
    }
}
