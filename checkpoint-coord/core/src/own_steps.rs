// SPDX-License-Identifier: Apache-2.0
//! The training steps that one node sees its own workers make.

use std::time::Duration;

use crate::Instant;

/// What one node has seen of its own workers' steps in one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnSteps {
    /// The highest step.
    pub step: u64,
    /// When a step was seen last. It was made then or earlier.
    pub at: Instant,
    /// How long one step can take: twice as long as any that was seen, since it may be one that something disturbs; zero before
    /// the second.
    pub one_step: Duration,
}

impl OwnSteps {
    /// What is known once one more step was seen. Where a program has begun to count anew, or the same step is told twice, it
    /// counts all the same: what is taken for too young only makes others wait longer.
    #[must_use]
    pub fn and(before: Option<Self>, step: u64, at: Instant) -> Self {
        match before {
            Some(before) => Self {
                step: before.step.max(step),
                at: before.at.max(at),
                one_step: before.one_step.max(before.one_step_until(step, at)),
            },
            None => Self {
                step,
                at,
                one_step: Duration::ZERO,
            },
        }
    }

    /// How long one step can take, by the time since the last look. Where several were made in it, one of them took half of it
    /// at most on average.
    fn one_step_until(self, step: u64, at: Instant) -> Duration {
        let since = at - self.at;
        if step > self.step.saturating_add(1) {
            since
        } else {
            since * 2
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_time_and_twice_the_longest_step_are_kept() {
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let first = OwnSteps::and(None, 7, at(1));
        assert_eq!(first.one_step, Duration::ZERO);
        let later = OwnSteps::and(Some(OwnSteps::and(Some(first), 8, at(4))), 2, at(5));
        let all = OwnSteps {
            step: 8,
            at: at(5),
            one_step: Duration::from_secs(6),
        };
        assert_eq!(later, all, "a program that counts anew still trains");
    }

    #[test]
    fn a_look_that_shows_several_steps_is_twice_as_long_as_one_of_them_already() {
        let at = |tenths: u64| Instant::from_nanos(tenths * 100_000_000);
        let looks = [(1, 0), (3, 1), (5, 2), (9, 4)];
        let seen = |looks: &[(u64, u64)]| {
            let steps = looks.iter().fold(None, |before, &(step, tenths)| {
                Some(OwnSteps::and(before, step, at(tenths)))
            });
            steps.map(|steps: OwnSteps| steps.one_step)
        };
        assert_eq!(seen(&looks[..3]), Some(Duration::from_millis(100)));
        assert_eq!(seen(&looks), Some(Duration::from_millis(200)));
        assert_eq!(
            seen(&[(1, 0), (2, 1), (4, 2)]),
            Some(Duration::from_millis(200)),
            "one that took a whole look can take two"
        );
    }
}
