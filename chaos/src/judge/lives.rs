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
///
/// A whole machine that was paused wakes with living workers for the moment that its keeper needs; where a scenario
/// allows so many milliseconds for that, they count from the first sign of life beside the newer generation on.
pub(super) fn no_overlap(signs: &[Sign], samples: &[Sample], at_most_ms: u64) -> Check {
    let workers = workers(signs);
    let mut births: BTreeMap<u64, u64> = BTreeMap::new();
    for worker in &workers {
        let birth = births.entry(worker.generation).or_insert(worker.first_ns);
        *birth = (*birth).min(worker.first_ns);
    }
    let newer_birth = |generation: u64| {
        let newer = births.range(generation + 1..);
        newer.map(|(newer, birth)| (*birth, *newer)).min()
    };
    let mut longest_ms = None;
    let mut wrong = Vec::new();
    for worker in &workers {
        let Some((birth, newer)) = newer_birth(worker.generation) else {
            continue;
        };
        let beside = signs.iter().filter(|sign| {
            let of_it = sign.pid == worker.pid && sign.generation == worker.generation;
            of_it && sign.event != "seen" && sign.monotonic_ns > birth
        });
        let Some(first_ns) = beside.map(|sign| sign.monotonic_ns).min() else {
            continue;
        };
        let ran_ms = (worker.last_ns - first_ns) / 1_000_000;
        longest_ms = longest_ms.max(Some(ran_ms));
        if ran_ms > at_most_ms || at_most_ms == 0 {
            wrong.push(format!(
                "rank {} of generation {} on {} (process {}) ran {ran_ms} ms beside generation {newer}, {} ms after that had \
                 begun",
                worker.rank,
                worker.generation,
                worker.node,
                worker.pid,
                (first_ns - birth) / 1_000_000
            ));
        }
    }
    for sample in samples {
        let Some((birth, newer)) = newer_birth(sample.generation) else {
            continue;
        };
        let by_itself = at_most_ms > 0 && workers.iter().any(|worker| worker.pid == sample.pid);
        if sample.last_ns > birth && !by_itself {
            wrong.push(format!(
                "process {} ({}) with rank {} of generation {} was there {} ms after generation {newer} had begun",
                sample.pid,
                sample.name,
                sample.rank,
                sample.generation,
                (sample.last_ns - birth) / 1_000_000
            ));
        }
    }
    let right = match longest_ms {
        None => "no worker ran beside one of a newer generation".to_owned(),
        Some(ms) => {
            format!(
                "a worker ran {ms} ms beside one of a newer generation, which this scenario allows"
            )
        }
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
