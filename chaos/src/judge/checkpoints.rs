// SPDX-License-Identifier: Apache-2.0
//! J-5 and J-6: where the workers went on from.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use super::load::History;
use crate::history::FaultEvent;
use crate::world::life::Sign;

/// What a generation went on from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Resumption {
    generation: u64,
    born_ns: u64,
    /// The steps that its workers say that they go on from.
    steps: BTreeSet<u64>,
    /// The first step that it made.
    first_step: Option<u64>,
}

/// J-5.
pub(super) fn resumed_from_saved(history: &History) -> Check {
    let last_steps = last_steps(&history.signs);
    let mut wrong = Vec::new();
    for resumption in resumptions(&history.signs) {
        let generation = resumption.generation;
        if resumption.steps.len() > 1 {
            wrong.push(format!(
                "the workers of generation {generation} went on from different steps: {:?}",
                resumption.steps
            ));
        }
        for step in &resumption.steps {
            let mut saves = history.signs.iter().filter(|sign| sign.event == "save");
            let was_saved =
                saves.any(|sign| sign.step == Some(*step) && sign.generation < generation);
            // A worker that died in saving its last step may have come as far as a whole file, but not as far as its word.
            let mut earlier = last_steps.iter().filter(|((of, _), _)| *of < generation);
            let may_be_saved = earlier.any(|(_, last)| last == step);
            if !was_saved && !may_be_saved {
                wrong.push(format!(
                    "generation {generation} went on from step {step}, which nobody had saved"
                ));
            }
        }
    }
    Check::of(
        "J-5",
        &wrong,
        "nobody went on from a checkpoint that was not saved",
    )
}

/// J-6.
pub(super) fn none_forgotten(history: &History) -> Check {
    let damaged = history
        .faults
        .iter()
        .any(|note| note.what == FaultEvent::Landed && note.inject == "damage-checkpoint");
    if damaged {
        return Check::pass(
            "J-6",
            "a checkpoint was damaged on purpose: an older one may do",
        );
    }
    let mut wrong = Vec::new();
    for resumption in resumptions(&history.signs) {
        let Some(first_step) = resumption.first_step else {
            continue;
        };
        let saved = history.signs.iter().filter(|sign| {
            sign.event == "save"
                && sign.generation < resumption.generation
                && sign.monotonic_ns < resumption.born_ns
        });
        let newest = saved.filter_map(|sign| sign.step).max().unwrap_or(0);
        if first_step <= newest {
            wrong.push(format!(
                "generation {} began with step {first_step}, though there was a checkpoint of step {newest}",
                resumption.generation
            ));
        }
    }
    Check::of(
        "J-6",
        &wrong,
        "each generation went on from the newest checkpoint",
    )
}

/// The last step of each rank of each generation.
fn last_steps(signs: &[Sign]) -> BTreeMap<(u64, u32), u64> {
    let mut last = BTreeMap::new();
    for sign in signs.iter().filter(|sign| sign.event == "step") {
        let step = last.entry((sign.generation, sign.rank)).or_insert(0);
        *step = sign.step.unwrap_or(0).max(*step);
    }
    last
}

fn resumptions(signs: &[Sign]) -> Vec<Resumption> {
    let mut found: BTreeMap<u64, Resumption> = BTreeMap::new();
    for sign in signs.iter().filter(|sign| sign.generation > 1) {
        let of_it = found.entry(sign.generation).or_insert_with(|| Resumption {
            generation: sign.generation,
            born_ns: sign.monotonic_ns,
            steps: BTreeSet::new(),
            first_step: None,
        });
        of_it.born_ns = of_it.born_ns.min(sign.monotonic_ns);
        match (sign.event.as_str(), sign.step) {
            ("resume", Some(step)) => {
                of_it.steps.insert(step);
            }
            ("step", Some(step)) => {
                let first = of_it.first_step.get_or_insert(step);
                *first = (*first).min(step);
            }
            _ => {}
        }
    }
    found.into_values().collect()
}
