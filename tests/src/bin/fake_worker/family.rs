// SPDX-License-Identifier: Apache-2.0
//! Processes that a worker starts: the kinds that launchers have been seen to leave behind.

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::unistd::setsid;
use serde_json::json;

use crate::identity::Identity;
use crate::signals;
use crate::steps::{pause, pause_forever};

/// Starts a relative of this kind; `number` says how many, or in milliseconds how fast.
pub(crate) fn start(kind: &str, number: u64) {
    // A daemon's first process, and only that, ends by itself.
    if kind == "daemon" {
        assert!(relative(kind, number).status().unwrap().success());
    } else {
        spawn(kind, number);
    }
}

/// The life of such a relative.
pub(crate) fn live_as(role: &str, arguments: &[String]) {
    let number = || -> u64 { arguments[0].parse().unwrap() };
    match role {
        "child" => {}
        "polite-child" => signals::exit_on_term(&Identity::from_environment(), 0, Duration::ZERO),
        "session-child" => leave_home(),
        "daemon" => {
            leave_home();
            spawn("orphan", 0);
            return;
        }
        "orphan" => signals::ignore(),
        "storm" => return storm(number()),
        "chain" => return chain(number()),
        other => panic!("`{other}` is no kind of relative"),
    }
    Identity::from_environment().record("relative", json!({ "kind": role }));
    pause_forever();
}

fn leave_home() {
    setsid().unwrap();
    signals::ignore();
}

/// A tree of `count` processes, each in a session of its own and deaf to SIGTERM.
fn storm(count: u64) {
    leave_home();
    let below = count - 1;
    for share in [below / 2, below - below / 2] {
        if share > 0 {
            spawn("storm", share);
        }
    }
    Identity::from_environment().record("relative", json!({ "kind": "storm" }));
    pause_forever();
}

/// A process that is always a new one: it starts its successor every few milliseconds and ends.
fn chain(milliseconds: u64) {
    leave_home();
    Identity::from_environment().record("relative", json!({ "kind": "chain" }));
    pause(Duration::from_millis(milliseconds));
    spawn("chain", milliseconds);
}

/// Nobody waits for it: that is what these relatives are for.
fn spawn(role: &str, number: u64) {
    std::mem::forget(relative(role, number).spawn().unwrap());
}

#[expect(clippy::disallowed_methods, reason = "tests create processes")]
fn relative(role: &str, number: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .arg(format!("__{role}"))
        .arg(number.to_string())
        .stdin(Stdio::null());
    command
}
