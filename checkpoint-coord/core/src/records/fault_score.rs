// SPDX-License-Identifier: Apache-2.0
//! What earlier faults of a piece of hardware weigh.

use serde::{Deserialize, Serialize};

/// After so long a fault weighs half as much: 7 days, in milliseconds.
const HALF_LIFE_MS: u64 = 7 * 24 * 3_600 * 1_000;
/// What one fault weighs when it happens.
const ONE: u64 = 1_000;
/// What makes a repeat offender: a second fault within one half-life of the first, or as much.
const REPEATED: u64 = 1_500;
/// A sum does not grow beyond this.
const MOST: u64 = 1_000_000;

/// What the faults of one piece of hardware weigh, in thousandths of a fault. Each counts as 1000 when it happens and half
/// as much after 7 days, a quarter after 14, and so on. Times are those of the wall clock; where it was set back, nothing
/// decays.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FaultScore {
    /// The sum as it was at `at_ms`.
    pub weight: u64,
    /// When the last fault happened, in milliseconds since 1970.
    pub at_ms: i64,
    /// On which node.
    #[serde(default)]
    pub node: String,
    /// What it was, in words.
    #[serde(default)]
    pub last: String,
}

impl FaultScore {
    /// Adds a fault that happened then.
    pub fn add(&mut self, at_ms: i64, node: &str, what: &str) {
        self.weight = self.weight_at(at_ms).saturating_add(ONE).min(MOST);
        self.at_ms = self.at_ms.max(at_ms);
        node.clone_into(&mut self.node);
        what.clone_into(&mut self.last);
    }

    /// What it weighs at that time, in thousandths of a fault.
    pub fn weight_at(&self, at_ms: i64) -> u64 {
        let passed = u64::try_from(at_ms.saturating_sub(self.at_ms)).unwrap_or(0);
        let halvings = u32::try_from(passed / HALF_LIFE_MS).unwrap_or(u32::MAX);
        let whole = self.weight.checked_shr(halvings).unwrap_or(0);
        // Between two halvings along a straight line, which errs by less than a sixteenth, and needs no floating point.
        whole - whole / 2 * (passed % HALF_LIFE_MS) / HALF_LIFE_MS
    }

    /// Whether so much is more than chance.
    pub fn is_repeated(weight: u64) -> bool {
        weight >= REPEATED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: i64 = 24 * 3_600 * 1_000;

    fn after(days: &[i64]) -> FaultScore {
        let mut score = FaultScore::default();
        for day in days {
            score.add(day * DAY_MS, "a", "XID 79");
        }
        score
    }

    #[test]
    fn a_fault_weighs_half_as_much_after_each_half_life() {
        let score = after(&[100]);
        let weights = [100, 107, 114, 121].map(|day| score.weight_at(day * DAY_MS));
        assert_eq!(weights, [1_000, 500, 250, 125]);
        assert_eq!(score.weight_at(10_000 * DAY_MS), 0);
        assert_eq!(score.weight_at(i64::MAX), 0);
    }

    #[test]
    fn it_never_grows_while_nothing_happens() {
        let score = after(&[100, 101, 101, 103]);
        let mut before = u64::MAX;
        for hour in 0..2_000 {
            let weight = score.weight_at(103 * DAY_MS + hour * 3_600_000);
            assert!(weight <= before, "hour {hour}");
            before = weight;
        }
    }

    #[test]
    fn the_second_within_a_half_life_makes_a_repeat_offender() {
        let repeated = |days: &[i64]| FaultScore::is_repeated(after(days).weight);
        assert!(!repeated(&[0]));
        assert!(repeated(&[0, 7]));
        assert!(!repeated(&[0, 8]));
        assert!(repeated(&[0, 8, 16]));
    }

    #[test]
    fn a_clock_that_was_set_back_forgives_nothing_and_breaks_nothing() {
        let mut score = after(&[100]);
        score.add(50 * DAY_MS, "b", "XID 63");
        assert_eq!((score.weight, score.at_ms), (2_000, 100 * DAY_MS));
        score.add(i64::MIN, "b", "XID 63");
        assert_eq!(score.weight, 3_000);
        assert_eq!(score.node, "b");
    }
}
