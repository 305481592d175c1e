// SPDX-License-Identifier: Apache-2.0
//! Whether the ranks of a node get on together, and how fast.
//!
//! In synchronous training no rank gets further than the others by more than the step that it is in. A step that all
//! ranks have reached shows that every worker was alive when it was made.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Steps that must have been seen before anything is said about the ranks.
const ENOUGH_STEPS: u64 = 3;
/// Gaps that the typical one is taken from.
const RECENT_GAPS: usize = 32;
/// No window is shorter: what goes on in the machine takes that long now and then.
const SHORTEST_WINDOW: Duration = Duration::from_secs(2);

/// A step that all ranks have reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Synchronised {
    /// The step.
    pub step: u64,
    /// When the last of them reached it, in nanoseconds on the clock of the observations.
    pub at_ns: u64,
}

/// The steps of the ranks of one generation on one node.
///
/// Ranks that never tell a step are left out: many programs print on one rank only, and that one waits for all others.
/// Only growing numbers count. A number that is not above what its rank has reached is old news (a checkpoint that was
/// saved in the background names the step at which it began); where a program counts anew in each epoch without naming
/// the epoch, no further progress is seen.
#[derive(Debug, Default)]
pub struct Lockstep {
    reached: BTreeMap<u32, u64>,
    newest: Option<Synchronised>,
    /// Synchronised steps since the last rank was seen for the first time.
    steps: u64,
    apart: bool,
    gaps_ns: VecDeque<u64>,
    longest_ns: Option<u64>,
}

impl Lockstep {
    /// Takes in that a rank was seen at `step`. Of everything that one look at its output shows, the last step alone
    /// is to be told. Returns the newest synchronised step if this has made one.
    ///
    /// `at_ns` is when the step was made at the earliest: the last look at which its output was not there.
    pub fn observe(&mut self, local_rank: u32, step: u64, at_ns: u64) -> Option<Synchronised> {
        let before = self.reached.get(&local_rank).copied();
        if before.is_some_and(|before| step <= before) {
            return None;
        }
        let furthest = self.reached.values().max().copied();
        // The others had got there before this look, so this rank was behind by as much as it still is, or more.
        self.apart |= furthest.is_some_and(|furthest| step.saturating_add(1) < furthest);
        self.reached.insert(local_rank, step);
        if before.is_none() {
            self.steps = 0;
        }
        let reached_by_all = self.reached.values().min().copied()?;
        let newest = self.newest;
        if newest.is_some_and(|newest| reached_by_all <= newest.step) {
            return None;
        }
        let at_ns = newest.map_or(at_ns, |newest| newest.at_ns.max(at_ns));
        if let Some(newest) = newest {
            self.add_gap(at_ns - newest.at_ns);
        }
        self.newest = Some(Synchronised {
            step: reached_by_all,
            at_ns,
        });
        self.steps += 1;
        self.newest
    }

    /// The newest synchronised step.
    pub fn newest(&self) -> Option<Synchronised> {
        self.newest
    }

    /// The local ranks that have told steps.
    pub fn local_ranks(&self) -> impl Iterator<Item = u32> {
        self.reached.keys().copied()
    }

    /// Whether the ranks were seen in lockstep: in at least three steps, none further from another than one step. A
    /// rank by itself is.
    pub fn is_kept(&self) -> bool {
        !self.apart && self.steps >= ENOUGH_STEPS
    }

    /// The median of the last gaps between synchronised steps; none before the second step.
    pub fn typical_gap(&self) -> Option<Duration> {
        let mut gaps: Vec<u64> = self.gaps_ns.iter().copied().collect();
        gaps.sort_unstable();
        let median = gaps.get(gaps.len() / 2)?;
        Some(Duration::from_nanos(*median))
    }

    /// The longest gap between synchronised steps so far; none before the second step.
    pub fn longest_gap(&self) -> Option<Duration> {
        self.longest_ns.map(Duration::from_nanos)
    }

    /// How long the newest synchronised step should count as a sign of life: four typical gaps, half as much again as the
    /// longest, at least two seconds, rounded up to a power of two in seconds so that it seldom changes. None before the
    /// third step.
    pub fn wanted_window(&self) -> Option<Duration> {
        let longest = self.longest_gap()?;
        if self.gaps_ns.len() + 1 < usize::try_from(ENOUGH_STEPS).ok()? {
            return None;
        }
        let typical = self.typical_gap()?;
        let window = typical
            .saturating_mul(4)
            .max(longest.saturating_mul(3) / 2)
            .max(SHORTEST_WINDOW);
        let seconds = window.as_secs() + u64::from(window.subsec_nanos() > 0);
        Some(Duration::from_secs(seconds.next_power_of_two()))
    }

