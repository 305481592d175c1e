// SPDX-License-Identifier: Apache-2.0
//! Holding the fence: the keeper as a dead man's switch over the workers.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{Fenced, Keeper};
use crate::clock;
use crate::console_line::say;
use crate::keeper::protocol::{Notice, Progress, Request, StopRequest};

/// An agent that has said nothing for this long may be about to say nothing for long.
const SILENCE: Duration = Duration::from_millis(250);

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
            self.lookout.disturb();
            match request {
                Request::Fence {
                    lease_until_ns,
                    tenure,
                    generation,
                    witness_ms,
                    progress,
                } => {
                    let witness = Duration::from_millis(witness_ms);
                    self.fence
                        .renew((tenure, lease_until_ns), generation, witness);
                    if let Some(progress) = progress {
                        self.progressed(&progress);
                    }
                }
                other => self.requests.push_back((other, descriptors)),
            }
        }
    }

    fn progressed(&mut self, progress: &Progress) {
        let now_ns = clock::monotonic_ns();
        self.fence
            .progressed(progress.generation, progress.at_ns, now_ns);
        self.lookout.told(progress);
    }

    /// When to look at the workers' output for steps, if steps count and nobody tells of them: there is no agent in
    /// charge, or it has become silent and a quarter of the window has gone by. The gap between two steps can be two
    /// thirds of the window, so one of them comes to light in what is left.
    pub(super) fn lookout_due(&self) -> Option<Instant> {
        let window = self.fence.witness().filter(|_| self.is_fenceable())?;
        let quarter_gone = instant_of(self.fence.until_ns()?).checked_sub(window / 4 * 3)?;
        let silent_since = self.agent.heard_in_charge();
        let begin = silent_since.map(|heard| quarter_gone.max(heard + SILENCE));
        Some(self.lookout.due(begin))
    }

    pub(super) fn look_out(&mut self, now: Instant) {
        if self.lookout_due().is_none_or(|due| now < due) {
            return;
        }
        if let Some(at_ns) = self.lookout.look(&mut self.workers, now) {
            self.fence
                .progressed(self.generation, at_ns, clock::monotonic_ns());
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

/// A monotonic time as the loop counts it.
fn instant_of(monotonic_ns: u64) -> Instant {
    let (now, now_ns) = (Instant::now(), clock::monotonic_ns());
    let age = Duration::from_nanos(now_ns.saturating_sub(monotonic_ns));
    let ahead = Duration::from_nanos(monotonic_ns.saturating_sub(now_ns));
    now.checked_sub(age).unwrap_or(now) + ahead
}
