// SPDX-License-Identifier: Apache-2.0
//! Collective operations that did not end: whoever complains waited; whoever never came is silent.

mod facts;

use std::collections::{BTreeMap, BTreeSet};

use self::facts::{Facts, Operation};
use super::Candidate;
use crate::answer::{Class, Signal};
use crate::context::Context;
use crate::rules::Role;
use crate::sighting::{Sighting, Sightings};

/// Who did not come to the operation that the others wait in.
pub(super) fn candidate(
    open: &[&Sighting<'_>],
    sightings: &Sightings<'_>,
    context: &Context,
) -> Option<Candidate> {
    let facts = Facts::of(open);
    if facts.is_empty() {
        return None;
    }
    let signal = facts
        .first
        .and_then(|index| open.get(index))
        .map(|first| first.signal());
    let mut candidate = named_missing(&facts, context)
        .or_else(|| disagreement(&facts))
        .or_else(|| behind(&facts, context))
        .or_else(|| silent(&facts, open, sightings, context))
        .unwrap_or_else(|| everybody(&facts));
    if let Some(rank) = candidate.culprit.rank {
        candidate.culprit.node = context.node_of(rank).map(|node| node.name.clone());
    }
    if candidate.class == Class::ProgramError {
        candidate.culprit.node = None;
    }
    candidate.at = facts
        .first
        .and_then(|index| open.get(index))
        .and_then(|first| first.at);
    candidate.signals.extend(signal);
    if candidate.next.is_empty() {
        "look at what this rank was doing (py-spy dump, its last lines, the kernel log of its node)"
            .clone_into(&mut candidate.next);
    }
    Some(candidate)
}

fn hang(strength: u8, confidence: f64, summary: String) -> Candidate {
    let mut hang = Candidate::new("hang", Class::Hang, strength, summary);
    hang.confidence = confidence;
    hang
}

/// One rank, or the node that all of them are on while others are elsewhere.
fn accuse(candidate: &mut Candidate, ranks: &BTreeSet<u32>, context: &Context) {
    if ranks.len() == 1 {
        candidate.culprit.rank = ranks.first().copied();
        return;
    }
    let nodes: BTreeSet<&str> = ranks
        .iter()
        .filter_map(|rank| Some(context.node_of(*rank)?.name.as_str()))
        .collect();
    if nodes.len() == 1 && context.nodes.len() > 1 {
        candidate.culprit.node = nodes.first().map(|node| (*node).to_owned());
    }
}

/// The message itself names who is missing.
fn named_missing(facts: &Facts, context: &Context) -> Option<Candidate> {
    let ranks = &facts.missing;
    if ranks.is_empty() {
        return None;
    }
    let mut candidate = hang(
        57,
        0.75,
        format!("ranks {ranks:?} did not come to the operation"),
    );
    accuse(&mut candidate, ranks, context);
    Some(candidate)
}

/// Ranks that wait in the same place of the sequence, but in different operations.
fn disagreement(facts: &Facts) -> Option<Candidate> {
    let mut by_place: BTreeMap<(&str, u64), BTreeMap<&Operation, BTreeSet<u32>>> = BTreeMap::new();
    for timeout in &facts.timeouts {
        by_place
            .entry((&timeout.process_group, timeout.sequence))
            .or_default()
            .entry(&timeout.operation)
            .or_default()
            .extend(timeout.rank);
    }
    let (place, operations) = by_place
        .into_iter()
        .find(|(_, operations)| operations.len() > 1 && differ(operations.keys()))?;
    let mut candidate = Candidate::new(
        "hang.disagreement",
        Class::ProgramError,
        59,
        format!(
            "at the same place of the sequence ({}) the ranks are in different operations",
            place.1
        ),
    );
    candidate.confidence = 0.8;
    "look for a branch that only some ranks take before this operation"
        .clone_into(&mut candidate.next);
    let fewest = operations.values().map(BTreeSet::len).min()?;
    let most = operations.values().map(BTreeSet::len).max()?;
    if fewest == 1 && most > 1 && operations.len() == 2 {
        candidate.culprit.rank = operations
            .values()
            .find(|ranks| ranks.len() == 1)
            .and_then(|ranks| ranks.first().copied());
    }
    Some(candidate)
}

/// Gathers have inputs of their own size on each rank: there the kind of operation alone counts.
fn differ<'o>(mut operations: impl Iterator<Item = &'o &'o Operation>) -> bool {
    let Some(first) = operations.next() else {
        return false;
    };
    operations.any(|other| {
        let symmetric = ["ALLREDUCE", "BROADCAST", "REDUCE", "COALESCED"];
        other.name != first.name
            || symmetric.contains(&other.name.as_str())
                && other
                    .numbers
                    .zip(first.numbers)
                    .is_some_and(|(one, two)| one != two)
    })
}

