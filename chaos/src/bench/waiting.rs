// SPDX-License-Identifier: Apache-2.0
//! The clock, and waiting for something to become true.

use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::failure::Failure;

/// The monotonic clock in nanoseconds: the same one that workers read.
pub(super) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Lets time pass. For spacing measurements, never in place of a condition.
pub(super) fn pause(duration: Duration) {
    let until = now_ns() + nanos(duration);
    while let Some(left) = until.checked_sub(now_ns()).filter(|left| *left > 0) {
        // A signal may cut it short; the loop goes on then.
        let _interrupted = poll_for(&mut [], Duration::from_nanos(left));
    }
}

/// Waits until one of the descriptors is ready, at most so long.
pub(super) fn poll_for(descriptors: &mut [PollFd<'_>], at_most: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    poll(descriptors, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// Asks again and again, every few milliseconds, until there is an answer. `what` says what was
/// waited for.
pub(super) fn wait_for<T>(
    what: &str,
    at_most: Duration,
    mut ask: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let deadline = now_ns() + nanos(at_most);
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if now_ns() > deadline {
            return Err(Failure::Waited {
                what: what.to_owned(),
                seconds: at_most.as_secs(),
            });
        }
        pause(Duration::from_millis(2));
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2)
}
