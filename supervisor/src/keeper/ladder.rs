// SPDX-License-Identifier: Apache-2.0
//! Ending a generation: first signal, grace, SIGKILL, and the report of what even that does not end.
//!
//! The workers themselves get the first signal alone, so that a data loader is not killed under a worker that is saving
//! its last checkpoint. What a worker leaves behind gets it when the worker is gone. The signals of a terminal go to
//! everything in a worker's session, as the terminal would send them: shells rely on that.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use steadfast_process::cgroup::Cgroup;
use steadfast_process::tree::Process;

use super::protocol::{StopRequest, Unkillable};

/// How long after SIGKILL a process that still exists is called unkillable. Freeing the memory of a large process takes
/// up to a second per gibibyte on a slow machine, so this is generous.
const UNKILLABLE_AFTER: Duration = Duration::from_secs(10);
/// How often the tree is looked at again after SIGKILL: what was forked meanwhile must go too.
const SWEEP_EVERY: Duration = Duration::from_millis(20);
/// How often it is looked at during the grace.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The stopping of one generation.
#[derive(Debug)]
pub(super) struct Ladder {
    generation: u64,
    first_signal: Signal,
    kill_at: Instant,
    killed_at: Option<Instant>,
    /// Processes that have got the first signal, by pid and start.
    signalled: BTreeSet<(i32, u64)>,
}

/// What a look at the tree came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Some processes are left; look again by then at the latest.
    Going(Instant),
    /// Nothing is left but what is listed here.
    Done(Vec<Unkillable>),
}

/// What the ladder works on, at one look.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    /// Every process below the keeper but for the agent's.
    pub(super) processes: Vec<Process>,
    /// Pid and local rank of the workers whose process lives.
    pub(super) workers: Vec<(i32, u32)>,
    /// Pid, which is also the session, and local rank of all workers of the generation.
    pub(super) sessions: Vec<(i32, u32)>,
    pub(super) cgroup: Option<&'a Cgroup>,
}

impl Ladder {
    pub(super) fn new(request: StopRequest, now: Instant) -> Ladder {
        Ladder {
            generation: request.generation,
            first_signal: Signal::try_from(request.first_signal).unwrap_or(Signal::SIGTERM),
            kill_at: now + Duration::from_millis(request.grace_ms),
            killed_at: None,
            signalled: BTreeSet::new(),
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// A second request can only shorten the grace.
    pub(super) fn hasten(&mut self, request: StopRequest, now: Instant) {
        self.kill_at = self
            .kill_at
            .min(now + Duration::from_millis(request.grace_ms));
    }

    /// The job was suspended for this long, and the grace with it.
    pub(super) fn postpone(&mut self, by: Duration) {
        self.kill_at += by;
        self.killed_at = self.killed_at.map(|at| at + by);
    }

    /// Does what is due now.
    pub(super) fn climb(&mut self, now: Instant, scene: &Scene<'_>) -> Outcome {
        // A zombie below a live process is that process's to reap, and runs nothing. One of our own that cannot be
        // reaped still has a thread that runs.
        let is_worker =
            |process: &Process| scene.workers.iter().any(|&(pid, _)| pid == process.pid);
        let left: Vec<&Process> = scene
            .processes
            .iter()
            .filter(|process| !process.is_dead() || is_worker(process))
            .collect();
        if left.is_empty() && scene.workers.is_empty() {
            return Outcome::Done(Vec::new());
        }
        if now < self.kill_at {
            self.send_first_signal(&left, scene);
            return Outcome::Going(self.kill_at.min(now + LOOK_EVERY));
        }
        let killed_at = *self.killed_at.get_or_insert(now);
        if let Some(cgroup) = scene.cgroup {
            // Where it fails, the signals one by one below do the same.
            let _killed_one_by_one_instead = cgroup.kill();
        }
        for process in &left {
            process.signal(Signal::SIGKILL);
        }
        if now >= killed_at + UNKILLABLE_AFTER {
            return Outcome::Done(
                left.iter()
                    .map(|process| unkillable(process, &scene.sessions))
                    .collect(),
            );
        }
        Outcome::Going(now + SWEEP_EVERY)
    }

    fn send_first_signal(&mut self, left: &[&Process], scene: &Scene<'_>) {
        // Once: what a worker starts in order to end well must be left alone.
        let at_first = self.signalled.is_empty();
        let from_a_terminal = at_first
            && matches!(
                self.first_signal,
                Signal::SIGINT | Signal::SIGQUIT | Signal::SIGHUP
            );
        for process in left {
            let is_worker = scene.workers.iter().any(|&(pid, _)| pid == process.pid);
            let in_a_session = scene
                .sessions
                .iter()
                .any(|&(session, _)| session == process.session);
            let takes_part = is_worker || (from_a_terminal && in_a_session);
            if !takes_part && !scene.workers.is_empty() {
                continue;
            }
            if self.signalled.insert((process.pid, process.start_ticks)) {
                process.signal(self.first_signal);
                // A stopped process takes no other signal than SIGKILL until it is continued.
                if process.state == 'T' {
                    process.signal(Signal::SIGCONT);
                }
            }
        }
    }
}

fn unkillable(process: &Process, sessions: &[(i32, u32)]) -> Unkillable {
    Unkillable {
        pid: process.pid,
        name: process.name.clone(),
        state: process.state,
        waits_in: process.waits_in(),
        local_rank: sessions
            .iter()
            .find(|&&(session, _)| session == process.session)
            .map(|&(_, rank)| rank),
    }
}
