// SPDX-License-Identifier: Apache-2.0
//! What earlier attempts tell: the same failure at the same step wherever it runs is the program; a failure that stays with
//! a node, whatever the step, is the node.

use std::collections::BTreeSet;

use crate::answer::{Action, Class, Signal};
use crate::context::{Attempt, Context};
use crate::logs::Candidate;
use crate::sighting::Sightings;

/// Takes them into account.
pub(crate) fn apply(chosen: &mut Candidate, context: &Context, sightings: &Sightings<'_>) {
    if context.attempts.is_empty() {
        return;
    }
    let step = sightings
        .progress
        .iter()
        .map(|progress| progress.step)
        .max()
        .or(context.steps_done);
    let now = Attempt {
        rank: chosen.culprit.rank,
        node: chosen.culprit.node.clone(),
        step,
        failure: None,
    };
    let mut all = context.attempts.clone();
    all.push(now);
    let node_of = |attempt: &Attempt| {
        attempt.node.clone().or_else(|| {
            let node = context.node_of(attempt.rank?)?;
            Some(node.name.clone())
        })
    };
    let nodes: Vec<String> = all.iter().filter_map(node_of).collect();
    let different: BTreeSet<&String> = nodes.iter().collect();
    let steps: Vec<u64> = all.iter().filter_map(|attempt| attempt.step).collect();
    // The last line that tells of a step may be a few steps before the failure.
    let close = |one: u64, two: u64| one.abs_diff(two) <= 1 + one.max(two) / 500;
    let same_step = steps.len() > 1 && steps.windows(2).all(|pair| close(pair[0], pair[1]));
    let hardware =
        matches!(chosen.class, Class::GpuHardware | Class::Link) && chosen.strength >= 90;
    if same_step && different.len() > 1 && !hardware {
        let keeps_class = matches!(
            chosen.class,
            Class::GpuMemory
                | Class::HostMemory
                | Class::Storage
                | Class::Configuration
                | Class::Numeric
        );
        if !keeps_class {
            chosen.class = Class::ProgramError;
        }
        chosen.action = Action::FailJob;
        chosen.culprit.node = None;
        chosen.culprit.gpu = None;
        chosen.confidence = chosen.confidence.max(0.85);
        chosen.strength = chosen.strength.max(85);
        tell(
            chosen,
            "earlier attempts failed at the same step on other nodes: the program or its data",
        );
        "look at the batch and the code of this step: a restart fails again"
            .clone_into(&mut chosen.next);
    } else if different.len() == 1 && nodes.len() > 1 && nodes.len() == all.len() {
        let unclear = chosen.is_ambiguous
            || matches!(chosen.class, Class::Unknown | Class::Hang | Class::Network);
        if unclear && !same_step {
            if chosen.class != Class::Network {
                chosen.class = Class::GpuHardware;
            }
            chosen.confidence = chosen.confidence.max(0.7);
        }
        if unclear || chosen.action == Action::ExcludeNode || chosen.class == Class::GpuHardware {
            chosen.action = Action::ExcludeNode;
            chosen.culprit.node = nodes.first().cloned();
            tell(
                chosen,
                "earlier attempts failed on the same node: something is wrong with it",
            );
            "take the node out and have its GPUs and links tested".clone_into(&mut chosen.next);
        }
    }
}

fn tell(chosen: &mut Candidate, meaning: &str) {
    chosen.signals.push(Signal {
        file: "context.toml".to_owned(),
        line: 0,
        meaning: meaning.to_owned(),
        text: String::new(),
    });
}
