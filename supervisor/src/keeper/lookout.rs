// SPDX-License-Identifier: Apache-2.0
//! The keeper's own look at the training's progress, for the times when no agent tells it.

use std::time::{Duration, Instant};

use regex::bytes::Regex;
use steadfast_health::Lockstep;

use super::protocol::Progress;
use super::workers::Worker;
use crate::output::Peeker;

/// Between two looks. A step is taken for as old as the look before it, so this shortens the witness window.
const EVERY: Duration = Duration::from_millis(100);

/// What is known about the steps of the newest generation on this node.
#[derive(Debug)]
pub(super) struct Lookout {
    expression: Option<Regex>,
    /// Made at the first look: a keeper that never looks needs none.
    peeker: Option<Peeker>,
    generation: u64,
    lockstep: Lockstep,
    looked_at: Instant,
    /// An agent was heard: it has read what we would have looked at.
    disturbed: bool,
}

impl Lookout {
    /// `progress_regex` is the user's expression for steps, checked when the settings were made.
    pub(super) fn new(progress_regex: Option<&str>, now: Instant) -> Lookout {
        Lookout {
            expression: progress_regex.and_then(|text| Regex::new(text).ok()),
            peeker: None,
            generation: 0,
            lockstep: Lockstep::default(),
            looked_at: now,
            disturbed: true,
        }
    }

    /// A new generation is started: nothing is known of its steps.
    pub(super) fn begin(&mut self, generation: u64) {
        self.generation = generation;
        self.lockstep = Lockstep::default();
    }

    /// An agent has said how far the ranks are. From here on, a step counts when all of these have made it.
    pub(super) fn told(&mut self, progress: &Progress) {
        if progress.generation != self.generation {
            return;
        }
        for &local_rank in &progress.local_ranks {
            let _no_news = self
                .lockstep
                .observe(local_rank, progress.step, progress.at_ns);
        }
    }

    /// An agent was heard.
    pub(super) fn disturb(&mut self) {
        self.disturbed = true;
    }

    /// When the next look is due, if looks are wanted, the first one not before `begin`. From then on they go on until an
    /// agent is heard: only what comes between two of them has a date.
    pub(super) fn due(&self, begin: Option<Instant>) -> Instant {
        let next = self.looked_at + EVERY;
        begin
            .filter(|_| self.disturbed)
            .map_or(next, |begin| begin.max(next))
    }

    /// Looks at the output of the generation. Returns when the newest synchronised step was made at the earliest, in
    /// nanoseconds of the monotonic clock, if one has come to light.
    pub(super) fn look(&mut self, workers: &mut [Worker], now: Instant) -> Option<u64> {
        self.looked_at = now;
        let disturbed = std::mem::take(&mut self.disturbed);
        if self.peeker.is_none() {
            // Out of descriptors: the lease alone decides then.
            self.peeker = Peeker::new().ok();
        }
        let peeker = self.peeker.as_mut()?;
        let mut newest = None;
        for worker in workers {
            if worker.generation != self.generation {
                continue;
            }
            for stream in &mut worker.streams {
                if disturbed {
                    stream.sight.forget();
                }
                let expression = self.expression.as_ref();
                if let Some(found) = stream.sight.look(&stream.output, peeker, expression) {
                    let made = self
                        .lockstep
                        .observe(worker.local_rank, found.step, found.at_ns);
                    newest = made.map(|step| step.at_ns).or(newest);
                }
            }
        }
        newest
    }
}
