// SPDX-License-Identifier: Apache-2.0
//! A host's monotonic clock: it began at some time of its own, and goes a little too fast or too slow.

use steadfast_core::Instant;

use crate::random::Random;

/// How far a clock's pace may be from true time, in parts per million: any two of them are within the 1 % that the
/// product allows for.
const WORST_DRIFT_PPM: u64 = 4_900;
const MILLION: u64 = 1_000_000;

/// Turns the simulation's microseconds into a host's nanoseconds and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clock {
    /// What the clock showed when the simulation began, in nanoseconds.
    ahead: u64,
    /// Nanoseconds of this clock in a true millisecond.
    pace: u64,
}

impl Clock {
    pub(crate) fn draw(random: &mut Random, drifts: bool) -> Self {
        let drift = if drifts {
            random.below(2 * WORST_DRIFT_PPM + 1)
        } else {
            WORST_DRIFT_PPM
        };
        Self {
            ahead: random.between(1, 10_000) * 1_000 * MILLION,
            pace: MILLION - WORST_DRIFT_PPM + drift,
        }
    }

    /// The host has been switched off and on: its clock begins anew.
    pub(crate) fn restart(&mut self, now: u64) {
        // It cannot have shown less than nothing when the simulation began; close enough to the boot.
        self.ahead = 5_000 * MILLION;
        self.ahead = self.ahead.saturating_sub(now.min(4_000_000) * 1_000);
    }

    pub(crate) fn show(&self, now: u64) -> Instant {
        Instant::from_nanos(self.ahead + now * self.pace / 1_000)
    }

    /// The simulation's time at which this clock shows that, rounded up.
    pub(crate) fn time_of(&self, instant: Instant) -> u64 {
        let shown = instant.as_nanos().saturating_sub(self.ahead);
        (shown.saturating_mul(1_000)).div_ceil(self.pace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_way_there_and_back_and_drift_is_bounded() {
        let mut random = Random::new(3);
        for _ in 0..200 {
            let clock = Clock::draw(&mut random, true);
            for now in [0, 1, 999, 123_456_789, 3_600_000_000] {
                let back = clock.time_of(clock.show(now));
                assert!(back.abs_diff(now) <= 1, "{now} became {back}");
            }
            let hour = 3_600_000_000;
            let shown = clock.show(hour).as_nanos() - clock.show(0).as_nanos();
            assert!(shown.abs_diff(hour * 1_000) <= hour * 1_000 / 200);
        }
    }
}
