// SPDX-License-Identifier: Apache-2.0
//! Who is not where the others are? In synchronous training everybody waits for the one that does not come.

mod sequence;

use std::collections::{BTreeMap, BTreeSet};

use self::sequence::{different_operations, never_entered};
use super::place::{self, Place};
use super::state::{Rank, State};
use crate::answer::{Answer, Class, Signal};
use crate::context::Context;

/// Phases of a rank that has come to its end, by how their names begin.
const ENDED: [&str; 6] = ["done", "finish", "end", "exit", "complete", "shutdown"];

/// What is held against some of the ranks.
struct Charge {
    class: Class,
    ranks: BTreeSet<u32>,
    confidence: f64,
    summary: String,
    next: &'static str,
}

/// Whether ranks wait in one place of the sequence and in different operations.
pub(super) fn is_disagreement(state: &State) -> bool {
    different_operations(state).is_some()
}

/// Compares the ranks of a job that does not move.
pub(super) fn answer(state: &State, context: &Context) -> Answer {
    let charge = gone(state, context)
        .or_else(|| held_by_kernel(state))
        .or_else(|| never_entered(state))
        .or_else(|| different_operations(state))
        .or_else(|| stopped_early(state))
        .or_else(|| elsewhere(state))
        .or_else(|| behind(state));
    let Some(charge) = charge else {
        return everybody(state);
    };
    let mut answer = Answer::of(charge.class, charge.confidence, charge.summary);
    charge.next.clone_into(&mut answer.next_step);
    if charge.class == Class::ProgramError {
        answer.action = crate::answer::Action::FailJob;
    }
    let nodes: BTreeSet<String> = charge
        .ranks
        .iter()
        .filter_map(|rank| node_of(*rank, state, context))
        .collect();
    if charge.ranks.len() == 1 {
        answer.culprit.rank = charge.ranks.first().copied();
    }
    let ours = state.ranks.iter().filter_map(|rank| rank.node.as_ref());
    let known = context.nodes.iter().map(|node| &node.name);
    let has_other_nodes = ours.chain(known).collect::<BTreeSet<_>>().len() > 1;
    // A program that takes different ways is no fault of a node.
    if charge.class != Class::ProgramError
        && nodes.len() == 1
        && (charge.ranks.len() == 1 || has_other_nodes)
    {
        answer.culprit.node = nodes.first().cloned();
    }
    for rank in state
        .ranks
        .iter()
        .filter(|rank| charge.ranks.contains(&rank.number))
        .take(4)
    {
        answer.signals.push(described(rank, state));
    }
    answer
}

fn node_of(rank: u32, state: &State, context: &Context) -> Option<String> {
    let known = state.ranks.iter().find(|known| known.number == rank);
    known
        .and_then(|rank| rank.node.clone())
        .or_else(|| Some(context.node_of(rank)?.name.clone()))
}

fn described(rank: &Rank, state: &State) -> Signal {
    let mut parts = vec![format!("rank {}", rank.number)];
    parts.extend(rank.step.map(|step| format!("step {step}")));
    parts.extend(rank.phase.clone());
    parts.extend(rank.task_state.map(|letter| format!("state {letter}")));
    parts.extend(rank.wchan.clone());
    parts.extend(
        rank.enqueued
            .map(|number| format!("operation {number} issued")),
    );
    parts.extend(rank.completed.map(|number| format!("{number} completed")));
    parts.extend(rank.operation.clone());
    Signal {
        file: state.file.clone(),
        line: 0,
        meaning: parts.join(", "),
        text: rank.stack.first().cloned().unwrap_or_default(),
    }
}

