// SPDX-License-Identifier: Apache-2.0
//! Many schedules, on every core, and what came of them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Options;
use super::checker::Violation;
use super::schedule::Schedule;
use super::world::{Ending, World};

/// A schedule that broke a rule.
#[derive(Debug, Clone)]
pub(super) struct Broken {
    pub(super) seed: u64,
    pub(super) violation: Violation,
}

/// What came of a number of schedules.
#[derive(Debug, Default)]
pub(super) struct Campaign {
    schedules: u64,
    first_seed: u64,
    took: Duration,
    events: u64,
    generations: u64,
    outcomes: BTreeMap<String, u64>,
    landed: BTreeMap<&'static str, u64>,
    /// The one with the lowest seed.
    pub(super) broken: Option<Broken>,
}

impl Campaign {
    /// Runs the schedules of the seeds from `options.seed` on, until one breaks a rule.
    pub(super) fn run(options: &Options) -> Self {
        let began = Instant::now();
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let next = AtomicU64::new(0);
        let total = Mutex::new(Self::default());
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| run_some(options, &next, &total));
            }
        });
        let mut total = total
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        total.first_seed = options.seed;
        total.took = began.elapsed();
        total
    }

    /// Writes the summary: a few lines.
    pub(super) fn report(&self, out: &mut impl Write) -> io::Result<()> {
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
                if self.broken.as_ref().is_none_or(|broken| seed < broken.seed) {
                    self.broken = Some(Broken { seed, violation });
                }
            }
        }
    }
}

/// Takes seeds until there are none left or a rule is broken. Seeds are taken in order, so the
/// lowest one that breaks a rule is always among those that were run.
fn run_some(options: &Options, next: &AtomicU64, total: &Mutex<Campaign>) {
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= options.schedules {
            return;
        }
        let seed = options.seed.wrapping_add(index);
        let (ending, _) =
            World::new(Schedule::draw(seed, options.nodes), options.plant, false).run();
        if ending.is_err() {
            next.store(options.schedules, Ordering::Relaxed);
        }
        let mut total = total
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        total.take_in(seed, ending);
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
