// SPDX-License-Identifier: Apache-2.0
//! J-1, J-2 and J-4: who lived when, with which rank.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Check;
use crate::history::Sample;
use crate::world::life::Sign;

/// A worker, from its first sign of life to its last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Worker {
    /// Its generation.
    pub(crate) generation: u64,
    /// Its rank.
    pub(crate) rank: u32,
    /// Its process.
    pub(crate) pid: i32,
    /// Its node.
    pub(crate) node: String,
    /// Its first sign of life.
    pub(crate) first_ns: u64,
    /// Its last one.
    pub(crate) last_ns: u64,
}

/// The workers, by what they wrote down themselves.
pub(crate) fn workers(signs: &[Sign]) -> Vec<Worker> {
    let mut workers: BTreeMap<(u64, u32, i32), Worker> = BTreeMap::new();
    // What is seen of a worker from outside is no sign of its life.
    for sign in signs.iter().filter(|sign| sign.event != "seen") {
        let at_ns = sign.monotonic_ns;
        let key = (sign.generation, sign.rank, sign.pid);
        let worker = workers.entry(key).or_insert_with(|| Worker {
            generation: sign.generation,
            rank: sign.rank,
            pid: sign.pid,
            node: sign.node.clone(),
            first_ns: at_ns,
            last_ns: at_ns,
        });
        worker.first_ns = worker.first_ns.min(at_ns);
        worker.last_ns = worker.last_ns.max(at_ns);
    }
    workers.into_values().collect()
}

/// J-1.
pub(super) fn no_twins(workers: &[Worker]) -> Check {
    let mut wrong = Vec::new();
    for (index, one) in workers.iter().enumerate() {
        let others = workers.iter().skip(index + 1);
        let twins = others.filter(|other| {
            other.generation == one.generation && other.rank == one.rank && other.pid != one.pid
        });
        wrong.extend(twins.map(|other| {
            format!(
                "generation {} had two workers of rank {}: {} on {} and {} on {}",
                one.generation, one.rank, one.pid, one.node, other.pid, other.node
            )
        }));
    }
    Check::of(
        "J-1",
        &wrong,
        "of no rank were there two workers in a generation",
    )
}

/// J-2, by what the workers wrote and by what was seen from outside.
pub(super) fn no_overlap(workers: &[Worker], samples: &[Sample], at_most_ms: u64) -> Check {
    let mut births: BTreeMap<u64, u64> = BTreeMap::new();
    for worker in workers {
        let birth = births.entry(worker.generation).or_insert(worker.first_ns);
        *birth = (*birth).min(worker.first_ns);
    }
    let newer_birth = |generation: u64| {
        let newer = births.range(generation + 1..);
        newer.map(|(newer, birth)| (*birth, *newer)).min()
    };
    let mut longest_ms = 0;
    let mut wrong = Vec::new();
    let mut judge = |who: String, generation: u64, last_ns: u64| {
        let Some((birth, newer)) = newer_birth(generation) else {
            return;
        };
        let overlap_ms = last_ns.saturating_sub(birth) / 1_000_000;
        if last_ns <= birth {
            return;
        }
        longest_ms = longest_ms.max(overlap_ms);
        if overlap_ms > at_most_ms || at_most_ms == 0 {
            wrong.push(format!(
                "{who} of generation {generation} still ran {overlap_ms} ms after the first worker of generation {newer}"
            ));
        }
    };
    for worker in workers {
        let who = format!(
            "rank {} on {} (process {})",
            worker.rank, worker.node, worker.pid
        );
        judge(who, worker.generation, worker.last_ns);
    }
    for sample in samples {
        let who = format!(
            "process {} ({}) with rank {}",
            sample.pid, sample.name, sample.rank
        );
        judge(who, sample.generation, sample.last_ns);
    }
    let right = match longest_ms {
        0 => "no worker ran beside one of a newer generation".to_owned(),
        ms => format!(
            "a worker ran {ms} ms beside one of a newer generation, which this scenario allows"
        ),
    };
    Check::of("J-2", &wrong, right)
}

/// J-4.
pub(super) fn ranks_agree(signs: &[Sign]) -> Check {
    let mut sizes: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    let mut ranks: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    for sign in signs {
        sizes
            .entry(sign.generation)
            .or_default()
            .extend(sign.world_size);
        if sign.event == "step" {
            ranks.entry(sign.generation).or_default().insert(sign.rank);
        }
    }
    let mut wrong = Vec::new();
    for (generation, sizes) in &sizes {
        if sizes.len() > 1 {
            wrong.push(format!(
                "the workers of generation {generation} thought of different sizes: {sizes:?}"
            ));
        }
        let (Some(size), Some(ranks)) = (sizes.first(), ranks.get(generation)) else {
            continue;
        };
        if ranks.iter().any(|rank| rank >= size) {
            wrong.push(format!(
                "generation {generation} of {size} workers has ranks {ranks:?}"
            ));
        }
    }
    Check::of(
        "J-4",
        &wrong,
        "the workers of each generation agree on how many they are",
    )
}
