// SPDX-License-Identifier: Apache-2.0
//! A training process that does what its arguments say.
//!
//! Each argument is a step, done in order: `NAME` or `NAME:VALUE:...`, or `@CONDITION,...@STEP` for a step that only some
//! workers do. Conditions are `rank=N`, `rank!=N`, `restart=N`, `restart!=N` and `restart<N`. Example:
//! `@rank=1,restart=0@exit:3 steps:1:20:5`. The steps are listed in `steps.rs`.
//!
//! Every worker appends what happens to it to `STEADFAST_TEST_RECORDS`, as JSON lines, and holds a lock for as long as it
//! lives, so that a second worker of the same rank finds out that the first one is still there.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::exit,
    reason = "a worker of a test: a panic is a test that is written wrongly"
)]

mod family;
mod identity;
mod noise;
mod script;
mod signals;
mod steps;

use identity::Identity;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(role) = arguments.first().and_then(|first| first.strip_prefix("__")) {
        return family::live_as(role, &arguments[1..]);
    }
    let identity = Identity::from_environment();
    let _lock = identity.lock();
    identity.record_start();
    for step in script::parse(&arguments) {
        if step.applies_to(&identity) {
            steps::perform(&step.words, &identity);
        }
    }
    identity.record("end", serde_json::json!({}));
}