/// Ranks that are dead, or that there is nothing of.
fn gone(state: &State, context: &Context) -> Option<Charge> {
    let mut ranks: BTreeSet<u32> = state
        .ranks
        .iter()
        .filter(|rank| rank.is_dead)
        .map(|rank| rank.number)
        .collect();
    let is_dead = !ranks.is_empty();
    if !is_dead {
        ranks.extend(state.missing(context));
    }
    (!ranks.is_empty() && ranks.len() * 2 <= state.ranks.len().max(2)).then(|| Charge {
        class: match (is_dead, ranks.len()) {
            (true, _) => Class::Unknown,
            (false, 1) => Class::Hang,
            // All those of a node.
            (false, _) => Class::NodeLost,
        },
        summary: format!("ranks {ranks:?} are gone, and the others wait for them"),
        confidence: if is_dead { 0.6 } else { 0.5 },
        next: "look at how its process ended: last lines, exit status, kernel log",
        ranks,
    })
}

/// Ranks that the kernel holds: stopped, or asleep in a file system or driver.
fn held_by_kernel(state: &State) -> Option<Charge> {
    let of = |letters: &str| -> BTreeSet<u32> {
        state
            .ranks
            .iter()
            .filter(|rank| {
                rank.task_state
                    .is_some_and(|letter| letters.contains(letter))
            })
            .filter(|rank| rank.wchan.as_deref() != Some("kernel_clone"))
            .map(|rank| rank.number)
            .collect()
    };
    let stopped = of("Tt");
    if !stopped.is_empty() && stopped.len() * 2 <= state.ranks.len().max(2) {
        return Some(Charge {
            class: Class::Hang,
            summary: format!("ranks {stopped:?} are stopped (state T)"),
            confidence: 0.9,
            next: "find out who stopped it: a scheduler that suspends jobs, a person, a debugger",
            ranks: stopped,
        });
    }
    let asleep = of("D");
    let held: Vec<&Rank> = state
        .ranks
        .iter()
        .filter(|rank| asleep.contains(&rank.number))
        .collect();
    let first = held.first()?;
    let wchan = first.wchan.as_deref().unwrap_or_default();
    let in_driver =
        wchan.starts_with("nv_") || wchan.starts_with("uvm_") || wchan.contains("nvidia");
    let most = asleep.len() * 2 > state.ranks.len() && state.ranks.len() > 1;
    Some(Charge {
        class: if in_driver {
            Class::GpuHardware
        } else {
            Class::Storage
        },
        summary: format!(
            "ranks {asleep:?} sleep uninterruptibly (state D) in {}",
            if wchan.is_empty() {
                "the kernel"
            } else {
                wchan
            }
        ),
        confidence: 0.8,
        next: "look at the mount that its open files are on, and at the kernel log",
        ranks: if most { BTreeSet::new() } else { asleep },
    })
}

fn doing(rank: &Rank) -> String {
    match rank.stack.first() {
        Some(frame) => format!("; it is in {frame}"),
        None => String::new(),
    }
}

fn class_of(rank: &Rank) -> Class {
    let has_ended = rank
        .phase
        .as_deref()
        .is_some_and(|phase| ENDED.iter().any(|ended| phase.starts_with(ended)));
    match place::of(&rank.stack) {
        // Whoever has come to its end had less to do than the others.
        _ if has_ended => Class::ProgramError,
        Place::Storage | Place::Checkpoint => Class::Storage,
        _ => Class::Hang,
    }
}

fn next_for(rank: &Rank) -> &'static str {
    match place::of(&rank.stack) {
        Place::Data => {
            "look at its data loader: the source of the data, the loader's processes, their memory"
        }
        Place::Storage | Place::Checkpoint => {
            "look at the file system that it works on, and at the kernel log"
        }
        Place::Gpu => "look at its GPU: nvidia-smi, the kernel log",
        Place::Collective | Place::Elsewhere => {
            "look at its stacks: what it waits for does not come"
        }
    }
}

