// SPDX-License-Identifier: Apache-2.0
//! What the leader knows about how far a generation is, beside what the store says.
//!
//! In synchronous training no rank makes a step without the others. So a step anywhere proves that all workers live, and
//! once one of them is dead, or one node's steps have stopped, no other can have come further than one more step.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::{Generation, Instant, NodeName};

/// Progress of one generation. Nothing in it outlives the generation.
#[derive(Debug, Default)]
pub(super) struct Progress {
    generation: Generation,
    /// The last step that anybody told of, and when it was heard of.
    heard: Option<(u64, Instant)>,
    /// The last step of this node's own workers, and when it was seen. No other node can be further than one more.
    own: Option<(u64, Instant)>,
    /// Usual time between two steps that anybody told of.
    pace: Option<Duration>,
    /// The longest time between two steps of this node's own workers.
    longest_gap: Duration,
    /// When it was first seen that a worker of the generation was dead.
    ended: Option<Instant>,
    /// Nodes whose agents have fallen silent.
    silent: BTreeSet<NodeName>,
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
        if own && self.own.is_none_or(|(before, _)| step > before) {
            if let Some((_, before)) = self.own {
                self.longest_gap = self.longest_gap.max(at - before);
            }
            self.own = Some((step, at));
        }
        if self.heard.is_none_or(|(before, _)| step > before) {
            self.note_pace(step, at);
            self.heard = Some((step, at));
        }
    }

    fn note_pace(&mut self, step: u64, at: Instant) {
        let Some((before, since)) = self.heard else {
            return;
        };
        let steps = u32::try_from(step - before).unwrap_or(u32::MAX);
        let last = at.saturating_since(since) / steps.max(1);
        self.pace = Some(match self.pace {
            // Slowly, so that an evaluation does not count for much.
            Some(usual) => (usual * 7 + last) / 8,
            None => last,
        });
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
        let pace = self.pace.unwrap_or(delay).max(Duration::from_micros(100));
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
        self.own
            .map(|(_, at)| at)
            .into_iter()
            .chain(self.ended)
            .min()
    }

    /// How long that one step can take: twice as long as any that was seen, since it is one that something has disturbed;
    /// else `window`.
    pub(super) fn one_step(&self, window: Duration) -> Duration {
        match self.own {
            Some(_) if self.longest_gap > Duration::ZERO => (self.longest_gap * 2).min(window),
            _ => window,
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
