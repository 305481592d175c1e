// SPDX-License-Identifier: Apache-2.0
//! Waiting for what must happen.

use std::time::{Duration, Instant};

/// How long anything may take before it is called a failure. It is no expectation: a loaded machine is slow.
pub const DEADLINE: Duration = Duration::from_mins(1);

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Looks until `look` gives a value. The error of the last look is part of the message when the deadline passes.
#[track_caller]
pub fn eventually<Value>(what: &str, mut look: impl FnMut() -> Result<Value, String>) -> Value {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match look() {
            Ok(value) => return value,
            Err(last) if Instant::now() >= deadline => {
                panic!("gave up waiting for {what}; last seen: {last}")
            }
            Err(_) => pause(LOOK_EVERY),
        }
    }
}

/// Lets time pass: between two looks, or where a fault has to come at a moment that nothing announces. Never a way to
/// wait for something.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place in which the tests sleep"
)]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
