// SPDX-License-Identifier: Apache-2.0
//! A simulated node: its keeper with the workers, and the agent that may be there or not.

use std::collections::BTreeMap;

use steadfast_core::{
    Generation, Instant, KeeperStop, Leader, LeaseId, LocalRank, Member, MemberEvent, NodeName,
    Plan, SpawnFailure, WorkerExit, WorkerObservation, WorkerState,
};
use steadfast_proto::v1::{FaultClass, FaultRole, Finding};

/// A host that may be up or down.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: NodeName,
    /// How far this host's monotonic clock is ahead of the simulation's, in microseconds.
    pub(crate) clock_ahead: u64,
    pub(crate) up: bool,
    pub(crate) incarnation: u64,
    pub(crate) lease: LeaseId,
    pub(crate) lease_held: bool,
    pub(crate) keeper: Keeper,
    pub(crate) agent: Option<Agent>,
    /// Numbers the agents; what is on its way to or from an earlier one is lost.
    pub(crate) life: u64,
    /// The member has left: the job is over for this node.
    pub(crate) left: bool,
    /// Until when the two directions between keeper and agent are taken; messages do not overtake
    /// one another.
    pub(crate) link_busy: [u64; 2],
}

/// What survives the agent.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    pub(crate) generation: u64,
    pub(crate) workers: Vec<Worker>,
    pub(crate) stop: Option<Stop>,
    pub(crate) interrupts: Vec<i32>,
    /// What the next start will run into, by local rank: whether it is bound to fail again.
    pub(crate) spawn_failures: BTreeMap<u32, bool>,
    pub(crate) next_port: u16,
}

/// A stop in progress, or done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stop {
    /// On the simulation's clock.
    pub(crate) began: u64,
    pub(crate) reported: bool,
}

/// A worker process.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    pub(crate) serial: u64,
    pub(crate) local: u32,
    pub(crate) rank: u64,
    pub(crate) life: Life,
    pub(crate) ignores_term: bool,
    pub(crate) unkillable: bool,
    /// SIGKILL was sent and did not end it.
    pub(crate) survived: bool,
}

/// How a worker is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Life {
    Alive,
    /// Dead, not reaped.
    Dying(WorkerExit),
    /// Reaped, at this time on the simulation's clock.
    Reaped(WorkerExit, u64, Box<Finding>),
    NeverBorn(SpawnFailure),
}

/// The agent: lives in memory only.
#[derive(Debug, Default)]
pub(crate) struct Agent {
    /// Set once the store was read.
    pub(crate) member: Option<Member>,
    pub(crate) leader: Option<Leader>,
    /// What the keeper said before the store was read.
    pub(crate) inbox: Vec<MemberEvent>,
    pub(crate) electing: bool,
    pub(crate) member_desk: Desk,
    pub(crate) leader_desk: Desk,
}

/// What connects a machine to the store and to the clock.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Desk {
    /// Number of the subscription; changes for another one are not meant for this machine.
    pub(crate) watch: u64,
    /// Until when the watch is taken; changes do not overtake one another.
    pub(crate) watch_busy: u64,
    /// The call that is outstanding.
    pub(crate) call: Option<u64>,
    /// The timer that is set, on the simulation's clock.
    pub(crate) timer: Option<u64>,
}

impl Node {
    pub(crate) fn instant(&self, now: u64) -> Instant {
        Instant::from_nanos((now + self.clock_ahead) * 1_000)
    }

    /// The simulation's time of one of this node's instants, rounded up.
    pub(crate) fn time_of(&self, instant: Instant) -> u64 {
        instant
            .as_nanos()
            .div_ceil(1_000)
            .saturating_sub(self.clock_ahead)
    }

