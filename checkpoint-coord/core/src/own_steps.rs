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
    /// The longest time between two of them; zero before the second.
    pub longest_gap: Duration,
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
                longest_gap: before.longest_gap.max(at - before.at),
            },
            None => Self {
                step,
                at,
                longest_gap: Duration::ZERO,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_time_and_the_longest_gap_are_kept() {
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let first = OwnSteps::and(None, 7, at(1));
        assert_eq!(first.longest_gap, Duration::ZERO);
        let later = OwnSteps::and(Some(OwnSteps::and(Some(first), 8, at(4))), 2, at(5));
        let all = OwnSteps {
            step: 8,
            at: at(5),
            longest_gap: Duration::from_secs(3),
        };
        assert_eq!(later, all, "a program that counts anew still trains");
    }
}
