// SPDX-License-Identifier: Apache-2.0
//! A simulated node: its keeper with the workers, and the agent that may be there or not.

use std::collections::BTreeMap;
use std::time::Duration;

use steadfast_core::{
    Generation, Instant, KeeperStop, LeaseId, LocalRank, MemberEvent, NodeName, Plan, SpawnFailure,
    WorkerExit, WorkerObservation, WorkerState,
};
use steadfast_proto::v1::{FaultClass, FaultRole, Finding};

use crate::agent::Agent;
use crate::clock::Clock;
use crate::event::Event;

/// A host that may be up or down.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: NodeName,
    pub(crate) clock: Clock,
    /// The machine runs.
    pub(crate) up: bool,
    /// Counts the starts of the machine.
    pub(crate) boot: u64,
    /// Until when everything on it stands still.
    pub(crate) paused_until: u64,
    /// What happens to it when it goes on.
    pub(crate) kept: Vec<Event>,
    /// Counts the keepers.
    pub(crate) incarnation: u64,
    /// There is a keeper: a supervisor was started and has not ended.
    pub(crate) served: bool,
    pub(crate) keeper: Keeper,
    pub(crate) agent: Option<Agent>,
    /// Numbers the agents; what is on its way to or from an earlier one is lost.
    pub(crate) life: u64,
    /// Somebody will start a supervisor here again.
    pub(crate) returning: bool,
    /// The supervisor has ended by itself: the job is over for this node.
    pub(crate) left: bool,
    /// Until when the two directions between keeper and agent are taken; messages do not overtake one another.
    pub(crate) link_busy: [u64; 2],
    pub(crate) links: Links,
    /// Until when whoever looks finds it unfit.
    pub(crate) unfit_until: u64,
    /// The last look has shown that.
    pub(crate) seen_unfit: bool,
    /// This agent has looked once.
    pub(crate) looked_at: bool,
}

/// Until when the node is cut off, for each direction.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Links {
    pub(crate) to_store: u64,
    pub(crate) from_store: u64,
    /// Everybody, the store included.
    pub(crate) to_all: u64,
    pub(crate) from_all: u64,
}

/// What survives the agent.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    /// The generation that was started or fenced last.
    pub(crate) generation: u64,
    pub(crate) workers: Vec<Worker>,
    pub(crate) stop: Option<Stop>,
    pub(crate) interrupts: Vec<i32>,
    /// What the next start will run into, by local rank: whether it is bound to fail again.
    pub(crate) spawn_failures: BTreeMap<u32, bool>,
    pub(crate) next_port: u16,
    /// How many agents it has started.
    pub(crate) agents: u64,
    pub(crate) fence: Fence,
}

/// The dead man's switch, on this node's clock.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Fence {
    /// Until when the lease surely holds.
    pub(crate) lease_until: Instant,
    /// The tenure that it belongs to.
    pub(crate) tenure: LeaseId,
    /// For how long a step vouches for the workers.
    pub(crate) window: Duration,
    /// When the generation in hand made its last step.
    pub(crate) stepped: Option<Instant>,
    /// When the next look is due, on the simulation's clock.
    pub(crate) look_at: Option<u64>,
    /// The generation that was fenced last.
    pub(crate) fenced: u64,
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
    /// SIGKILL is on it: it runs no instruction of its own any more.
    pub(crate) killed: bool,
    /// And it was given up.
    pub(crate) survived: bool,
    pub(crate) hangs: bool,
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

impl Node {
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
                    at: self.clock.show(*at),
                    finding: Some(Finding::clone(finding)),
                },
                Life::NeverBorn(failure) => WorkerState::SpawnFailed(failure.clone()),
            },
        };
        let mut events = vec![MemberEvent::Resume {
            workers: self.keeper.workers.iter().map(observe).collect(),
            stopping: self.keeper.stop.map(|stop| KeeperStop {
                generation,
                began: self.clock.show(stop.began),
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
            monotonic_ns: self.clock.show(now).as_nanos(),
            wall_ms: i64::try_from(now / 1_000).unwrap_or(i64::MAX),
            fingerprint: format!("{exit:?}"),
            summary: format!("the worker {exit}"),
            ..Finding::default()
        }
    }

    pub(crate) fn is_paused(&self, now: u64) -> bool {
        now < self.paused_until
    }

    pub(crate) fn sends_to_store(&self, now: u64) -> bool {
        now >= self.links.to_store && now >= self.links.to_all
    }

    pub(crate) fn hears_store(&self, now: u64) -> bool {
        now >= self.links.from_store && now >= self.links.from_all
    }

    /// Whether it can talk to other nodes, both ways.
    pub(crate) fn is_connected(&self, now: u64) -> bool {
        now >= self.links.to_all && now >= self.links.from_all
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
        self.fence.stepped = None;
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
                killed: false,
                survived: false,
                hangs: false,
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
            .find(|worker| worker.local == local && worker.life == Life::Alive && !worker.killed)
    }

    /// Workers that run instructions of their own.
    pub(crate) fn alive(&self) -> impl Iterator<Item = &Worker> {
        self.workers
            .iter()
            .filter(|worker| worker.life == Life::Alive && !worker.killed)
    }

    /// The living workers' serial numbers, for when something is to be done to each.
    pub(crate) fn living_serials(&self) -> Vec<u64> {
        self.alive().map(|worker| worker.serial).collect()
    }

    /// Whether every rank of this node is fit to make a step, or has done its part.
    pub(crate) fn is_fit(&self) -> bool {
        self.workers.iter().all(|worker| match &worker.life {
            Life::Alive => !worker.killed && !worker.hangs,
            Life::Dying(exit) | Life::Reaped(exit, ..) => exit.is_success(),
            Life::NeverBorn(_) => false,
        })
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