/// Ranks in another phase or past the end, while the others wait in training.
fn stopped_early(state: &State) -> Option<Charge> {
    let mut phases: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for rank in &state.ranks {
        phases
            .entry(rank.phase.as_deref()?)
            .or_default()
            .insert(rank.number);
    }
    if phases.len() != 2 {
        return None;
    }
    let (phase, ranks) = phases.into_iter().min_by_key(|(_, ranks)| ranks.len())?;
    if ranks.len() * 2 >= state.ranks.len() {
        return None;
    }
    let first = state
        .ranks
        .iter()
        .find(|rank| ranks.contains(&rank.number))?;
    let place = place::of(&first.stack);
    let class = match (phase, place) {
        ("checkpoint" | "save" | "saving", _) | (_, Place::Storage | Place::Checkpoint) => {
            Class::Storage
        }
        (_, Place::Collective) => Class::ProgramError,
        _ => Class::Hang,
    };
    Some(Charge {
        class,
        summary: format!(
            "ranks {ranks:?} are in phase {phase}, and the others wait{}",
            doing(first)
        ),
        confidence: 0.7,
        next: next_for(first),
        ranks,
    })
}

/// Ranks whose stacks differ from those of the others.
fn elsewhere(state: &State) -> Option<Charge> {
    let known: Vec<(&Rank, Place)> = state
        .ranks
        .iter()
        .filter(|rank| !rank.stack.is_empty())
        .map(|rank| (rank, place::of(&rank.stack)))
        .collect();
    let waiting = known
        .iter()
        .filter(|(_, place)| *place == Place::Collective)
        .count();
    let others: Vec<&(&Rank, Place)> = known
        .iter()
        .filter(|(_, place)| *place != Place::Collective)
        .collect();
    if waiting > 0 && !others.is_empty() && others.len() <= waiting {
        let (first, _) = others.first()?;
        let ranks: BTreeSet<u32> = others.iter().map(|(rank, _)| rank.number).collect();
        return Some(Charge {
            class: class_of(first),
            summary: format!(
                "ranks {ranks:?} are not where the others wait for them{}",
                doing(first)
            ),
            confidence: 0.8,
            next: next_for(first),
            ranks,
        });
    }
    // All of them in the same place that is no collective: what they share.
    let (first, place) = known.first()?;
    let together = known.iter().all(|(_, other)| other == place);
    (together && matches!(place, Place::Storage | Place::Data | Place::Checkpoint) && waiting == 0)
        .then(|| Charge {
            class: if *place == Place::Data {
                Class::Hang
            } else {
                Class::Storage
            },
            summary: format!("all ranks are in the same place{}", doing(first)),
            confidence: 0.55,
            next: next_for(first),
            ranks: BTreeSet::new(),
        })
}

/// Ranks at an earlier step than the others.
fn behind(state: &State) -> Option<Charge> {
    let furthest = state.ranks.iter().filter_map(|rank| rank.step).max()?;
    let late: Vec<&Rank> = state
        .ranks
        .iter()
        .filter(|rank| rank.step.is_some_and(|step| step < furthest))
        .collect();
    let first = late.first()?;
    let ranks: BTreeSet<u32> = late.iter().map(|rank| rank.number).collect();
    (ranks.len() * 2 <= state.ranks.len()).then(|| Charge {
        class: class_of(first),
        summary: format!("ranks {ranks:?} are behind: others are at step {furthest}"),
        confidence: 0.6,
        next: next_for(first),
        ranks,
    })
}

/// Nobody stands out.
fn everybody(state: &State) -> Answer {
    let entered = state
        .ranks
        .iter()
        .filter(|rank| rank.enqueued.is_some())
        .count()
        == state.ranks.len();
    let mut answer = Answer::of(
        Class::Hang,
        if entered { 0.45 } else { 0.3 },
        if entered {
            "all ranks have entered the same operation, and it does not end"
        } else {
            "no rank makes steps any more, and none of them stands out"
        },
    );
    "look at the network between the nodes, at the GPUs and at the kernel logs"
        .clone_into(&mut answer.next_step);
    answer
}
