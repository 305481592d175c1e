// SPDX-License-Identifier: Apache-2.0
//! What a worker does when it gets a signal.
//!
//! Signals are blocked and waited for on a thread: no handlers, hence no unsafe code. To the sender there is no difference.

use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use serde_json::json;

use crate::identity::Identity;
use crate::steps::pause;

/// Polite requests to end have no effect, neither on this process nor on the ones that it starts.
pub(crate) fn ignore() {
    set([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])
        .thread_block()
        .unwrap();
}

/// A polite request to end is noted, and answered with this exit code after a while, in which a last checkpoint could be
/// saved.
pub(crate) fn exit_on_term(identity: &Identity, code: i32, after: Duration) {
    let polite = set([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    wait_on_thread(identity, polite, Some((code, after)));
}

/// SIGUSR1 and SIGUSR2 are noted.
pub(crate) fn note(identity: &Identity) {
    wait_on_thread(identity, set([Signal::SIGUSR1, Signal::SIGUSR2]), None);
}

fn set<const COUNT: usize>(signals: [Signal; COUNT]) -> SigSet {
    signals.into_iter().collect()
}

fn wait_on_thread(identity: &Identity, signals: SigSet, end: Option<(i32, Duration)>) {
    // The thread must not be the one that dies of a signal that another such thread waits for.
    let before = SigSet::all()
        .thread_swap_mask(SigmaskHow::SIG_BLOCK)
        .unwrap();
    identity.record("listening", json!({}));
    std::thread::spawn(move || {
        loop {
            let signal = signals.wait().unwrap();
            Identity::from_environment().record("signal", json!({ "signal": signal.as_str() }));
            if let Some((code, after)) = end {
                pause(after);
                Identity::from_environment().record("saved", json!({}));
                std::process::exit(code);
            }
        }
    });
    before.thread_set_mask().unwrap();
    signals.thread_block().unwrap();
}
