// SPDX-License-Identifier: Apache-2.0
//! What the leader knows about how far a generation is, beside what the store says.
//!
//! In synchronous training no rank makes a step without the others. So a step anywhere proves that all workers live, and
//! once one of them is dead, or one node's steps have stopped, no other can have come further than one more step.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::lease::{CLOCK_DRIFT, TIME_TO_KILL};
use crate::{Generation, Instant, LastStep, NodeName, OwnSteps};

/// Progress of one generation. Nothing in it outlives the generation.
#[derive(Debug, Default)]
pub(super) struct Progress {
    generation: Generation,
    /// The last step that anybody told of, and when it was heard of.
    heard: Option<(u64, Instant)>,
    /// The steps of this node's own workers. No other node can be further than one more than the last of them.
    own: Option<OwnSteps>,
    /// The same as told by members that have stopped: a time after which one of them has made no step, the earliest.
    told: Option<Instant>,
    /// How long the last steps took that anybody told of.
    pace: Option<Pace>,
    /// How long one step can take, by what was seen of this node's workers, or as told by members that have stopped.
    one_step: Duration,
    /// When it was first seen that a worker of the generation was dead.
    ended: Option<Instant>,
    /// Nodes whose agents have fallen silent.
    silent: BTreeSet<NodeName>,
}

/// The time that the last steps took, older ones counting less and less. Time and steps are added up apart: two nodes tell of
/// the same step, or of one after the other, within a moment, and such a gap must not count for as much as a long one.
#[derive(Debug, Default, Clone, Copy)]
struct Pace {
    time: Duration,
    /// In [`Pace::PARTS`]ths.
    steps: u64,
}

impl Pace {
    const PARTS: u64 = 1024;

    fn note(&mut self, steps: u64, time: Duration) {
        // Slowly, so that an evaluation does not count for much.
        self.time = (self.time * 7 / 8).saturating_add(time);
        let older = self.steps / 8 * 7;
        self.steps = older.saturating_add(steps.saturating_mul(Self::PARTS));
    }

