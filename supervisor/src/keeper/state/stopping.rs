// SPDX-License-Identifier: Apache-2.0
//! Stopping a generation, suspending the job, and ending it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use steadfast_process::tree;

use super::{Finishing, Keeper};
use crate::clock;
use crate::console_line::say;
use crate::keeper::interrupts::Meaning;
use crate::keeper::ladder::{Ladder, Outcome, Scene};
use crate::keeper::protocol::{Notice, StopRequest};
use crate::keeper::workers::Worker;

/// Deaths in a row after which a job without any living worker is ended without an agent.
const HOPELESS: u32 = 8;
/// `EX_SOFTWARE` of `sysexits.h`: the supervisor itself is broken.
const NOTHING_WORKED: i32 = 70;
/// What daemons that a worker left behind get between SIGTERM and SIGKILL when the job is over.
const LAST_GRACE: Duration = Duration::from_secs(2);
/// How long an agent that announced the end may take to go.
const AGENT_LEAVES_WITHIN: Duration = Duration::from_secs(5);
/// How long the probes that die with it may take. One that takes longer hangs in the kernel, and is left to it.
const PROBES_LEAVE_WITHIN: Duration = Duration::from_secs(1);

impl Keeper {
    pub(super) fn stop(&mut self, request: StopRequest, now: Instant) {
        if request.generation < self.generation {
            return;
        }
        self.interrupts.answered();
        if self.stopped_generation >= request.generation && self.generation == request.generation {
            return self.tell_stopped(request.generation);
        }
        self.stop_began_ns.get_or_insert_with(clock::monotonic_ns);
        if let Some(ladder) = &mut self.ladder {
            ladder.hasten(request, now);
        } else {
            self.ladder = Some(Ladder::new(request, now));
        }
        self.climb(now);
    }

    pub(super) fn climb(&mut self, now: Instant) {
        self.look_at = None;
        let Some(mut ladder) = self.ladder.take() else {
            return;
        };
        let mut except: BTreeSet<i32> = self.unkillable.iter().map(|process| process.pid).collect();
        except.extend(self.agent.pid().map(Pid::as_raw));
        except.extend(self.companion.pid().map(Pid::as_raw));
        except.extend(self.probes.living());
        let numbers = |worker: &Worker| Some((worker.pid?.as_raw(), worker.local_rank));
        let scene = Scene {
            processes: tree::descendants(Pid::this().as_raw(), &except),
            workers: self
                .workers
                .iter()
                .filter(|worker| worker.lives())
                .filter_map(numbers)
                // Reported before: waiting for them again would end no sooner.
                .filter(|(pid, _)| !except.contains(pid))
                .collect(),
            sessions: self.workers.iter().filter_map(numbers).collect(),
            cgroup: self.cgroup.as_ref().ok(),
        };
        match ladder.climb(now, &scene) {
            Outcome::Going(look_at) => {
                self.look_at = Some(look_at);
                self.ladder = Some(ladder);
            }
            Outcome::Done(unkillable) => {
                self.stopped_generation = ladder.generation();
                self.unkillable.extend(unkillable);
                self.reserved.clear();
                self.tell_stopped(self.stopped_generation);
            }
        }
    }

    pub(super) fn interrupt(&mut self, signal: Signal, now: Instant) {
        let meaning = self.interrupts.receive(signal, now);
        let insists = meaning == Meaning::KillNow;
        self.agent.tell(
            &Notice::Interrupt {
                signal: signal as i32,
                insists,
            },
            &[],
        );
        if insists {
            let kill_now = StopRequest {
                generation: self.generation,
                first_signal: Signal::SIGKILL as i32,
                grace_ms: 0,
            };
            self.stop(kill_now, now);
        }
    }

    pub(super) fn stop_without_agent(&mut self, signal: i32, now: Instant) {
        say("no agent answers: the keeper itself stops the workers");
        let grace_ms = u64::try_from(self.stop_grace.as_millis()).unwrap_or(u64::MAX);
        self.stop(
            StopRequest {
                generation: self.generation,
                first_signal: signal,
                grace_ms,
            },
            now,
        );
    }

