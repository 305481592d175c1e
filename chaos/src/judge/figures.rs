// SPDX-License-Identifier: Apache-2.0
//! Times and counts of a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::lives::Worker;
use super::load::History;
use crate::engine::seconds;
use crate::history::{FaultEvent, FaultNote};

/// Times and counts of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Seconds from the start of the supervisors to the end of all.
    pub(crate) seconds: f64,
    /// Generations that have had workers.
    pub(crate) generations: u64,
    /// The highest step.
    pub(crate) best_step: u64,
    /// Steps that were made, those that had to be made again counted as often.
    pub(crate) steps_made: u64,
    /// Every time the training stood still for another generation.
    pub(crate) outages: Vec<Outage>,
}

/// A time without training between two generations that made steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outage {
    /// The newest fault before it; none if nothing had happened.
    pub(crate) fault: Option<String>,
    /// What that does.
    pub(crate) inject: Option<String>,
    /// All faults since the generation before had begun to train: those that can be the cause.
    pub(crate) suspects: Vec<String>,
    /// The last generation before.
    pub(crate) before: u64,
    /// The first generation after.
    pub(crate) after: u64,
    /// Seconds from the fault to the first worker of a newer generation.
    pub(crate) to_start: f64,
    /// Seconds from the fault to the first step after it.
    pub(crate) to_step: f64,
    /// Steps that had to be made again.
    pub(crate) lost_steps: u64,
}

/// What a generation has done.
#[derive(Debug, Clone, Copy)]
struct Deeds {
    first_step_ns: u64,
    first_step: u64,
    best_step: u64,
}

/// Takes them.
pub(super) fn figures(history: &History, workers: &[Worker]) -> Figures {
    let mut deeds: BTreeMap<u64, Deeds> = BTreeMap::new();
    let mut steps_made = 0;
    for sign in history
        .signs
        .iter()
        .filter(|sign| matches!(sign.event.as_str(), "step" | "seen"))
    {
        let step = sign.step.unwrap_or(0);
        steps_made += u64::from(sign.rank == 0);
        let deed = deeds.entry(sign.generation).or_insert(Deeds {
            first_step_ns: sign.monotonic_ns,
            first_step: step,
            best_step: step,
        });
        deed.first_step_ns = deed.first_step_ns.min(sign.monotonic_ns);
        deed.first_step = deed.first_step.min(step);
        deed.best_step = deed.best_step.max(step);
    }
    let generations: Vec<(u64, Deeds)> = deeds.into_iter().collect();
    let pairs = generations.iter().zip(generations.iter().skip(1));
    let outages = pairs.filter_map(|(before, after)| outage(history, workers, *before, *after));
    Figures {
        seconds: seconds(
            history
                .end
                .monotonic_ns
                .saturating_sub(history.run.began_ns),
        ),
        generations: workers
            .iter()
            .map(|worker| worker.generation)
            .max()
            .unwrap_or(0),
        best_step: generations
            .iter()
            .map(|(_, deed)| deed.best_step)
            .max()
            .unwrap_or(0),
        steps_made,
        outages: outages.collect(),
    }
}

fn outage(
    history: &History,
    workers: &[Worker],
    (before, old): (u64, Deeds),
    (after, new): (u64, Deeds),
) -> Option<Outage> {
    let births = workers.iter().filter(|worker| worker.generation > before);
    let born_ns = births.map(|worker| worker.first_ns).min()?;
    // One that was in force still counts as well as one that is new.
    let in_force = |fault: &FaultNote| {
        history.faults.iter().any(|note| {
            note.what == FaultEvent::Healed
                && note.fault == fault.fault
                && note.time == fault.time
                && note.monotonic_ns > old.first_step_ns
        })
    };
    let suspects: Vec<&FaultNote> = history
        .faults
        .iter()
        .filter(|note| note.what == FaultEvent::Injected && note.monotonic_ns < born_ns)
        .filter(|note| note.monotonic_ns > old.first_step_ns || in_force(note))
        .collect();
    let fault = suspects.iter().max_by_key(|note| note.monotonic_ns);
    // When one that had been in force for long has struck again, only its effect tells.
    let is_new = fault.filter(|note| note.monotonic_ns > old.first_step_ns);
    let began_ns = is_new.map_or(born_ns, |note| note.monotonic_ns);
    Some(Outage {
        fault: fault.map(|note| note.fault.clone()),
        inject: fault.map(|note| note.inject.clone()),
        suspects: suspects.iter().map(|note| note.fault.clone()).collect(),
        before,
        after,
        to_start: seconds(born_ns.saturating_sub(began_ns)),
        to_step: seconds(new.first_step_ns.saturating_sub(began_ns)),
        lost_steps: (old.best_step + 1).saturating_sub(new.first_step),
    })
}
