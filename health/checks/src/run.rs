// SPDX-License-Identifier: Apache-2.0
//! Making all checks at once, and waiting for none of them longer than it may take.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::checks::{command, gpu_driver};
use crate::context::Context;
use crate::gpus::GpuSource;
use crate::memory::Memory;
use crate::outcome::Outcome;
use crate::plan::{Item, Plan};
use crate::report::{CheckResult, Report};
use crate::units::show_duration;

/// What is left of the whole time when the last check must have ended.
const MARGIN: Duration = Duration::from_millis(500);
/// How much longer a check may take than the driver may take to answer.
const AFTER_GPUS: Duration = Duration::from_secs(1);

/// What all threads of a run share.
struct Shared {
    plan: Plan,
    memory: Memory,
    gpus: GpuSource,
}

/// A check that was begun.
struct Running {
    item: Item,
    begun: Instant,
    until: Instant,
    /// How long it may take, as it was configured.
    deadline: Duration,
    result: Option<(Outcome, Duration)>,
}

/// What a thread says at its end: the place of its check, what it found, and how long that took.
type Message = (usize, Outcome, Duration);

impl Plan {
    /// Makes the checks, and returns when each has ended or used up its time.
    ///
    /// A check that takes longer is left behind, and counts as broken.
    pub fn run(self) -> Report {
        let begun = Instant::now();
        let until = begun + self.profile.limit().saturating_sub(MARGIN);
        let mut notes = Vec::new();
        let memory = match &self.node.state {
            Some(file) => {
                let (memory, said) = Memory::read(file);
                notes.extend(said);
                memory
            }
            None => Memory::default(),
        };
        let items = self.items();
        let shared = Arc::new(Shared {
            plan: self,
            memory,
            gpus: GpuSource::default(),
        });
        let (sender, receiver) = channel();
        ask_for_gpus(&shared, &items, begun, until);
        let mut running: Vec<Running> = Vec::new();
        for item in items {
            let deadline = shared.deadline(&item);
            let check = Running {
                begun: Instant::now(),
                until: (begun + deadline).min(until),
                deadline,
                result: None,
                item,
            };
            running.push(begin(&shared, running.len(), check, &sender));
        }
        drop(sender);
        collect(&mut running, &receiver);
        shared.report(running, notes, begun)
    }
}

/// Starts a check on a thread of its own.
fn begin(
    shared: &Arc<Shared>,
    place: usize,
    mut check: Running,
    sender: &Sender<Message>,
) -> Running {
    let (own, item, until) = (Arc::clone(shared), check.item.clone(), check.until);
    let sender = sender.clone();
    let started = std::thread::Builder::new()
        .name(format!("check-{}", check.item.name()))
        .spawn(move || {
            let begun = Instant::now();
            let looked = catch_unwind(AssertUnwindSafe(|| own.look(&item, until)));
            let outcome = looked.unwrap_or_else(|_| {
                Outcome::broken("it panicked: this is a bug, please report it")
            });
            // Nobody waits any more for a check that took too long.
            let _unheard = sender.send((place, outcome, begun.elapsed()));
        });
    if let Err(error) = started {
        let outcome = Outcome::broken(format!("no thread can be started: {error}"));
        check.result = Some((outcome, Duration::ZERO));
    }
    check
}

/// Has the driver asked, if any check wants to know.
fn ask_for_gpus(shared: &Arc<Shared>, items: &[Item], begun: Instant, until: Instant) {
    if !items.iter().any(Item::needs_gpus) {
        return;
    }
    let left = until
        .saturating_duration_since(begun)
        .saturating_sub(MARGIN);
    let patience = shared.patience().min(left);
    let own = Arc::clone(shared);
    let started = std::thread::Builder::new()
        .name("gpus".to_owned())
        .spawn(move || own.gpus.ask(&own.plan.node, patience));
    // Without that thread the checks wait in vain, and say so.
    drop(started);
}

/// Waits until every check has ended or used up its time.
fn collect(running: &mut [Running], receiver: &Receiver<Message>) {
    loop {
        let now = Instant::now();
        let waiting = running
            .iter()
            .filter(|check| check.result.is_none() && check.until > now);
        let Some(next) = waiting.map(|check| check.until).min() else {
            return;
        };
        match receiver.recv_timeout(next.saturating_duration_since(now)) {
            Ok((place, outcome, took)) => {
                if let Some(check) = running.get_mut(place) {
                    check.result = Some((outcome, took));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Shared {
    /// How long the driver may take to answer.
    fn patience(&self) -> Duration {
        let settings = &self.plan.settings;
        let patience = settings.number(gpu_driver::SPEC.name, &gpu_driver::ANSWER_WITHIN);
        patience.map_or(gpu_driver::SPEC.deadline, Duration::from_millis)
    }

    fn deadline(&self, item: &Item) -> Duration {
        if let Some(deadline) = self.plan.common(item).deadline {
            return deadline;
        }
        if item.needs_gpus() {
            return item.deadline().max(self.patience() + AFTER_GPUS);
        }
        item.deadline()
    }

    fn look(&self, item: &Item, until: Instant) -> Outcome {
        match item {
            Item::BuiltIn(spec) => (spec.look)(&Context {
                spec,
                plan: &self.plan,
                gpus: &self.gpus,
                remembered: self.memory.checks.get(spec.name),
                until,
            }),
            Item::Command(own) => command::look(&*self.plan.node.outside, &own.words, until),
        }
    }

    fn report(&self, running: Vec<Running>, mut notes: Vec<String>, begun: Instant) -> Report {
        let mut memories: BTreeMap<String, Value> = BTreeMap::new();
        let mut results = Vec::new();
        for check in running {
            let (mut outcome, took) = check.result.unwrap_or_else(|| {
                let allowed = check.deadline.min(self.plan.profile.limit());
                let text = format!("it did not end within {}", show_duration(allowed));
                (Outcome::broken(text), check.begun.elapsed())
            });
            if let Some(memory) = outcome.memory.take() {
                memories.insert(check.item.name().to_owned(), memory);
            }
            let severity = self.plan.common(&check.item).severity;
            let name = check.item.name().to_owned();
            results.push(CheckResult::new(name, outcome, severity, took));
        }
        if let Some(file) = self
            .plan
            .node
            .state
            .as_ref()
            .filter(|_| !memories.is_empty())
            && let Err(error) = Memory::write(file, memories)
        {
            notes.push(format!(
                "rates and changes cannot be told next time: cannot write {}: {error}",
                file.display()
            ));
        }
        Report {
            profile: self.plan.profile,
            node: self.plan.node.name.clone(),
            results,
            notes,
            took: begun.elapsed(),
        }
    }
}

#[cfg(test)]
mod tests;
