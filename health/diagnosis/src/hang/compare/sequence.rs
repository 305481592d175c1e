// SPDX-License-Identifier: Apache-2.0
//! Where the ranks are in the sequence of collective operations.

use std::collections::{BTreeMap, BTreeSet};

use super::super::place::{self, Place};
use super::super::state::{Rank, State};
use super::{Charge, class_of, doing, next_for};
use crate::answer::Class;

/// By process group, the ranks that have numbers.
fn groups(state: &State) -> BTreeMap<&str, Vec<&Rank>> {
    let mut groups: BTreeMap<&str, Vec<&Rank>> = BTreeMap::new();
    for rank in state.ranks.iter().filter(|rank| rank.enqueued.is_some()) {
        groups.entry(&rank.process_group).or_default().push(rank);
    }
    groups
}

/// Ranks that have not issued the operation that the others wait in.
pub(super) fn never_entered(state: &State) -> Option<Charge> {
    for ranks in groups(state).into_values() {
        let completed = ranks.iter().filter_map(|rank| rank.completed).max();
        let enqueued = ranks.iter().filter_map(|rank| rank.enqueued).max()?;
        let waited_for = completed.map_or(enqueued, |completed| (completed + 1).min(enqueued));
        let late: Vec<&&Rank> = ranks
            .iter()
            .filter(|rank| rank.enqueued.is_some_and(|own| own < waited_for))
            .collect();
        // A rank that waits in a collective itself waits for another group.
        let late: Vec<&&&Rank> = late
            .iter()
            .filter(|rank| late.len() == 1 || place::of(&rank.stack) != Place::Collective)
            .collect();
        let Some(first) = late.first() else {
            continue;
        };
        if late.len() * 2 > ranks.len() {
            continue;
        }
        let numbers: BTreeSet<u32> = late.iter().map(|rank| rank.number).collect();
        let what = doing(first);
        return Some(Charge {
            class: class_of(first),
            summary: format!(
                "ranks {numbers:?} have not issued operation {waited_for}, in which the others wait{what}"
            ),
            confidence: 0.88,
            next: next_for(first),
            ranks: numbers,
        });
    }
    None
}

/// Ranks in one place of the sequence and in different operations.
pub(super) fn different_operations(state: &State) -> Option<Charge> {
    for ranks in groups(state).into_values() {
        let waiting: Vec<&&Rank> = ranks
            .iter()
            .filter(|rank| rank.completed < rank.enqueued || rank.completed.is_none())
            .collect();
        let mut by_number: BTreeMap<u64, Vec<&Rank>> = BTreeMap::new();
        for rank in waiting {
            by_number
                .entry(rank.enqueued.unwrap_or_default())
                .or_default()
                .push(rank);
        }
        for (number, ranks) in by_number {
            let Some(charge) = different(number, &ranks) else {
                continue;
            };
            return Some(charge);
        }
    }
    None
}

fn different(number: u64, ranks: &[&Rank]) -> Option<Charge> {
    let mut kinds: BTreeMap<(Option<&str>, Option<&str>), BTreeSet<u32>> = BTreeMap::new();
    for rank in ranks {
        let name = rank.operation.as_deref()?;
        // Neighbours in a pipeline send and receive in turn.
        if name.contains("SEND") || name.contains("RECV") {
            return None;
        }
        // Gathers and scatters may have parts of different sizes.
        let symmetric =
            name.contains("REDUCE") && !name.contains("SCATTER") || name.contains("BROADCAST");
        let size = rank.size.as_deref().filter(|_| symmetric);
        kinds
            .entry((Some(name), size))
            .or_default()
            .insert(rank.number);
    }
    if kinds.len() < 2 {
        return None;
    }
    let fewest = kinds.values().min_by_key(|ranks| ranks.len())?;
    let most = kinds.values().map(BTreeSet::len).max()?;
    let ranks = if fewest.len() < most && kinds.len() == 2 {
        fewest.clone()
    } else {
        BTreeSet::new()
    };
    let names: Vec<String> = kinds
        .iter()
        .map(|((name, size), ranks)| {
            let size = size.map(|size| format!(" of {size}")).unwrap_or_default();
            format!("{}{size} on ranks {ranks:?}", name.unwrap_or_default())
        })
        .collect();
    Some(Charge {
        class: Class::ProgramError,
        summary: format!(
            "in place {number} of the sequence the ranks are in different operations: {}",
            names.join("; ")
        ),
        confidence: 0.88,
        next: "look for a branch that only some ranks take before this operation, and for uneven data",
        ranks,
    })
}
