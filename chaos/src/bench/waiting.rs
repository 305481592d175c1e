// SPDX-License-Identifier: Apache-2.0
//! The clock, and waiting for something to become true, or for somebody to interrupt it all.

use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use steadfast_process::signals::Signals;

use crate::failure::Failure;

/// The monotonic clock in nanoseconds: the same one that workers read.
pub(crate) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Signals that ask this program to end.
const INTERRUPTING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// The same, to be read. A process has one set of them, whoever waits.
static INTERRUPTS: OnceLock<Signals> = OnceLock::new();

/// From now on a signal that asks this program to end makes the waiting fail, so that everything
/// that was started is ended on the way out. To be called before anything is started.
pub(crate) fn heed_interrupts() -> Result<(), Failure> {
    let signals =
        Signals::take_over(&INTERRUPTING).map_err(|error| Failure::read("signals", error))?;
    // A second call would find the signals blocked already; the first descriptor serves.
    let _second = INTERRUPTS.set(signals);
    Ok(())
}

/// Starts something whose signals are not blocked, as they would be if it had our mask. For that
/// moment an interrupt has its usual effect here too.
pub(crate) fn with_open_signals<T>(start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if INTERRUPTS.get().is_none() {
        return start();
    }
    let interrupting: SigSet = INTERRUPTING.into_iter().collect();
    interrupting.thread_unblock()?;
    let started = start();
    interrupting.thread_block()?;
    started
}

/// Lets time pass. For spacing measurements, never in place of a condition.
pub(crate) fn pause(duration: Duration) -> Result<(), Failure> {
    let until = now_ns() + nanos(duration);
    loop {
        let Some(left) = until.checked_sub(now_ns()).filter(|left| *left > 0) else {
            return not_interrupted();
        };
        let signals = INTERRUPTS
            .get()
            .map(|signals| PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN));
        if poll_for(
            signals.into_iter().collect::<Vec<_>>().as_mut_slice(),
            Duration::from_nanos(left),
        ) {
            not_interrupted()?;
        }
    }
}

/// Waits until one of the descriptors is ready, at most so long.
pub(crate) fn poll_for(descriptors: &mut [PollFd<'_>], at_most: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    poll(descriptors, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// Asks again and again, every few milliseconds, until there is an answer. `what` says what was
/// waited for.
pub(crate) fn wait_for<T>(
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
        pause(Duration::from_millis(2))?;
    }
}

/// An error if somebody wants this program to end.
pub(crate) fn not_interrupted() -> Result<(), Failure> {
    match INTERRUPTS.get().map(Signals::next) {
        None | Some(Ok(None)) => Ok(()),
        Some(Ok(Some(arrived))) => Err(Failure::Interrupted(arrived.signal.as_str())),
        Some(Err(error)) => Err(Failure::read("signals", error)),
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2)
}
