// SPDX-License-Identifier: Apache-2.0
//! Starting a generation, and reaping what has ended.

use std::os::fd::OwnedFd;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use steadfast_process::exit::{Exit, reap_one};

use super::Keeper;
use crate::clock;
use crate::keeper::protocol::{ExitRecord, Notice, StartRequest};
use crate::keeper::workers::{Surroundings, Worker};

impl Keeper {
    pub(super) fn start(&mut self, request: &StartRequest, reserved: Vec<OwnedFd>, now: Instant) {
        let generation = request.generation;
        if self.refuses_by_fence(request) {
            return self.end_by_fence(generation, now);
        }
        if let Some(reason) = self.refusal(generation) {
            self.agent.tell(
                &Notice::Started {
                    generation,
                    refused: Some(reason),
                },
                &[],
            );
            return;
        }
        if generation > self.generation {
            self.generation = generation;
            self.fence.begin(generation);
            self.lookout.begin(generation);
            self.stop_began_ns = None;
            self.unkillable.clear();
            self.reserved = reserved;
            let surroundings = Surroundings {
                generation,
                cgroup: self.cgroup.as_ref().ok(),
                environment: &self.environment,
            };
            let started: Vec<Worker> = request
                .workers
                .iter()
                .map(|worker| Worker::start(worker, &surroundings))
                .collect();
            for worker in started {
                self.agent
                    .tell(&Notice::Attached(worker.view()), &worker.descriptors());
                if let Some(exit) = worker.exit {
                    self.record_exit(&worker, exit);
                }
                self.workers.push(worker);
            }
        }
        self.agent.tell(
            &Notice::Started {
                generation,
                refused: None,
            },
            &[],
        );
    }

    /// Whether a generation must not start because no lease holds, or another one than when that was decided. One that was refused so is never started, whatever
    /// holds later: it may be taken for lost by then.
    fn refuses_by_fence(&self, request: &StartRequest) -> bool {
        let generation = request.generation;
        let was_fenced = self
            .fenced
            .is_some_and(|fenced| fenced.generation == generation);
        let is_new = generation > self.generation;
        let is_due = is_new && self.refusal(generation).is_none();
        is_new && was_fenced
            || is_due && !self.fence.lets_start(request.tenure, clock::monotonic_ns())
    }

    /// Why a generation may not start, if it may not.
    pub(super) fn refusal(&self, generation: u64) -> Option<String> {
        if generation < self.generation {
            return Some(format!(
                "generation {} has already been started",
                self.generation
            ));
        }
        if generation <= self.stopped_generation {
            return Some(format!("generation {generation} has already been stopped"));
        }
        if generation == self.generation {
            return None;
        }
        if self.finishing.is_some() {
            return Some("the job is over".to_owned());
        }
        if self.ladder.is_some() || self.stopped_generation < self.generation {
            return Some(format!(
                "generation {} has not been stopped",
                self.generation
            ));
        }
        None
    }

    pub(super) fn reap(&mut self, now: Instant) {
        // An error other than "no children" cannot happen with these arguments; it would show as a worker that stays.
        while let Ok(Some((pid, exit))) = reap_one() {
            if self.agent.pid() == Some(pid) {
                // What it still asked for counts, above all the end of the job.
                self.on_requests(now);
                self.agent.died(exit, now);
                continue;
            }
            if self.companion.reaped(pid, exit) {
                self.tell_companion();
                continue;
            }
            self.unkillable
                .retain(|process| process.pid != pid.as_raw());
            let Some(index) = self
                .workers
                .iter()
                .position(|worker| worker.lives() && worker.pid == Some(pid))
            else {
                continue;
            };
            let mut worker = self.workers.swap_remove(index);
            worker.ended(exit);
            self.record_exit(&worker, exit);
            self.workers.push(worker);
        }
        if self.ladder.is_some() {
            self.climb(now);
        }
    }

    pub(super) fn record_exit(&mut self, worker: &Worker, exit: Exit) {
        let record = ExitRecord {
            sequence: self.next_sequence,
            generation: worker.generation,
            rank: worker.rank,
            local_rank: worker.local_rank,
            pid: worker.view().pid,
            exit,
            spawn_error: worker.spawn_error.clone(),
            while_stopping: self.ladder.is_some(),
            at_ns: worker.ended_ns.unwrap_or_else(clock::monotonic_ns),
        };
        self.next_sequence += 1;
        self.agent.tell(&Notice::Exited(record.clone()), &[]);
        self.exits.push(record);
    }

    pub(super) fn release(&mut self, generation: u64) {
        for worker in self
            .workers
            .iter_mut()
            .filter(|worker| worker.generation <= generation)
        {
            worker.streams.clear();
        }
        let newest = self.generation;
        self.workers.retain(|worker| {
            worker.generation == newest || worker.lives() || !worker.streams.is_empty()
        });
    }

    pub(super) fn signal_workers(&self, signal: Signal) {
        for pid in self
            .workers
            .iter()
            .filter(|worker| worker.lives())
            .filter_map(|worker| worker.pid)
        {
            // Not reaped yet, so the number is still its own; an error means that it has just ended.
            let _just_ended = kill(pid, signal);
        }
    }
}
