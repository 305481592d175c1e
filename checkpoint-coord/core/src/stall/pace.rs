// SPDX-License-Identifier: Apache-2.0
//! How long the steps of a job take, and how long the gap between two of them may become.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::allowance::Activity;

/// Gaps that the typical one is taken from.
const RECENT: usize = 64;
/// The first gaps of a generation say little: caches are cold, kernels are being chosen.
const WARM_UP: u32 = 2;
/// Gaps that must have been seen before they count as what is usual.
const ENOUGH: usize = 5;
/// Nothing is a stall that is shorter: what goes on in the machine takes that long now and then.
const SHORTEST: Duration = Duration::from_secs(2);
/// The same where a program says nothing of its phases: it may be saving or evaluating.
const SHORTEST_BLIND: Duration = Duration::from_secs(30);
/// A phase other than training that is over quickly may take longer the next time.
const SHORTEST_PHASE: Duration = Duration::from_mins(2);
/// The standard deviation of a normal distribution is that many median absolute deviations.
const DEVIATIONS: f64 = 1.4826;

/// What a generation has shown of itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Pace {
    seen: u32,
    /// Gaps between steps in which nothing but training went on, in seconds.
    plain: VecDeque<f64>,
    /// The longest gap so far in which something else went on: how long, and how many there were.
    longest: BTreeMap<Activity, Duration>,
}

impl Pace {
    /// Takes in a gap between two steps; `during` is what went on in it beside training.
    pub(super) fn note(&mut self, gap: Duration, during: &[Activity]) {
        if during.is_empty() {
            self.seen = self.seen.saturating_add(1);
            if self.seen <= WARM_UP {
                return;
            }
            if self.plain.len() == RECENT {
                self.plain.pop_front();
            }
            self.plain.push_back(gap.as_secs_f64());
        }
        for &activity in during {
            let longest = self.longest.entry(activity).or_default();
            *longest = (*longest).max(gap);
        }
    }

    /// The usual gap between steps, once there is one.
    pub(super) fn typical(&self) -> Option<Duration> {
        (self.plain.len() >= ENOUGH).then(|| seconds(median(self.plain.iter().copied())))
    }

    /// How long a gap in which nothing but training goes on may become. `blind` when nothing is known of phases.
    pub(super) fn plain_bound(&self, blind: bool) -> Option<Duration> {
        let typical = self.typical()?.as_secs_f64();
        let deviation = median(self.plain.iter().map(|gap| (gap - typical).abs()));
        let longest = self.plain.iter().copied().fold(0.0, f64::max);
        let times = if blind { 10.0 } else { 3.4 };
        let shortest = if blind { SHORTEST_BLIND } else { SHORTEST };
        let bound = (times * typical + 6.0 * DEVIATIONS * deviation).max(1.5 * longest);
        Some(seconds(bound).max(shortest))
    }

    /// How long a gap in which this goes on may become.
    pub(super) fn phase_bound(&self, activity: Activity) -> Duration {
        let default = activity.default_allowance();
        let Some(longest) = self.longest.get(&activity) else {
            return default;
        };
        let typical = self.typical().unwrap_or_default();
        longest
            .saturating_mul(5)
            .max(typical.saturating_mul(100))
            .max(SHORTEST_PHASE)
    }
}

fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or(Duration::MAX)
}

fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paced(gaps_ms: &[u64]) -> Pace {
        let mut pace = Pace::default();
        for &gap in gaps_ms {
            pace.note(Duration::from_millis(gap), &[]);
        }
        pace
    }

    #[test]
    fn the_bound_follows_the_steps_and_not_the_warm_up() {
        let short = paced(&[9000, 8000, 200, 200, 210, 190, 200]);
        assert_eq!(short.plain_bound(false), Some(SHORTEST));
        assert_eq!(short.plain_bound(true), Some(SHORTEST_BLIND));
        let long = paced(&[9000, 9000, 5000, 5000, 5000, 5000, 5000]);
        assert_eq!(long.plain_bound(false), Some(Duration::from_secs(17)));
        assert_eq!(paced(&[200; 6]).plain_bound(false), None, "too early");
    }

    #[test]
    fn a_gap_that_was_got_over_widens_the_bound() {
        let pace = paced(&[200, 200, 200, 200, 200, 200, 200, 10_000]);
        assert_eq!(pace.plain_bound(false), Some(Duration::from_secs(15)));
    }

    #[test]
    fn phases_have_generous_bounds_until_they_were_seen_and_still_room_afterwards() {
        let mut pace = paced(&[1000; 9]);
        assert_eq!(pace.phase_bound(Activity::Eval), Duration::from_hours(1));
        pace.note(Duration::from_secs(5), &[Activity::Eval]);
        assert_eq!(pace.phase_bound(Activity::Eval), SHORTEST_PHASE);
        pace.note(Duration::from_secs(50), &[Activity::Eval]);
        assert_eq!(pace.phase_bound(Activity::Eval), Duration::from_secs(250));
        assert_eq!(pace.plain_bound(false), Some(Duration::from_millis(3400)));
    }
}