    /// Ctrl-Z: everything stops, the keeper last.
    ///
    /// All but the companion: other nodes, which are not suspended, may depend on it.
    pub(super) fn suspend(&self) {
        if Pid::this().as_raw() == 1 {
            // The kernel does not let the first process of a namespace stop itself: nobody would continue the others.
            say("SIGTSTP is ignored: the supervisor is the first process of its container");
            return;
        }
        let except = self.companion.pid().map(Pid::as_raw).into_iter().collect();
        let everything = tree::descendants(Pid::this().as_raw(), &except);
        for process in &everything {
            process.signal(Signal::SIGSTOP);
        }
        // Returns when somebody continues us; SIGCONT then arrives as data.
        let _stops_here = kill(Pid::this(), Signal::SIGSTOP);
    }

    pub(super) fn resume(&mut self, now: Instant) {
        for process in tree::descendants(Pid::this().as_raw(), &BTreeSet::new()) {
            process.signal(Signal::SIGCONT);
        }
        self.agent.forgive_silence(now);
        self.agent.tell(&Notice::Resumed, &[]);
    }

    /// Without workers there is nothing that an agent which cannot live could be waited for.
    pub(super) fn end_without_agent(&mut self, now: Instant) {
        let hopeless = self.agent.pid().is_none() && self.agent.deaths_in_a_row >= HOPELESS;
        if !hopeless || self.finishing.is_some() || self.workers.iter().any(Worker::lives) {
            return;
        }
        let death = self.agent.last_death.clone().unwrap_or_default();
        let (code, outcome) = self.outcome_without_agent();
        say(&format!(
            "ending the job without an agent (it {death}, again and again): {outcome}"
        ));
        self.finish(u8::try_from(code).unwrap_or(1), now);
    }

    /// The exit code and the outcome in words, as far as they can be told without knowing the job.
    fn outcome_without_agent(&self) -> (i32, String) {
        let stop_began = self.stop_began_ns.unwrap_or(u64::MAX);
        let newest = self
            .workers
            .iter()
            .filter(|worker| worker.generation == self.generation);
        let failed = newest.filter_map(|worker| {
            let (exit, ended) = (worker.exit?, worker.ended_ns?);
            (!exit.is_success() && ended <= stop_began).then_some((ended, worker, exit))
        });
        if let Some((_, worker, exit)) = failed.min_by_key(|(ended, ..)| *ended) {
            let rank = worker.rank;
            return (
                exit.shell_code(),
                format!("the first worker to fail was rank {rank}"),
            );
        }
        match self.interrupts.received().first() {
            Some(signal) => (128 + signal, "it was stopped on request".to_owned()),
            None if self.is_fenced() => (
                i32::from(self.infrastructure_code),
                "this node's lease had run out, and its workers were killed".to_owned(),
            ),
            None if self.generation == 0 => (NOTHING_WORKED, "nothing was started".to_owned()),
            None => (0, "all its workers have finished".to_owned()),
        }
    }

    pub(super) fn finish(&mut self, exit_code: u8, now: Instant) {
        self.finishing = Some(Finishing {
            exit_code,
            agent_leaves_by: now + AGENT_LEAVES_WITHIN,
            probes_leave_by: now + PROBES_LEAVE_WITHIN,
        });
        let sweep = StopRequest {
            generation: self.generation,
            first_signal: Signal::SIGTERM as i32,
            grace_ms: u64::try_from(LAST_GRACE.as_millis()).unwrap_or(0),
        };
        self.companion.stop(LAST_GRACE, now);
        // Whatever was started since the last stop must go, known or not.
        self.ladder.get_or_insert_with(|| Ladder::new(sweep, now));
        self.climb(now);
    }

    pub(super) fn is_over(&mut self, now: Instant) -> Option<u8> {
        let finishing = self.finishing?;
        if let Some(pid) = self.agent.pid() {
            if now >= finishing.agent_leaves_by {
                let _gone_already = kill(pid, Signal::SIGKILL);
            }
            return None;
        }
        // A moment for the probes that the kernel kills with the agent, unless they hang.
        let probes_left = now < finishing.probes_leave_by && self.probes.living().next().is_some();
        (self.ladder.is_none() && self.companion.is_gone(now) && !probes_left)
            .then_some(finishing.exit_code)
    }
}
