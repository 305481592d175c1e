// SPDX-License-Identifier: Apache-2.0
//! The end of the time that the scheduler gives a job.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// When the job ends by itself, to be run again, before the scheduler ends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TimeLimit {
    /// When the scheduler would end it, in nanoseconds of `CLOCK_MONOTONIC`, where it says so.
    pub(crate) ends_at_ns: Option<u64>,
    /// How long before that the job begins to end, if it does.
    pub(crate) lead: Option<Duration>,
    /// The signal by which the scheduler tells that time is nearly up, where it is not one for the workers.
    pub(crate) signal: Option<i32>,
}

impl TimeLimit {
    /// How much time is left; `None` where the scheduler does not say.
    pub(crate) fn left(&self, now_ns: u64) -> Option<Duration> {
        self.ends_at_ns
            .map(|ends_at_ns| Duration::from_nanos(ends_at_ns.saturating_sub(now_ns)))
    }

    /// How much time is left, once that is no more than the lead.
    pub(crate) fn near(&self, now_ns: u64) -> Option<Duration> {
        let lead = self.lead?;
        self.left(now_ns).filter(|left| *left <= lead)
    }
}
