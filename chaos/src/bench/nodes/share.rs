// SPDX-License-Identifier: Apache-2.0
//! Where the time of a restart goes, by the journals of the nodes.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::bench::lines::Lines;
use crate::bench::statistics::milliseconds;
use crate::failure::Failure;

/// Writes that have to follow each other before the next generation can start: the finding, the order to stop, the last
/// member's report that it has stopped, the next plan.
pub(super) const WRITES: f64 = 4.0;

/// Nodes that run workers.
const NODES: usize = 2;

/// A line of a journal, as far as it matters here.
#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
pub(super) struct Entry {
    mono_ns: u64,
    generation: u64,
    kind: String,
}

/// The parts of one restart. Milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Share {
    /// From the exit that opened the incident to the start of the last node's new workers.
    pub(super) total: f64,
    /// From the order to stop to the end of the last worker, on the node that took longest.
    pub(super) stopping: f64,
    /// From the order to start to the start, on the node that took longest.
    pub(super) starting: f64,
}

impl Share {
    /// What is left for those who coordinate, the store's part included.
    pub(super) fn coordination(&self) -> f64 {
        self.total - self.stopping - self.starting
    }
}

/// The journal in a node's directory.
pub(super) fn journal(directory: &Path) -> Result<Vec<Entry>, Failure> {
    Lines::of(directory.join("journal.jsonl")).fresh()
}

/// The parts of the restart that led to generation `next`, once two nodes' journals tell of it. A spare's tells nothing.
pub(super) fn share_of(journals: &[Vec<Entry>], next: u64) -> Option<Share> {
    let last = next.checked_sub(1)?;
    let of = |journal: &[Entry], generation: u64, kind: &str| {
        let mut such = journal
            .iter()
            .filter(|entry| entry.generation == generation && entry.kind == kind);
        such.next().map(|entry| entry.mono_ns)
    };
    let between = |generation: u64, from: &str, to: &str| {
        let times = journals.iter().filter_map(|journal| {
            let (from, to) = (of(journal, generation, from)?, of(journal, generation, to)?);
            Some(to.saturating_sub(from))
        });
        times.max()
    };
    let fault = journals
        .iter()
        .filter_map(|journal| of(journal, last, "worker.exited"))
        .min()?;
    let started: Vec<u64> = journals
        .iter()
        .filter_map(|journal| of(journal, next, "generation.started"))
        .collect();
    let started = started.iter().max().filter(|_| started.len() == NODES)?;
    Some(Share {
        total: milliseconds(started.saturating_sub(fault)),
        stopping: milliseconds(between(last, "generation.stopping", "generation.stopped")?),
        starting: milliseconds(between(next, "generation.starting", "generation.started")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(mono_ms: u64, generation: u64, kind: &str) -> Entry {
        Entry {
            mono_ns: mono_ms * 1_000_000,
            generation,
            kind: kind.to_owned(),
        }
    }

    #[test]
    fn a_restart_is_taken_apart() {
        let one = vec![
            entry(100, 1, "worker.exited"),
            entry(101, 1, "generation.stopping"),
            entry(111, 1, "generation.stopped"),
            entry(150, 2, "generation.starting"),
            entry(152, 2, "generation.started"),
        ];
        let other = vec![
            entry(120, 1, "generation.stopping"),
            entry(121, 1, "worker.exited"),
            entry(125, 1, "generation.stopped"),
            entry(151, 2, "generation.starting"),
            entry(156, 2, "generation.started"),
        ];
        assert_eq!(share_of(&[one.clone(), vec![]], 2), None);
        let share = share_of(&[one, vec![], other], 2).unwrap();
        assert_eq!(
            (share.total, share.stopping, share.starting),
            (56.0, 10.0, 5.0)
        );
        assert!((share.coordination() - 41.0).abs() < 1e-9);
    }
}