    /// All that a new agent learns from the keeper.
    pub(crate) fn resume(&self) -> Vec<MemberEvent> {
        let generation = Generation(self.keeper.generation);
        let observe = |worker: &Worker| WorkerObservation {
            generation,
            local_rank: LocalRank(worker.local),
            state: match &worker.life {
                Life::Alive | Life::Dying(_) => WorkerState::Alive,
                Life::Reaped(exit, at, finding) => WorkerState::Exited {
                    exit: *exit,
                    at: self.instant(*at),
                    finding: Some(Finding::clone(finding)),
                },
                Life::NeverBorn(failure) => WorkerState::SpawnFailed(failure.clone()),
            },
        };
        let mut events = vec![MemberEvent::Resume {
            workers: self.keeper.workers.iter().map(observe).collect(),
            stopping: self.keeper.stop.map(|stop| KeeperStop {
                generation,
                began: self.instant(stop.began),
            }),
            next_port: self.keeper.next_port,
        }];
        if let Some(signal) = self.keeper.interrupts.last() {
            let count = u32::try_from(self.keeper.interrupts.len()).unwrap_or(u32::MAX);
            events.push(MemberEvent::Interrupt {
                signal: *signal,
                count,
            });
        }
        events
    }

    /// What the agent would make of a worker's end.
    pub(crate) fn finding(
        &self,
        now: u64,
        local: u32,
        exit: WorkerExit,
        role: FaultRole,
    ) -> Finding {
        let class = match exit {
            WorkerExit::Signal(1 | 2 | 9 | 15) => FaultClass::Killed,
            _ => FaultClass::Program,
        };
        Finding {
            kind: "worker.exited".to_owned(),
            class: class.into(),
            role: role.into(),
            node: self.name.0.clone(),
            local_rank: Some(local),
            monotonic_ns: self.instant(now).as_nanos(),
            wall_ms: i64::try_from(now / 1_000).unwrap_or(i64::MAX),
            fingerprint: format!("{exit:?}"),
            summary: format!("the worker {exit}"),
            ..Finding::default()
        }
    }
}

impl Keeper {
    /// Takes up a generation: makes the workers that can be made. Says which failed.
    pub(crate) fn start(
        &mut self,
        plan: &Plan,
        node: &NodeName,
        serial: &mut u64,
    ) -> Vec<SpawnFailure> {
        let Some(place) = plan.member(node) else {
            return Vec::new();
        };
        self.generation = plan.generation.0;
        self.stop = None;
        self.workers.clear();
        let mut failures = Vec::new();
        for local in 0..place.slots {
            *serial += 1;
            let life = match self.spawn_failures.remove(&local) {
                Some(certain) => {
                    let failure = SpawnFailure {
                        local_rank: LocalRank(local),
                        message: "no such file or directory".to_owned(),
                        certain,
                        exit_code: Some(127),
                    };
                    failures.push(failure.clone());
                    Life::NeverBorn(failure)
                }
                None => Life::Alive,
            };
            self.workers.push(Worker {
                serial: *serial,
                local,
                rank: u64::from(place.base_rank.0) + u64::from(local),
                life,
                ignores_term: false,
                unkillable: false,
                survived: false,
            });
        }
        failures
    }

    pub(crate) fn worker(&mut self, serial: u64) -> Option<&mut Worker> {
        self.workers
            .iter_mut()
            .find(|worker| worker.serial == serial)
    }

    /// The living worker with this local rank.
    pub(crate) fn living(&mut self, local: u32) -> Option<&mut Worker> {
        self.workers
            .iter_mut()
            .find(|worker| worker.local == local && worker.life == Life::Alive)
    }

    pub(crate) fn alive(&self) -> impl Iterator<Item = &Worker> {
        self.workers
            .iter()
            .filter(|worker| worker.life == Life::Alive)
    }

    /// Whether everything that can go is gone, and with whom left over.
    pub(crate) fn is_stopped(&self) -> Option<Vec<LocalRank>> {
        let gone = |worker: &&Worker| !matches!(worker.life, Life::Reaped(..) | Life::NeverBorn(_));
        let left: Vec<_> = self.workers.iter().filter(gone).collect();
        left.iter()
            .all(|worker| worker.survived)
            .then(|| left.iter().map(|worker| LocalRank(worker.local)).collect())
    }
}