    fn add_gap(&mut self, gap_ns: u64) {
        if self.gaps_ns.len() == RECENT_GAPS {
            self.gaps_ns.pop_front();
        }
        self.gaps_ns.push_back(gap_ns);
        self.longest_ns = self.longest_ns.max(Some(gap_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    /// All ranks make the same steps, one step in `gap_ms`.
    fn together(ranks: u32, steps: u64, gap_ms: u64) -> Lockstep {
        let mut lockstep = Lockstep::default();
        for step in 1..=steps {
            for rank in 0..ranks {
                lockstep.observe(rank, step, step * gap_ms * 1_000_000);
            }
        }
        lockstep
    }

    #[test]
    fn a_step_is_synchronised_when_the_last_rank_has_reached_it() {
        let mut lockstep = together(2, 1, 0);
        assert_eq!(lockstep.observe(1, 2, 5 * SECOND), None);
        let newest = Synchronised {
            step: 2,
            at_ns: 6 * SECOND,
        };
        assert_eq!(lockstep.observe(0, 2, 6 * SECOND), Some(newest));
        assert_eq!(lockstep.observe(0, 3, 7 * SECOND), None);
        assert_eq!(lockstep.newest(), Some(newest));
        assert_eq!(lockstep.local_ranks().collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn ranks_that_get_on_together_are_in_lockstep_and_so_is_one_alone() {
        assert!(!together(1, 2, 10).is_kept(), "too early to say");
        assert!(together(1, 3, 10).is_kept());
        assert!(!together(4, 3, 10).is_kept(), "only two with all four");
        assert!(together(4, 4, 10).is_kept());
    }

    #[test]
    fn ranks_that_tell_every_tenth_step_only_are_in_lockstep() {
        let mut lockstep = Lockstep::default();
        for tens in 1..6 {
            for rank in 0..3 {
                lockstep.observe(rank, tens * 10, tens * SECOND);
            }
        }
        assert!(lockstep.is_kept());
    }

    #[test]
    fn a_rank_that_is_found_far_behind_was_on_its_own() {
        let mut lockstep = together(2, 10, 10);
        lockstep.observe(0, 14, 0);
        assert!(lockstep.is_kept(), "the other one may be there too by now");
        lockstep.observe(1, 12, 0);
        assert!(!lockstep.is_kept());
        for step in 15..30 {
            lockstep.observe(0, step, 0);
            lockstep.observe(1, step, 0);
        }
        assert!(!lockstep.is_kept(), "once apart, never trusted again");
    }

    #[test]
    fn another_rank_is_watched_for_a_while_before_it_is_trusted() {
        let mut lockstep = together(1, 9, 10);
        lockstep.observe(1, 9, 0);
        assert!(!lockstep.is_kept());
        for step in 10..13 {
            lockstep.observe(0, step, 0);
            lockstep.observe(1, step, 0);
        }
        assert!(lockstep.is_kept());
    }

    #[test]
    fn old_numbers_are_no_news_and_no_sign_of_disorder() {
        let mut lockstep = together(2, 10, 10);
        assert_eq!(lockstep.observe(0, 4, SECOND), None);
        assert!(lockstep.is_kept());
        assert_eq!(lockstep.newest().map(|newest| newest.step), Some(10));
    }

    #[test]
    fn the_window_fits_the_steps_of_the_job() {
        let seconds = |lockstep: &Lockstep| lockstep.wanted_window().map(|window| window.as_secs());
        assert_eq!(seconds(&together(2, 2, 10)), None, "too early to say");
        assert_eq!(seconds(&together(2, 3, 10)), Some(2), "never shorter");
        assert_eq!(seconds(&together(2, 40, 500)), Some(2));
        assert_eq!(seconds(&together(2, 40, 501)), Some(4));
        let mut with_a_pause = together(1, 40, 500);
        with_a_pause.observe(0, 41, 40 * SECOND);
        assert_eq!(with_a_pause.longest_gap(), Some(Duration::from_secs(20)));
        assert_eq!(seconds(&with_a_pause), Some(32));
    }

    proptest! {
        /// Whatever is observed, in whatever order.
        #[test]
        fn the_synchronised_step_and_its_time_only_grow_and_no_rank_is_behind_them(
            observed in prop::collection::vec((0..4_u32, 0..30_u64, 0..100_u64), 0..60)
        ) {
            let mut lockstep = Lockstep::default();
            let mut highest: BTreeMap<u32, u64> = BTreeMap::new();
            for (rank, step, at_ns) in observed {
                let before = lockstep.newest();
                let known_before = highest.len();
                let made = lockstep.observe(rank, step, at_ns);
                let reached = highest.entry(rank).or_insert(step);
                *reached = (*reached).max(step);
                let newest = lockstep.newest().unwrap();
                if let Some(before) = before {
                    prop_assert!(newest.at_ns >= before.at_ns && newest.step >= before.step);
                    prop_assert_eq!(made.is_some(), newest.step > before.step);
                }
                if made.is_some() {
                    prop_assert_eq!(Some(&newest.step), highest.values().min());
                } else if known_before == highest.len() {
                    prop_assert!(highest.values().min() <= Some(&newest.step));
                }
            }
        }
    }
}
