// SPDX-License-Identifier: Apache-2.0
//! The end of the time that the scheduler gives a job.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// When the job ends by itself, to be run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TimeLimit {
    /// When the scheduler would end it, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) ends_at_ns: u64,
    /// How long before that the job begins to end.
    pub(crate) lead: Duration,
}

impl TimeLimit {
    /// How much time is left, once that is no more than the lead.
    pub(crate) fn left(&self, now_ns: u64) -> Option<Duration> {
        let left = Duration::from_nanos(self.ends_at_ns.saturating_sub(now_ns));
        (left <= self.lead).then_some(left)
    }
}
