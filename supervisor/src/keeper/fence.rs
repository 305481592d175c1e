// SPDX-License-Identifier: Apache-2.0
//! The fence: until when the workers of this node may live without a further word.
//!
//! A node that cannot renew its lease may be replaced by another one, and two workers with the same rank must never run.
//! So its workers live only while the lease surely holds, or while the newest synchronised step is younger than the
//! witness window: in synchronous training no step is made without all ranks, so a young step shows that nobody has gone
//! on without this node.
//!
//! Every time is in nanoseconds of the monotonic clock. Of the lease the newest word counts, also when it takes time back:
//! the node's record may have moved from a long lease to a short one, and dies with that. Of steps and windows nothing is
//! taken back: an agent that was respawned may know less than the one before it.

use std::time::Duration;

/// What the keeper knows about the lease and the witness.
#[derive(Debug)]
pub(super) struct Fence {
    is_up: bool,
    lease_until_ns: u64,
    /// Changes when leases were lost: what was decided before is worth nothing then.
    tenure: i64,
    generation: u64,
    /// Of this generation; zero when the lease alone decides.
    witness: Duration,
    /// A generation that may be started next, and its window.
    next: (u64, Duration),
    /// Of this generation.
    progress_ns: Option<u64>,
}

impl Fence {
    /// `is_up` says whether there is a fence before an agent has spoken of one. No lease holds yet then.
    pub(super) fn new(is_up: bool) -> Fence {
        Fence {
            is_up,
            lease_until_ns: 0,
            tenure: 0,
            generation: 0,
            witness: Duration::ZERO,
            next: (0, Duration::ZERO),
            progress_ns: None,
        }
    }

    /// Takes in what an agent says: until when the lease of this tenure holds, and the witness window of a generation. From
    /// now on there is a fence.
    pub(super) fn renew(
        &mut self,
        (tenure, lease_until_ns): (i64, u64),
        generation: u64,
        witness: Duration,
    ) {
        self.is_up = true;
        self.tenure = tenure;
        self.lease_until_ns = lease_until_ns;
        if generation == self.generation {
            self.witness = self.witness.max(witness);
        } else {
            self.next = self.next.max((generation, witness));
        }
    }

    /// A new generation is started: what was seen of older ones is no witness for it.
    pub(super) fn begin(&mut self, generation: u64) {
        let (announced, witness) = self.next;
        self.generation = generation;
        self.witness = if announced == generation {
            witness
        } else {
            Duration::ZERO
        };
        self.progress_ns = None;
    }

    /// A synchronised step was made at `at_ns`, or later. One of another generation does not count, nor does the future.
    pub(super) fn progressed(&mut self, generation: u64, at_ns: u64, now_ns: u64) {
        if generation == self.generation {
            self.progress_ns = self.progress_ns.max(Some(at_ns.min(now_ns)));
        }
    }

    /// The witness window, where more than the lease decides.
    pub(super) fn witness(&self) -> Option<Duration> {
        (self.is_up && !self.witness.is_zero()).then_some(self.witness)
    }

    /// Until when the workers of the generation may live; `None` when there is no fence.
    pub(super) fn until_ns(&self) -> Option<u64> {
        let witness_ns = u64::try_from(self.witness.as_nanos()).unwrap_or(u64::MAX);
        let witnessed_until = match self.progress_ns {
            Some(at_ns) if witness_ns > 0 => at_ns.saturating_add(witness_ns),
            _ => 0,
        };
        self.is_up
            .then_some(self.lease_until_ns.max(witnessed_until))
    }

    /// Whether the workers of the generation must not live any more.
    pub(super) fn has_passed(&self, now_ns: u64) -> bool {
        self.until_ns().is_some_and(|until| now_ns >= until)
    }

