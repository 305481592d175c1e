// SPDX-License-Identifier: Apache-2.0
//! Speaking to the keeper with the agent's voice.
//!
//! The keeper and the agent talk over a socket pair. A test takes a duplicate of the agent's end, so that it can say what
//! an agent would say at a moment of the test's own choice, whether the real agent runs, is stopped, or would say
//! otherwise.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{SendFlags, send};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::Job;

/// The agent's descriptor of its end.
const AGENTS_END: i32 = 3;
/// First byte of a packet whose body is in the packet itself.
const INLINE: u8 = 0;

/// A duplicate of an agent's end of its line to the keeper.
#[derive(Debug)]
pub struct Voice {
    end: OwnedFd,
}

/// A synchronised step that the agent has seen.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// The generation.
    pub generation: u64,
    /// How long ago.
    pub ago: Duration,
    /// The step.
    pub step: u64,
    /// The local ranks that have made it.
    pub local_ranks: &'static [u32],
}

impl Job {
    /// The voice of the agent that there is now; it speaks to nobody once that is dead.
    #[track_caller]
    pub fn voice(&self) -> Voice {
        let agent = self.eventually("the agent", Job::agent);
        let pid = Pid::from_raw(agent).unwrap();
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let end = pidfd_getfd(&process, AGENTS_END, PidfdGetfdFlags::empty()).unwrap();
        Voice { end }
    }
}

impl Voice {
    /// Says that the lease holds for this long from now, for how long a step of generation 1 is a witness, and which one
    /// was seen.
    #[track_caller]
    pub fn fence(&self, lease: Duration, witness: Duration, seen: Option<Seen>) {
        let progress = seen.map(|seen| {
            json!({
                "generation": seen.generation,
                "at_ns": nanoseconds(now().saturating_sub(seen.ago)),
                "step": seen.step,
                "local_ranks": seen.local_ranks,
            })
        });
        self.say(&json!({ "fence": {
            "lease_until_ns": nanoseconds(now() + lease),
            "tenure": 1,
            "generation": 1,
            "witness_ms": u64::try_from(witness.as_millis()).unwrap(),
            "progress": progress,
        }}));
    }

    #[track_caller]
    fn say(&self, request: &Value) {
        let mut packet = vec![INLINE];
        packet.extend_from_slice(request.to_string().as_bytes());
        let sent = send(&self.end, &packet, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, packet.len());
    }
}

fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}
