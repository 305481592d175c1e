// SPDX-License-Identifier: Apache-2.0
//! When a generation has gone without a step for too long.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::allowance::{Activity, StallSettings};
use super::pace::Pace;
use crate::{Instant, LocalRank};

/// Watches the ranks of one node in one generation.
///
/// What counts is a step that no rank had made before: one rank that hangs holds up all the others within a step. Ranks
/// that train on their own, without waiting for each other, are not told apart: as long as one of them moves, all is well.
#[derive(Debug, Clone, Default)]
pub struct StallWatch {
    settings: StallSettings,
    ranks: BTreeMap<LocalRank, Rank>,
    newest: Option<(u64, Instant)>,
    /// When somebody last did something, be it only the beginning of another phase.
    moved: Instant,
    /// What has gone on since the newest step, beside training.
    during: BTreeSet<Activity>,
    pace: Pace,
}

#[derive(Debug, Clone, Copy, Default)]
struct Rank {
    activity: Option<Activity>,
    changed: Option<Instant>,
    ended: bool,
}

/// How a generation is getting on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallState {
    /// Neither a step nor a phase was ever seen, so nothing can be said.
    NoSignal,
    /// Nothing is overdue before this instant.
    Moving {
        /// When it will be.
        due: Instant,
    },
    /// No step has come for too long.
    Stalled(Stall),
}

/// A stall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// When something was last seen to move.
    pub since: Instant,
    /// How long it may take until the next step.
    pub bound: Duration,
    /// What is going on: the slowest of what the ranks are busy with.
    pub activity: Activity,
    /// The newest step.
    pub step: Option<u64>,
    /// How long a step usually takes, if that is known.
    pub typical: Option<Duration>,
}

impl StallWatch {
    /// A watch for workers that were started at that instant.
    pub fn new(settings: StallSettings, started: Instant) -> Self {
        Self {
            settings,
            ranks: BTreeMap::new(),
            newest: None,
            moved: started,
            during: BTreeSet::new(),
            pace: Pace::default(),
        }
    }

    /// The rank takes part.
    pub fn joins(&mut self, rank: LocalRank) {
        self.ranks.entry(rank).or_default();
    }

    /// A rank has made a step at about that instant.
    pub fn stepped(&mut self, rank: LocalRank, step: u64, at: Instant) {
        self.ranks.entry(rank).or_default();
        let before = self.newest;
        if before.is_some_and(|(newest, _)| step <= newest) {
            return;
        }
        if let Some((_, earlier)) = before {
            let during: Vec<Activity> = self.during.iter().copied().collect();
            self.pace.note(at.saturating_since(earlier), &during);
        }
        self.newest = Some((step, at));
        self.moved = self.moved.max(at);
        self.during = self.busy();
    }

    /// Steps are counted in another way from now on, so that older numbers mean nothing.
    pub fn recount(&mut self) {
        self.newest = None;
    }

    /// What a rank is busy with, since when, and when it last reported a step or a part of one.
    pub fn shows(&mut self, rank: LocalRank, activity: Activity, since: Instant, changed: Instant) {
        let rank = self.ranks.entry(rank).or_default();
        let is_new = rank.activity != Some(activity);
        rank.activity = Some(activity);
        if is_new {
            self.moved = self.moved.max(since);
        }
        if rank.changed.is_none_or(|before| changed > before) {
            rank.changed = Some(changed);
            self.moved = self.moved.max(changed);
        }
        if activity != Activity::Train {
            self.during.insert(activity);
        }
    }

    /// The rank has ended: nothing more is expected of it.
    pub fn ended(&mut self, rank: LocalRank) {
        self.ranks.entry(rank).or_default().ended = true;
    }

    /// How long a step usually takes, once that is known.
    pub fn typical(&self) -> Option<Duration> {
        self.pace.typical()
    }

    /// How it is at that instant.
    pub fn judge(&self, now: Instant) -> StallState {
        let has_signal = self.newest.is_some()
            || self.ranks.values().any(|rank| rank.activity.is_some())
            || self.settings.fixed.contains_key(&Activity::Init);
        if !has_signal || self.ranks.values().all(|rank| rank.ended) {
            return StallState::NoSignal;
        }
        let (bound, activity) = self.bound();
        let due = self.moved.saturating_add(bound);
        if now < due {
            return StallState::Moving { due };
        }
        StallState::Stalled(Stall {
            since: self.moved,
            bound,
            activity,
            step: self.newest.map(|(step, _)| step),
            typical: self.typical(),
        })
    }

    /// The most generous of the bounds of what has gone on since the newest step.
    fn bound(&self) -> (Duration, Activity) {
        let mut going_on = self.during.clone();
        going_on.extend(self.busy());
        // Somebody who has shown no step yet may come to it any time; whoever has is past the beginning.
        if self.newest.is_some() {
            going_on.remove(&Activity::Init);
        }
        let base = if self.newest.is_none() {
            Activity::Init
        } else {
            Activity::Train
        };
        going_on
            .into_iter()
            .chain([base])
            .map(|activity| (self.allowed(activity), activity))
            .max_by_key(|&(bound, _)| bound)
            .unwrap_or((base.default_allowance(), base))
    }

    fn allowed(&self, activity: Activity) -> Duration {
        if let Some(fixed) = self.settings.fixed.get(&activity) {
            return *fixed;
        }
        if activity != Activity::Train {
            return self.pace.phase_bound(activity);
        }
        let blind = self.ranks.values().all(|rank| rank.activity.is_none());
        self.pace
            .plain_bound(blind)
            .unwrap_or(activity.default_allowance())
    }

    /// What living ranks are busy with, beside training.
    fn busy(&self) -> BTreeSet<Activity> {
        self.ranks
            .values()
            .filter(|rank| !rank.ended)
            .filter_map(|rank| rank.activity)
            .filter(|&activity| activity != Activity::Train)
            .collect()
    }
}

#[cfg(test)]
mod tests;