    /// Whether another generation may be started, as was decided in `tenure`. Steps of an older one are no witness for it.
    pub(super) fn lets_start(&self, tenure: i64, now_ns: u64) -> bool {
        !self.is_up || (tenure == self.tenure && now_ns < self.lease_until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn witness(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn without_a_fence_nothing_passes() {
        let mut fence = Fence::new(false);
        fence.begin(1);
        assert!(!fence.has_passed(u64::MAX) && fence.lets_start(1, u64::MAX));
        assert_eq!(fence.until_ns(), None);
    }

    #[test]
    fn a_fence_without_a_lease_lets_nothing_start_and_the_first_word_of_an_agent_puts_one_up() {
        assert!(!Fence::new(true).lets_start(1, 0));
        let mut fence = Fence::new(false);
        fence.renew((1, 5 * SECOND), 1, Duration::ZERO);
        assert!(fence.lets_start(1, 4 * SECOND) && !fence.lets_start(1, 5 * SECOND));
    }

    #[test]
    fn what_was_decided_before_leases_were_lost_is_not_started() {
        let mut fence = Fence::new(true);
        fence.renew((1, 10 * SECOND), 1, Duration::ZERO);
        fence.renew((2, 30 * SECOND), 1, Duration::ZERO);
        assert!(!fence.lets_start(1, 9 * SECOND));
        assert!(fence.lets_start(2, 29 * SECOND) && !fence.lets_start(2, 30 * SECOND));
    }

    #[test]
    fn steps_carry_the_workers_past_the_lease_for_the_length_of_the_window() {
        let mut fence = Fence::new(true);
        fence.begin(1);
        fence.renew((1, 10 * SECOND), 1, witness(4));
        fence.progressed(1, 9 * SECOND, 9 * SECOND);
        assert!(!fence.has_passed(13 * SECOND - 1));
        assert!(fence.has_passed(13 * SECOND));
        assert!(
            !fence.lets_start(1, 11 * SECOND),
            "a new one needs the lease"
        );
    }

    #[test]
    fn steps_without_a_window_and_steps_of_another_generation_carry_nobody() {
        let mut fence = Fence::new(true);
        fence.begin(2);
        fence.renew((1, 10 * SECOND), 2, Duration::ZERO);
        fence.progressed(2, 9 * SECOND, 9 * SECOND);
        assert!(fence.has_passed(10 * SECOND));
        fence.renew((1, 10 * SECOND), 2, witness(4));
        assert!(!fence.has_passed(10 * SECOND));
        fence.renew((1, 0), 3, witness(4));
        fence.begin(3);
        fence.progressed(2, 9 * SECOND, 9 * SECOND);
        assert!(fence.has_passed(10 * SECOND));
        fence.progressed(3, 9 * SECOND, 9 * SECOND);
        assert!(
            !fence.has_passed(10 * SECOND),
            "its own window was announced"
        );
    }

    #[test]
    fn a_shorter_lease_takes_back_what_a_longer_one_had_promised() {
        let mut fence = Fence::new(true);
        fence.begin(1);
        fence.renew((1, 10 * SECOND), 1, Duration::ZERO);
        fence.renew((1, 2 * SECOND), 1, Duration::ZERO);
        assert!(fence.has_passed(2 * SECOND) && !fence.lets_start(1, 2 * SECOND));
    }

    #[test]
    fn a_step_from_the_future_counts_as_one_of_now() {
        let mut fence = Fence::new(true);
        fence.begin(1);
        fence.renew((1, 0), 1, witness(4));
        fence.progressed(1, u64::MAX, 10 * SECOND);
        assert_eq!(fence.until_ns(), Some(14 * SECOND));
    }

    /// What can happen to a fence.
    #[derive(Debug, Clone)]
    enum Happening {
        Renew {
            lease_until: u64,
            generation: u64,
            witness: u64,
        },
        Progress {
            generation: u64,
            at: u64,
        },
        Begin,
    }

    fn happenings() -> impl Strategy<Value = Vec<(u64, Happening)>> {
        let happening = prop_oneof![
            (0..100_u64, 0..4_u64, 0..8_u64).prop_map(|(lease_until, generation, witness)| {
                Happening::Renew {
                    lease_until,
                    generation,
                    witness,
                }
            }),
            (0..4_u64, 0..100_u64)
                .prop_map(|(generation, at)| Happening::Progress { generation, at }),
            Just(Happening::Begin),
        ];
        prop::collection::vec((0..5_u64, happening), 0..40)
    }

    proptest! {
        /// Against the rule itself, worked out anew from everything that was ever said.
        #[test]
        fn the_fence_is_the_rule(happenings in happenings()) {
            let mut fence = Fence::new(true);
            let (mut now, mut generation) = (0, 0);
            let mut lease = 0;
            let mut windows = vec![(0, 0)];
            let mut steps: Vec<u64> = Vec::new();
            for (passes, happening) in happenings {
                now += passes;
                match happening {
                    Happening::Renew { lease_until, generation: of, witness: window } => {
                        // Nobody speaks of the generation after the next.
                        let of = of.min(generation + 1);
                        fence.renew((1, lease_until * SECOND), of, witness(window));
                        lease = lease_until;
                        windows.push((of, window));
                    }
                    Happening::Progress { generation: of, at } => {
                        fence.progressed(of, at * SECOND, now * SECOND);
                        if of == generation {
                            steps.push(at.min(now));
                        }
                    }
                    Happening::Begin => {
                        generation += 1;
                        fence.begin(generation);
                        steps.clear();
                    }
                }
                let of_this = windows.iter().filter(|(of, _)| *of == generation);
                let window = of_this.map(|(_, window)| *window).max().unwrap_or(0);
                let carried = steps.iter().max().filter(|_| window > 0).map_or(0, |at| at + window);
                let until = fence.until_ns().unwrap();
                prop_assert_eq!(until, lease.max(carried) * SECOND);
                prop_assert_eq!(fence.has_passed(now * SECOND), now >= lease.max(carried));
                prop_assert_eq!(fence.lets_start(1, now * SECOND), now < lease);
            }
        }
    }
}
