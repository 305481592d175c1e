// SPDX-License-Identifier: Apache-2.0
//! The keeper's own look at the training's progress, for the times when no agent tells it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use regex::bytes::Regex;
use steadfast_health::Lockstep;
use steadfast_health::progress_page::{Page, PageDirectory, PageStep};

use super::protocol::Progress;
use super::workers::Worker;
use crate::clock;
use crate::hook::Hook;
use crate::output::Peeker;

/// Between two looks. A step is taken for as old as the look before it, so this shortens the witness window.
const EVERY: Duration = Duration::from_millis(100);
/// File systems that answer from this machine alone: tmpfs, ramfs, ext4, XFS, Btrfs, overlayfs, ZFS. The keeper never waits
/// for another one.
const LOCAL: [u64; 7] = [
    0x0102_1994,
    0x8584_58f6,
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x794c_7630,
    0x2fc1_2fc1,
];

/// What is known about the steps of the newest generation on this node.
#[derive(Debug)]
pub(super) struct Lookout {
    expression: Option<Regex>,
    /// Where the workers' progress pages are, if they can be read without waiting: many programs print on one rank only.
    hook: Option<Hook>,
    /// Opened at the first look, by local rank.
    pages: BTreeMap<u32, PageDirectory>,
    /// Made at the first look: a keeper that never looks needs none.
    peeker: Option<Peeker>,
    generation: u64,
    lockstep: Lockstep,
    looked_at: Instant,
    /// An agent was heard: it has read what we would have looked at.
    disturbed: bool,
}

impl Lookout {
    /// `progress_regex` is the user's expression for steps, checked when the settings were made; the hook's pages are below
    /// `runtime_dir`, if the workers have it.
    pub(super) fn new(
        progress_regex: Option<&str>,
        runtime_dir: Option<&Path>,
        now: Instant,
    ) -> Lookout {
        Lookout {
            hook: runtime_dir.filter(|path| is_local(path)).map(Hook::new),
            pages: BTreeMap::new(),
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
        self.pages.clear();
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

    /// Looks at the pages and the output of the generation. Returns when the newest synchronised step was made at the earliest, in
    /// nanoseconds of the monotonic clock, if one has come to light.
    pub(super) fn look(&mut self, workers: &mut [Worker], now: Instant) -> Option<u64> {
        self.looked_at = now;
        let disturbed = std::mem::take(&mut self.disturbed);
        if self.peeker.is_none() {
            // Out of descriptors: the lease alone decides then.
            self.peeker = Peeker::new().ok();
        }
        let mut newest = None;
        for worker in workers {
            if worker.generation != self.generation {
                continue;
            }
            if let Some(shown) = self.shown(worker.local_rank) {
                // As for the agent, what a page says comes before what is printed, which may count something else.
                let made = self
                    .lockstep
                    .observe(worker.local_rank, shown.number, shown.at_ns);
                newest = made.map(|step| step.at_ns).or(newest);
                continue;
            }
            let Some(peeker) = self.peeker.as_mut() else {
                continue;
            };
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

    /// The step that a worker's page shows.
    fn shown(&mut self, local_rank: u32) -> Option<PageStep> {
        let path = self.hook.as_ref()?.pages_of(self.generation, local_rank);
        let directory = self
            .pages
            .entry(local_rank)
            .or_insert_with(|| PageDirectory::new(path));
        // What is wrong with pages is for the agent to tell.
        let _notes = directory.scan();
        let look = directory.look(clock::monotonic_ns());
        Page::leading(&look.pages)?.step
    }
}

/// Whether nobody else has to answer for what is read there.
fn is_local(path: &Path) -> bool {
    rustix::fs::statfs(path)
        .ok()
        .and_then(|found| u64::try_from(found.f_type).ok())
        .is_some_and(|kind| LOCAL.contains(&kind))
}