    fn of_one_step(self) -> Duration {
        let nanos = self.time.as_nanos() * u128::from(Self::PARTS) / u128::from(self.steps.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Progress {
    pub(super) fn begin(&mut self, generation: Generation) {
        if generation > self.generation {
            let silent = std::mem::take(&mut self.silent);
            *self = Self {
                generation,
                silent,
                ..Self::default()
            };
        }
    }

    pub(super) fn note_step(&mut self, generation: Generation, step: u64, at: Instant, own: bool) {
        self.begin(generation);
        if generation < self.generation {
            return;
        }
        if own {
            self.note_own(OwnSteps::and(self.own, step, at));
        }
        if self.heard.is_none_or(|(before, _)| step > before) {
            self.note_pace(step, at);
            self.heard = Some((step, at));
        }
    }

    /// Takes in what was seen of this node's own workers before this leader came to be.
    pub(super) fn inherit(&mut self, generation: Generation, steps: OwnSteps) {
        self.begin(generation);
        if generation == self.generation {
            self.note_own(steps);
            self.heard = self.heard.or(Some((steps.step, steps.at)));
        }
    }

    fn note_own(&mut self, steps: OwnSteps) {
        self.one_step = self.one_step.max(steps.one_step);
        self.own = Some(steps);
    }

    /// Takes in what a member says about its last step now that its workers are gone; it has said so by `now`.
    pub(super) fn note_last_step(&mut self, now: Instant, last: LastStep) {
        let age = Duration::from_millis(last.age_ms);
        // Its clock may run faster than ours.
        let made_by = now - age.saturating_sub(age / CLOCK_DRIFT);
        self.told = Some(self.told.map_or(made_by, |before| before.min(made_by)));
        let one_step = Duration::from_millis(last.one_step_ms);
        self.one_step = self.one_step.max(one_step);
    }

    fn note_pace(&mut self, step: u64, at: Instant) {
        let Some((before, since)) = self.heard else {
            return;
        };
        let pace = self.pace.get_or_insert_default();
        pace.note(step - before, at.saturating_since(since));
    }

    pub(super) fn note_silence(&mut self, node: &NodeName, silent: bool) {
        if silent {
            self.silent.insert(node.clone());
        } else {
            self.silent.remove(node);
        }
    }

    pub(super) fn note_death(&mut self, generation: Generation, now: Instant) {
        if generation == self.generation {
            self.ended.get_or_insert(now);
        }
    }

    pub(super) fn is_silent(&self, node: &NodeName) -> bool {
        self.silent.contains(node)
    }

    /// The newest step that anybody told of.
    pub(super) fn newest(&self) -> Option<u64> {
        self.heard.map(|(step, _)| step)
    }

    /// A step that no worker can have reached within `delay` from now.
    pub(super) fn out_of_reach(&self, now: Instant, delay: Duration) -> Option<u64> {
        let (newest, at) = self.heard?;
        let pace = self.pace.map_or(delay, Pace::of_one_step);
        let pace = pace.max(Duration::from_micros(100));
        let time = (now.saturating_since(at).min(pace) + delay) * 5 / 4;
        let steps = time.as_nanos() / pace.as_nanos();
        Some(newest + 1 + u64::try_from(steps).unwrap_or(u64::MAX / 2))
    }

    /// When somebody last told of a new step.
    pub(super) fn heard_at(&self) -> Option<Instant> {
        self.heard.map(|(_, at)| at)
    }

    /// A time after which no worker of the generation made a step, but for one that was on its way; `None` while they may
    /// go on for all that is known. What other nodes told of proves nothing here: they may have stopped telling.
    pub(super) fn over_since(&self) -> Option<Instant> {
        let own = self.own.map(|steps| steps.at);
        own.into_iter().chain(self.told).chain(self.ended).min()
    }

    /// From when on none of the workers of a lost node can run any more, where steps vouch for them for as long as `window`;
    /// `None` while they may make steps for all that is known.
    pub(super) fn gone_since(&self, window: Duration) -> Option<Instant> {
        let vouched = window + self.one_step(window);
        // The clock of the lost node may run slower than this one.
        let margin = TIME_TO_KILL + vouched / CLOCK_DRIFT;
        self.over_since().map(|over| over + vouched + margin)
    }

    /// How long the one step can take that a lost node may have been about to make.
    fn one_step(&self, window: Duration) -> Duration {
        if self.one_step > Duration::ZERO {
            self.one_step.min(window)
        } else {
            window
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn only_own_steps_and_deaths_bound_what_others_can_have_done() {
        let mut progress = Progress::default();
        progress.note_step(Generation(1), 5, at(10), false);
        assert_eq!(
            (progress.heard_at(), progress.over_since()),
            (Some(at(10)), None)
        );
        progress.note_step(Generation(1), 4, at(11), true);
        progress.note_step(Generation(1), 5, at(14), true);
        assert_eq!(progress.heard_at(), Some(at(10)));
        assert_eq!(progress.over_since(), Some(at(14)));
        assert_eq!(
            progress.one_step(Duration::from_secs(9)),
            Duration::from_secs(6)
        );
        progress.note_death(Generation(1), at(12));
        progress.note_death(Generation(1), at(13));
        assert_eq!(progress.over_since(), Some(at(12)));
    }

    #[test]
    fn what_was_seen_before_leading_and_what_members_tell_at_their_end_count_as_much() {
        let window = Duration::from_secs(9);
        let mut progress = Progress::default();
        let steps = OwnSteps {
            step: 5,
            at: at(10),
            one_step: Duration::from_secs(4),
        };
        progress.inherit(Generation(2), steps);
        progress.note_death(Generation(2), at(12));
        assert_eq!(progress.newest(), Some(5));
        assert_eq!(progress.over_since(), Some(at(10)));
        assert_eq!(progress.one_step(window), Duration::from_secs(4));
        progress.begin(Generation(3));
        progress.inherit(Generation(2), steps);
        assert_eq!(progress.over_since(), None, "of an older generation");
        progress.note_death(Generation(3), at(20));
        assert_eq!(progress.one_step(window), window);
        let last = LastStep {
            age_ms: 5_000,
            one_step_ms: 6_000,
        };
        progress.note_last_step(at(20), last);
        let drift = Duration::from_millis(50);
        assert_eq!(progress.over_since(), Some(at(15) + drift));
        assert_eq!(progress.one_step(window), Duration::from_secs(6));
        let younger = LastStep { age_ms: 0, ..last };
        progress.note_last_step(at(21), younger);
        assert_eq!(progress.over_since(), Some(at(15) + drift));
    }

    #[test]
    fn steps_that_two_nodes_tell_of_in_the_same_moment_are_no_fast_ones() {
        let milliseconds = |at| Instant::from_nanos(at * 1_000_000);
        let told = |notes: &[(u64, u64, bool)]| {
            let mut progress = Progress::default();
            for &(step, at, own) in notes {
                progress.note_step(Generation(1), step, milliseconds(at), own);
            }
            let (_, last, _) = *notes.last().unwrap();
            let delay = Duration::from_secs(3);
            let newest = progress.newest().unwrap();
            progress.out_of_reach(milliseconds(last), delay).unwrap() - newest
        };
        // Steps of 50 ms: 60 of them are made within the delay, 75 in five quarters of it.
        let alone = told(&[(1, 0, true), (2, 50, true), (4, 150, true), (6, 250, true)]);
        let beside = told(&[(1, 0, false), (2, 1, true), (4, 101, true), (6, 201, true)]);
        let often = told(&[
            (1, 0, true),
            (9, 400, true),
            (10, 401, false),
            (19, 900, true),
        ]);
        assert_eq!(alone, 76);
        assert!((70..=112).contains(&beside), "{beside}");
        assert!((70..=85).contains(&often), "{often}");
    }

    #[test]
    fn a_step_out_of_reach_is_as_far_away_as_the_delay_is_long() {
        let mut progress = Progress::default();
        assert_eq!(progress.out_of_reach(at(1), Duration::from_secs(1)), None);
        progress.note_step(Generation(1), 10, at(10), true);
        progress.note_step(Generation(1), 20, at(20), false);
        // One is on its way: half of it is done.
        let now = at(20) + Duration::from_millis(500);
        let soon = Duration::from_millis(100);
        assert_eq!(progress.out_of_reach(now, soon), Some(21));
        assert_eq!(progress.out_of_reach(now, soon * 5), Some(22));
        assert_eq!(
            progress.out_of_reach(at(90), Duration::from_secs(3)),
            Some(26)
        );
    }

    #[test]
    fn a_new_generation_begins_with_nothing() {
        let mut progress = Progress::default();
        progress.note_step(Generation(2), 5, at(10), true);
        progress.note_step(Generation(1), 9, at(11), true);
        assert_eq!(progress.heard_at(), Some(at(10)));
        progress.note_silence(&"a".into(), true);
        progress.begin(Generation(3));
        assert_eq!((progress.heard_at(), progress.over_since()), (None, None));
        assert!(progress.is_silent(&"a".into()));
    }
}
