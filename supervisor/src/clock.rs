// SPDX-License-Identifier: Apache-2.0
//! The only places where the supervisor reads a clock: monotonic for every decision, the wall clock only to show.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`: comparable between all processes of this boot, not counting suspended time.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
}

/// Milliseconds since 1970, to show to people.
pub(crate) fn wall_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// The wall clock's reading at an earlier monotonic instant, in milliseconds since 1970.
pub(crate) fn wall_ms_at(monotonic: u64) -> i64 {
    let age_ms = monotonic_ns().saturating_sub(monotonic) / 1_000_000;
    wall_ms().saturating_sub(i64::try_from(age_ms).unwrap_or(i64::MAX))
}
