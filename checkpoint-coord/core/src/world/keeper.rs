// SPDX-License-Identifier: Apache-2.0
//! A keeper and its workers.

use std::collections::{BTreeMap, VecDeque};

use steadfast_proto::v1::Finding;

use crate::{
    Generation, Instant, KeeperStop, LocalRank, MemberEffect, MemberEvent, NodeName, SpawnFailure,
    WorkerExit, WorkerObservation, WorkerState,
};

#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) commands: VecDeque<MemberEffect>,
    pub(super) outbox: VecDeque<MemberEvent>,
    pub(super) generation: Generation,
    base_rank: u32,
    pub(super) workers: BTreeMap<LocalRank, Worker>,
    pub(super) stopping: Option<KeeperStop>,
    pub(super) fail_next_spawn: bool,
    port: u16,
}

#[derive(Debug, Clone)]
pub(super) struct Worker {
    pub(super) state: WorkerState,
    pub(super) unkillable: bool,
}

impl Keeper {
    pub(super) fn new(port: u16) -> Self {
        Self {
            commands: VecDeque::new(),
            outbox: VecDeque::new(),
            generation: Generation(0),
            base_rank: 0,
            workers: BTreeMap::new(),
            stopping: None,
            fail_next_spawn: false,
            port,
        }
    }

    pub(super) fn resume(&mut self) -> MemberEvent {
        let generation = self.generation;
        MemberEvent::Resume {
            workers: self
                .workers
                .iter()
                .map(|(local_rank, worker)| WorkerObservation {
                    generation,
                    local_rank: *local_rank,
                    state: worker.state.clone(),
                })
                .collect(),
            stopping: self.stopping,
            next_port: self.next_port(),
        }
    }

    /// Ranks of workers that can still run.
    pub(super) fn alive(&self) -> impl Iterator<Item = (Generation, u32)> + '_ {
        self.workers
            .iter()
            .filter(|(_, worker)| worker.state == WorkerState::Alive && !worker.unkillable)
            .map(|(local_rank, _)| (self.generation, self.base_rank + local_rank.0))
    }

    /// A generation that was started, or whose stop came first, is not started (again).
    pub(super) fn refuses(&self, generation: Generation) -> bool {
        generation <= self.generation
    }

    pub(super) fn carry_out(
        &mut self,
        now: Instant,
        name: &NodeName,
        command: MemberEffect,
        early: bool,
    ) {
        match command {
            MemberEffect::Start { plan } if !self.refuses(plan.generation) => {
                if let Some(place) = plan.member(name) {
                    self.start(plan.generation, place.base_rank.0, place.slots);
                }
            }
            MemberEffect::Stop { generation, .. } if generation >= self.generation => {
                if generation > self.generation {
                    self.generation = generation;
                    self.workers.clear();
                    self.stopping = None;
                }
                self.stopping.get_or_insert(KeeperStop {
                    generation,
                    began: now,
                });
                if early || self.alive().next().is_none() {
                    self.say_stopped();
                }
            }
            MemberEffect::KillNow { generation } if generation == self.generation => {
                self.kill_all(now);
            }
            _ => {}
        }
    }

    fn start(&mut self, generation: Generation, base_rank: u32, slots: u32) {
        self.generation = generation;
        self.base_rank = base_rank;
        self.stopping = None;
        self.workers.clear();
        let mut failures = Vec::new();
        for local_rank in (0..slots).map(LocalRank) {
            let mut state = WorkerState::Alive;
            if std::mem::take(&mut self.fail_next_spawn) {
                let failure = SpawnFailure {
                    local_rank,
                    message: "no such file".to_owned(),
                    certain: false,
                    exit_code: Some(127),
                };
                failures.push(failure.clone());
                state = WorkerState::SpawnFailed(failure);
            }
            let worker = Worker {
                state,
                unkillable: false,
            };
            self.workers.insert(local_rank, worker);
        }
        self.outbox.push_back(MemberEvent::Started {
            generation,
            failures,
        });
    }

    /// One of the workers that are alive exits.
    pub(super) fn exit(
        &mut self,
        now: Instant,
        pick: u32,
        exit: WorkerExit,
        finding: Option<Finding>,
    ) -> Option<Generation> {
        let alive: Vec<_> = self
            .workers
            .iter_mut()
            .filter(|(_, worker)| worker.state == WorkerState::Alive && !worker.unkillable)
            .collect();
        let count = alive.len();
        let (local_rank, worker) = alive.into_iter().nth(pick as usize % count.max(1))?;
        worker.state = WorkerState::Exited {
            exit,
            at: now,
            finding: finding.clone(),
        };
        self.outbox.push_back(MemberEvent::WorkerExited {
            generation: self.generation,
            local_rank: *local_rank,
            exit,
            at: now,
            finding,
        });
        if self.stopping.is_some() && self.alive().next().is_none() {
            self.say_stopped();
        }
        Some(self.generation)
    }

    /// A worker goes into uninterruptible sleep.
    pub(super) fn make_unkillable(&mut self, pick: u32) {
        let count = self.workers.len().max(1);
        if let Some(worker) = self.workers.values_mut().nth(pick as usize % count)
            && worker.state == WorkerState::Alive
        {
            worker.unkillable = true;
            if self.stopping.is_some() && self.alive().next().is_none() {
                self.say_stopped();
            }
        }
    }

    /// Whether some worker will never be gone.
    pub(super) fn is_stuck(&self) -> bool {
        self.workers
            .values()
            .any(|worker| worker.unkillable && worker.state == WorkerState::Alive)
    }

    /// SIGKILL to all that are left.
    pub(super) fn kill_all(&mut self, now: Instant) {
        if self.stopping.is_none() {
            return;
        }
        while self.exit(now, 0, WorkerExit::Signal(9), None).is_some() {}
    }

    fn say_stopped(&mut self) {
        let unkillable = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.state == WorkerState::Alive && worker.unkillable)
            .map(|(local_rank, _)| *local_rank)
            .collect();
        let next_port = self.next_port();
        self.outbox.push_back(MemberEvent::Stopped {
            generation: self.generation,
            unkillable,
            next_port,
        });
    }

    fn next_port(&mut self) -> u16 {
        self.port += 1;
        self.port
    }
}
