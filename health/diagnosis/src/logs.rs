// SPDX-License-Identifier: Apache-2.0
//! The verdict over the output of all ranks and launchers. Each way of looking at it makes [`Candidate`]s: lines that may be
//! causes, processes that launchers saw ending, collectives that somebody never came to, nodes that fell silent, the kernel
//! log. The strongest of the earliest is the answer.

mod candidate;
mod choice;
mod collective;
mod disk;
mod grouping;
mod healing;
mod launcher;
mod lost;

use crate::answer::{Answer, Class, Culprit, Signal};
use crate::context::Context;
use crate::evidence::Evidence;
use crate::rules::Role;
use crate::sighting::{Sighting, Sightings};
use crate::{gpu_state, history, kernel, listing};

pub(crate) use self::candidate::Candidate;

/// The most lines of each kind that an answer quotes.
const QUOTED: usize = 12;

/// Judges what the logs say, together with what the kernel log has brought.
pub(crate) fn judge(
    evidence: &Evidence,
    context: &Context,
    sightings: &Sightings<'_>,
    from_kernel: Vec<Candidate>,
) -> Answer {
    let open = healing::unhealed(sightings);
    let exits = launcher::exits(&open, context);
    let mut candidates = grouping::candidates(&open, sightings, context);
    candidates.extend(from_kernel);
    kernel::join(&mut candidates);
    candidates.extend(disk::candidate(evidence));
    candidates.extend(listing::candidate(evidence));
    launcher::attribute(&mut candidates, &exits);
    grouping::explain_kills(&mut candidates, &open, &exits, context);
    disk::explain(&mut candidates);
    listing::explain(&mut candidates);
    gpu_state::weigh(&mut candidates);
    kernel::place_storage(&mut candidates, context);
    if candidates.iter().all(Candidate::is_thin) {
        candidates.extend(launcher::candidate(&exits, &open));
        candidates.extend(collective::candidate(&open, sightings, context));
        candidates.extend(lost::candidate(&open, sightings, context));
    }
    let is_failure = is_failure(&open, sightings, &exits);
    if !is_failure && candidates.iter().all(|candidate| candidate.is_background) {
        candidates.clear();
    }
    let is_moving = context
        .last_step_age_s
        .zip(context.step_s)
        .is_some_and(|(age, step)| age <= step * 3.0);
    if is_moving && candidates.iter().all(Candidate::is_thin) {
        candidates
            .retain(|candidate| candidate.id.starts_with("kernel.") && !candidate.is_background);
        if candidates.is_empty() {
            return Answer::no_fault("the last step is no older than this job's steps take");
        }
    }
    let failed = open.iter().any(|sighting| {
        matches!(sighting.rule.role, Role::Consequence) || sighting.is("launcher.summary")
    });
    let mut answer = match choice::choose(candidates) {
        Some(mut chosen) => {
            on_the_only_node(&mut chosen, context);
            history::apply(&mut chosen, context, sightings);
            chosen.answer()
        }
        None if failed && is_failure => nothing_certain(),
        None => Answer::no_fault(no_fault_words(sightings)),
    };
    quote(&mut answer, &open);
    answer
}

/// What is a matter of the machine is a matter of the only machine there is.
fn on_the_only_node(chosen: &mut Candidate, context: &Context) {
    let of_the_machine = chosen.class == Class::HostMemory || chosen.id == "program.port";
    if let [node] = &context.nodes[..]
        && of_the_machine
        && chosen.culprit == Culprit::default()
    {
        chosen.culprit.node = Some(node.name.clone());
    }
}

/// Whether what is left are signs of a failure, and not only of a teardown.
fn is_failure(open: &[&Sighting<'_>], sightings: &Sightings<'_>, exits: &[launcher::Exit]) -> bool {
    let finished = sightings
        .all
        .iter()
        .any(|sighting| sighting.rule.role == Role::Finished);
    let failed_exit = exits.iter().any(launcher::Exit::is_failure);
    let consequences = open
        .iter()
        .any(|sighting| sighting.rule.role == Role::Consequence);
    let told = open.iter().any(|sighting| {
        let failures = [
            "ChildFailedError",
            "Actor",
            "FAILED",
            "CalledProcessError",
            "HorovodInternalError",
            "core dumped",
            "crashed",
            "BAD TERMINATION",
            "lost communication",
        ];
        sighting.rule.role == Role::Summary
            && failures.iter().any(|word| sighting.text.contains(word))
    });
    failed_exit || ((consequences || told) && !finished)
}

fn no_fault_words(sightings: &Sightings<'_>) -> String {
    let finished = sightings
        .all
        .iter()
        .any(|sighting| sighting.rule.role == Role::Finished);
    if finished {
        "the program has come to its end as it should".to_owned()
    } else {
        format!(
            "{} lines, and none of them tells of a failure that lasted",
            sightings.lines
        )
    }
}

fn nothing_certain() -> Answer {
    Answer {
        next_step: "look at the last lines of each rank, and at the kernel logs of the nodes"
            .to_owned(),
        ..Answer::of(
            Class::Unknown,
            0.2,
            "the job failed; what is there shows consequences only, and not of what",
        )
    }
}

/// Adds the lines that are only consequences.
fn quote(answer: &mut Answer, open: &[&Sighting<'_>]) {
    if !answer.fault {
        return;
    }
    answer.signals.truncate(QUOTED);
    let named: Vec<(&str, u32)> = answer
        .signals
        .iter()
        .map(|signal| (signal.file.as_str(), signal.line))
        .collect();
    let secondary: Vec<Signal> = open
        .iter()
        .filter(|sighting| !named.contains(&(sighting.file.as_str(), sighting.line)))
        .filter(|sighting| {
            matches!(
                sighting.rule.role,
                Role::Cause | Role::Sign | Role::Consequence | Role::Summary
            )
        })
        .take(QUOTED)
        .map(|sighting| sighting.signal())
        .collect();
    answer.secondary.extend(secondary);
    if answer.signals.is_empty() && answer.class == Class::Unknown {
        answer.culprit = Culprit::default();
    }
}
