// SPDX-License-Identifier: Apache-2.0
//! From the evidence to the answer.

use crate::answer::Answer;
use crate::evidence::{Evidence, FileKind};
use crate::rules::Rules;
use crate::{context, gpu_state, hang, kernel, logs, sighting};

/// Says what was at fault.
pub fn diagnose(evidence: &Evidence, rules: &Rules) -> Answer {
    let mut context = context::read(evidence);
    context::learn_addresses(&mut context, evidence);
    let context = context;
    let kernel = kernel::read(evidence, &context);
    let mut sightings = sighting::read(evidence, &context, rules);
    // What the reader of kernel logs has understood is not judged a second time by its words.
    sightings.all.retain(|sighting| {
        !kernel
            .lines
            .contains(&(sighting.file.clone(), sighting.line))
    });
    let mut from_devices = kernel.candidates;
    from_devices.extend(gpu_state::candidates(evidence, &context));
    let has_state = [FileKind::State, FileKind::Steps]
        .into_iter()
        .any(|kind| evidence.of_kind(kind).next().is_some());
    let mut answer = if has_state {
        let from_logs = logs::judge(evidence, &context, &sightings, from_devices);
        hang::judge(evidence, &context, from_logs)
    } else {
        logs::judge(evidence, &context, &sightings, from_devices)
    };
    if !kernel.events.is_empty() {
        answer.incidents = kernel.incidents;
        answer.events = kernel.events;
    }
    answer.notes.extend(context.notes);
    answer
}
