// SPDX-License-Identifier: Apache-2.0
//! Many schedules, on every core, and what came of them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::checker::Violation;
use crate::schedule::Schedule;
use crate::world::{Ending, World};

/// Schedules that a thread takes at once.
const CHUNK: u64 = 16;

/// A schedule that broke a rule.
#[derive(Debug, Clone)]
pub(crate) struct Broken {
    pub(crate) seed: u64,
    pub(crate) violation: Violation,
}

/// What came of a number of schedules.
#[derive(Debug, Default)]
pub(crate) struct Campaign {
    schedules: u64,
    first_seed: u64,
    took: Duration,
    events: u64,
    generations: u64,
    outcomes: BTreeMap<String, u64>,
    landed: BTreeMap<&'static str, u64>,
    /// The one with the lowest seed.
    pub(crate) broken: Option<Broken>,
}

impl Campaign {
    /// Runs so many schedules, of the seeds from `seed` on, until one breaks a rule.
    pub(crate) fn run(schedules: u64, seed: u64, nodes: Option<u32>) -> Self {
        let began = Instant::now();
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let next = AtomicU64::new(0);
        let end = AtomicU64::new(schedules);
        let total = Mutex::new(Self::default());
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let own = run_some(seed, nodes, &next, &end);
                    let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                    total.add(own);
                });
            }
        });
        let mut total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
        total.first_seed = seed;
        total.took = began.elapsed();
        total
    }

    /// Writes the summary: a few lines.
    pub(crate) fn report(&self, out: &mut impl Write) -> io::Result<()> {
        let seconds = self.took.as_secs_f64().max(1e-6);
        let count = u32::try_from(self.schedules).unwrap_or(u32::MAX);
        writeln!(
            out,
            "{} schedules from seed {} in {seconds:.1} s ({:.0} a second), {} events, {} generations",
            self.schedules,
            self.first_seed,
            f64::from(count) / seconds,
            self.events,
            self.generations
        )?;
        writeln!(out, "jobs: {}", list(self.outcomes.iter()))?;
        writeln!(
            out,
            "faults that hit something: {}",
            list(self.landed.iter())
        )
    }

    fn take_in(&mut self, seed: u64, ending: Result<Ending, Violation>) {
        self.schedules += 1;
        match ending {
            Ok(ending) => {
                self.events += ending.events;
                self.generations += ending.generations;
                *self.outcomes.entry(ending.outcome).or_default() += 1;
                for (name, count) in ending.landed {
                    *self.landed.entry(name).or_default() += count;
                }
            }
            Err(violation) => {
                *self.outcomes.entry("broken".to_owned()).or_default() += 1;
                self.note(Broken { seed, violation });
            }
        }
    }

    fn note(&mut self, broken: Broken) {
        if self
            .broken
            .as_ref()
            .is_none_or(|old| broken.seed < old.seed)
        {
            self.broken = Some(broken);
        }
    }

    fn add(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.events += other.events;
        self.generations += other.generations;
        for (outcome, count) in other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        for (name, count) in other.landed {
            *self.landed.entry(name).or_default() += count;
        }
        if let Some(broken) = other.broken {
            self.note(broken);
        }
    }
}

/// Takes seeds until there are none left or a rule is broken. Seeds are taken in order, so the lowest one that breaks a
/// rule is always among those that were run.
fn run_some(seed: u64, nodes: Option<u32>, next: &AtomicU64, end: &AtomicU64) -> Campaign {
    let mut own = Campaign::default();
    loop {
        let chunk = if nodes.is_some_and(|nodes| nodes > 100) {
            1
        } else {
            CHUNK
        };
        let first = next.fetch_add(chunk, Ordering::Relaxed);
        for index in first..first + chunk {
            if index >= end.load(Ordering::Relaxed) {
                return own;
            }
            let seed = seed.wrapping_add(index);
            let (ending, _) = World::new(Schedule::draw(seed, nodes), false).run();
            if ending.is_err() {
                // Those before it are run to find the first one.
                end.fetch_min(index, Ordering::Relaxed);
            }
            own.take_in(seed, ending);
        }
    }
}

fn list<'a, K: ToString + 'a>(counts: impl Iterator<Item = (&'a K, &'a u64)>) -> String {
    let parts: Vec<_> = counts
        .map(|(name, count)| format!("{} {count}", name.to_string()))
        .collect();
    if parts.is_empty() {
        "none".to_owned()
    } else {
        parts.join(", ")
    }
}