/// Ranks that have not yet enqueued what the others wait for.
fn behind(facts: &Facts, context: &Context) -> Option<Candidate> {
    let waited_for = facts
        .timeouts
        .iter()
        .map(|timeout| timeout.sequence)
        .max()?;
    let behind: BTreeSet<u32> = facts
        .enqueued
        .iter()
        .filter(|(_, enqueued)| **enqueued < waited_for)
        .map(|((rank, _), _)| *rank)
        .collect();
    let groups: BTreeSet<&String> = facts.enqueued.keys().map(|(_, group)| group).collect();
    // Sequences of different groups cannot be compared.
    let mut known: BTreeSet<u32> = facts.enqueued.keys().map(|(rank, _)| *rank).collect();
    known.extend(facts.timeouts.iter().filter_map(|timeout| timeout.rank));
    if groups.len() > 1 || behind.is_empty() || behind.len() * 2 > known.len() {
        return None;
    }
    let mut candidate = hang(
        57,
        0.75,
        format!(
            "ranks {behind:?} have not issued operation {waited_for}, which the others wait in"
        ),
    );
    accuse(&mut candidate, &behind, context);
    Some(candidate)
}

/// Ranks that say nothing while the others complain.
fn silent(
    facts: &Facts,
    open: &[&Sighting<'_>],
    sightings: &Sightings<'_>,
    context: &Context,
) -> Option<Candidate> {
    let talkers: BTreeSet<u32> = open.iter().filter_map(|sighting| sighting.rank).collect();
    let known: BTreeSet<u32> = &sightings.heard | &sightings.with_file;
    let mut silent: BTreeSet<u32> = known.difference(&talkers).copied().collect();
    if silent.is_empty() {
        // One that printed nothing at all, while all others complain.
        let world = context.world()?;
        silent = (0..world).filter(|rank| !talkers.contains(rank)).collect();
        if silent.len() != 1 || talkers.len() < 2 {
            return None;
        }
    }
    if silent.len() * 2 > known.len().max(talkers.len() + silent.len()) {
        return None;
    }
    let finished: BTreeSet<u32> = sightings
        .all
        .iter()
        .filter(|sighting| sighting.rule.role == Role::Finished)
        .filter_map(|sighting| sighting.rank)
        .filter(|rank| silent.contains(rank))
        .collect();
    let nodes: BTreeSet<&str> = silent
        .iter()
        .filter_map(|rank| Some(context.node_of(*rank)?.name.as_str()))
        .collect();
    let mut candidate = if finished.is_empty() {
        hang(
            54,
            match (silent.len(), talkers.len()) {
                (1, 2..) => 0.7,
                _ => 0.5,
            },
            format!(
                "ranks {silent:?} said nothing while the others waited for them in a collective operation"
            ),
        )
    } else {
        let mut uneven = Candidate::new(
            "hang.uneven",
            Class::ProgramError,
            56,
            format!(
                "ranks {finished:?} had come to their end while the others still waited for them"
            ),
        );
        uneven.confidence = 0.65;
        "give all ranks the same number of batches (drop_last, join)".clone_into(&mut uneven.next);
        uneven
    };
    if silent.len() == 1 {
        candidate.culprit.rank = silent.first().copied();
    } else if let (1, Some(node)) = (nodes.len(), nodes.first()) {
        let whole = context
            .node_named(node)
            .is_some_and(|node| node.ranks.len() == silent.len());
        candidate.culprit.node = Some((*node).to_owned());
        if whole && context.nodes.len() > 1 && facts.connections_lost {
            candidate.class = Class::NodeLost;
            candidate.action = Class::NodeLost.usual_action();
        }
    }
    let last = silent.first().and_then(|rank| {
        let progress = sightings.progress.iter().rev();
        progress
            .filter(|progress| progress.rank == Some(*rank))
            .max_by_key(|progress| progress.step)
    });
    if let Some(last) = last {
        candidate.signals.push(Signal {
            file: last.file.clone(),
            line: last.line,
            meaning: format!("the last that this rank said was step {}", last.step),
            text: String::new(),
        });
    }
    Some(candidate)
}

/// All of them waited.
fn everybody(facts: &Facts) -> Candidate {
    let sequences: BTreeSet<u64> = facts
        .timeouts
        .iter()
        .map(|timeout| timeout.sequence)
        .collect();
    let mut candidate = hang(
        48,
        0.4,
        match sequences.len() {
            1 => "a collective operation that all ranks had entered did not end".to_owned(),
            _ => "collective operations did not end, and no rank stands out".to_owned(),
        },
    );
    "look at the network between the nodes and at the GPUs: nobody is missing who could be named"
        .clone_into(&mut candidate.next);
    candidate
}
