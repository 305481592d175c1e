// SPDX-License-Identifier: Apache-2.0
//! Holding the fence: the keeper as a dead man's switch over the workers.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{Fenced, Keeper};
use crate::clock;
use crate::console_line::say;
use crate::keeper::protocol::{Notice, Progress, Request, StopRequest};

impl Keeper {
    /// Kills what must not live any more. Comes before anything else that the keeper does when it has slept, been stopped
    /// or been starved: a machine that wakes up has, for this long, workers that may have been replaced.
    pub(in crate::keeper) fn hold_fence(&mut self, now: Instant) {
        if !self.is_past_fence() {
            return;
        }
        // What was renewed in time counts, though we have not come to read it. What is out of date by now does not help.
        self.receive(now);
        if self.is_past_fence() {
            self.end_by_fence(self.generation, now);
        }
    }

    /// When the fence passes, if nothing is heard until then.
    pub(super) fn fence_deadline(&self) -> Option<Instant> {
        let until_ns = self.fence.until_ns().filter(|_| self.is_fenceable())?;
        Some(instant_of(until_ns))
    }

    /// Takes in what the agent asks for. What keeps the fence up counts at once, the rest when its turn comes.
    pub(super) fn receive(&mut self, now: Instant) {
        for (request, descriptors) in self.agent.requests(now) {
            self.keep_fence(&request);
            self.requests.push_back((request, descriptors));
        }
    }

    /// Takes in a request if it is about the fence; it does no harm to do so twice.
    pub(super) fn keep_fence(&mut self, request: &Request) {
        let Request::Fence {
            lease_until_ns,
            witness_ms,
            progress,
        } = request
        else {
            return;
        };
        self.fence
            .renew(*lease_until_ns, Duration::from_millis(*witness_ms));
        if let Some(Progress {
            generation, at_ns, ..
        }) = progress
        {
            self.fence
                .progressed(*generation, *at_ns, clock::monotonic_ns());
        }
    }

    /// A generation that was never started, or the one that runs, ends here and now.
    pub(super) fn end_by_fence(&mut self, generation: u64, now: Instant) {
        let before = self.fenced.filter(|fenced| fenced.generation == generation);
        self.fenced = before.or_else(|| {
            Some(Fenced {
                generation,
                at_ns: clock::monotonic_ns(),
            })
        });
        self.tell_fenced();
        let kill_now = StopRequest {
            generation,
            first_signal: Signal::SIGKILL as i32,
            grace_ms: 0,
        };
        self.stop(kill_now, now);
        if !self.agent.is_in_charge() {
            say(&format!(
                "generation {generation} ends here: this node's lease has run out, and no step shows that the others still \
                 work with it. None of its workers may run any more"
            ));
        }
    }

    pub(super) fn tell_fenced(&mut self) {
        if let Some(Fenced { generation, at_ns }) = self.fenced {
            self.agent.tell(&Notice::Fenced { generation, at_ns }, &[]);
        }
    }

    /// Whether the newest generation was ended by the fence.
    pub(super) fn is_fenced(&self) -> bool {
        self.fenced
            .is_some_and(|fenced| fenced.generation >= self.generation)
    }

    fn is_past_fence(&self) -> bool {
        self.is_fenceable() && self.fence.has_passed(clock::monotonic_ns())
    }

    /// Whether there are workers that the fence has not ended.
    fn is_fenceable(&self) -> bool {
        self.generation > self.stopped_generation && !self.is_fenced()
    }
}

/// A monotonic time as the loop counts it; now, if it has passed.
fn instant_of(monotonic_ns: u64) -> Instant {
    Instant::now() + Duration::from_nanos(monotonic_ns.saturating_sub(clock::monotonic_ns()))
}
