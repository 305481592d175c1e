// SPDX-License-Identifier: Apache-2.0
//! Faults of processes and machines, and what people and schedulers ask for.

use steadfast_core::{MemberEvent, OperatorRequest, WorkerExit};
use steadfast_proto::v1::Finding;

use super::{Checked, MS, World};
use crate::event::{Address, Event};
use crate::node::{Keeper, Life};
use crate::schedule::FaultKind;

/// After how long the keeper kills an agent that does nothing, in milliseconds.
const WATCHDOG_MS: u64 = 10_000;
/// How long the keeper waits before it starts another agent, in milliseconds.
const RESPAWN_MS: u64 = 5;

impl World {
    /// Faults that wait for the restart with this number.
    pub(super) fn faults_in_restart(&mut self, number: u32) {
        for index in 0..self.schedule.faults.len() {
            let fault = self.schedule.faults[index];
            if fault.in_restart == Some(number) {
                self.after(fault.at_ms * MS, Event::Fault(index));
            }
        }
    }

    pub(super) fn fault(&mut self, number: usize) -> Checked {
        let fault = self.schedule.faults[number];
        let index = fault.node as usize;
        if self.healed || index >= self.nodes.len() {
            return Ok(());
        }
        // A store in the supervisor's own process has neither network nor neighbours.
        let alone = self.schedule.is_alone();
        if !alone && (self.fault_of_store(fault.kind)? || self.fault_of_link(index, fault.kind)) {
            return Ok(());
        }
        let node = &self.nodes[index];
        if fault.kind == FaultKind::NodeStarts {
            if !node.served && !node.left && node.incarnation == 0 {
                self.landed(index, fault.kind);
                return self.node_returns(index);
            }
            return Ok(());
        }
        if !node.served {
            return Ok(());
        }
        match fault.kind {
            FaultKind::NodeOff { .. }
            | FaultKind::KeeperKilled { .. }
            | FaultKind::NodePaused { .. }
            | FaultKind::AgentCrashes { .. }
            | FaultKind::AgentPaused { .. } => self.fault_of_node(index, fault.kind),
            FaultKind::OperatorStops
            | FaultKind::OperatorRestarts
            | FaultKind::OperatorDrains
            | FaultKind::Preempted { .. } => self.request(index, fault.kind),
            _ => self.fault_of_worker(index, fault.kind),
        }
    }

    pub(super) fn landed(&mut self, index: usize, kind: FaultKind) {
        self.note(|| format!("node-{index}: FAULT {kind:?}"));
        self.count(kind.name());
    }

    fn fault_of_worker(&mut self, index: usize, kind: FaultKind) -> Checked {
        match kind {
            FaultKind::WorkerExits { worker, code } => {
                self.hit(index, worker, WorkerExit::Code(code), kind)
            }
            FaultKind::WorkerKilled { worker, signal } => {
                self.hit(index, worker, WorkerExit::Signal(signal), kind)
            }
            FaultKind::WorkerLeavesEarly { worker } => {
                self.hit(index, worker, WorkerExit::Code(0), kind)?;
                if self.schedule.shape.synchronous {
                    // Nobody can go on without it: the others find that the training is over, too.
                    let generation = self.nodes[index].keeper.generation;
                    self.finish_training(generation);
                }
                Ok(())
            }
            FaultKind::SpawnFails { worker, certain } => {
                self.landed(index, kind);
                let failures = &mut self.nodes[index].keeper.spawn_failures;
                failures.insert(worker, certain);
                Ok(())
            }
            FaultKind::WorkerHangs { worker, for_ms } => {
                let found = self.nodes[index].keeper.living(worker);
                let serial = found.map(|worker| {
                    worker.hangs = true;
                    worker.serial
                });
                if let Some(serial) = serial {
                    self.landed(index, kind);
                    self.after(for_ms * MS, Event::Unhangs(index, serial));
                }
                Ok(())
            }
            FaultKind::WorkerIgnoresTerm { worker } => {
                self.mark(index, worker, kind);
                Ok(())
            }
            FaultKind::WorkerUnkillable { worker } => {
                self.mark(index, worker, kind);
                Ok(())
            }
            FaultKind::NodeUnfit { for_ms } => {
                self.becomes_unfit(index, kind, for_ms);
                Ok(())
            }
            FaultKind::ExitRepeated => {
                self.exit_repeated(index, kind);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn hit(&mut self, index: usize, worker: u32, exit: WorkerExit, kind: FaultKind) -> Checked {
        let keeper = &mut self.nodes[index].keeper;
        let (generation, stopping) = (keeper.generation, keeper.stop.is_some());
        let Some(rank) = keeper
            .living(worker)
            .filter(|_| !stopping)
            .map(|worker| worker.rank)
        else {
            return Ok(());
        };
        self.landed(index, kind);
        self.hit_rank(generation, rank, exit)
    }

    fn mark(&mut self, index: usize, worker: u32, kind: FaultKind) {
        if self.nodes[index].keeper.stop.is_some() {
            // SIGKILL may be on it already.
            return;
        }
        let Some(worker) = self.nodes[index].keeper.living(worker) else {
            return;
        };
        if matches!(kind, FaultKind::WorkerUnkillable { .. }) {
            worker.unkillable = true;
        } else {
            worker.ignores_term = true;
        }
        self.landed(index, kind);
    }

    pub(super) fn unhangs(&mut self, index: usize, serial: u64) -> Checked {
        if let Some(worker) = self.nodes[index].keeper.worker(serial) {
            worker.hangs = false;
        }
        Ok(())
    }

    fn exit_repeated(&mut self, index: usize, kind: FaultKind) {
        let workers = &self.nodes[index].keeper.workers;
        let found = workers.iter().find_map(|worker| match &worker.life {
            Life::Reaped(exit, _, finding) => Some((worker.local, *exit, Finding::clone(finding))),
            _ => None,
        });
        if let Some((local, exit, finding)) = found {
            self.landed(index, kind);
            self.say_exit(index, local, exit, Some(finding));
        }
    }

    fn fault_of_node(&mut self, index: usize, kind: FaultKind) -> Checked {
        match kind {
            FaultKind::NodeOff { down_ms } | FaultKind::KeeperKilled { down_ms } => {
                self.landed(index, kind);
                if matches!(kind, FaultKind::NodeOff { .. }) {
                    self.nodes[index].up = false;
                }
                self.keeper_dies(index);
                // A store in the keeper's memory dies with it, and the job with the store.
                if let Some(down_ms) = down_ms.filter(|_| !self.schedule.is_alone()) {
                    self.nodes[index].returning = true;
                    self.after(down_ms * MS, Event::NodeReturns(index));
                }
                Ok(())
            }
            FaultKind::NodePaused { for_ms } => {
                self.landed(index, kind);
                self.last_step_of_one(index);
                let until = self.now + for_ms * MS;
                let node = &mut self.nodes[index];
                node.paused_until = node.paused_until.max(until);
                self.checker.paused(index);
                self.checker.causes().disturbed(for_ms * MS);
                self.at(until, Event::NodeWakes(index));
                Ok(())
            }
            FaultKind::AgentCrashes { down_ms } => {
                if self.nodes[index].agent.is_some() {
                    self.landed(index, kind);
                    self.checker.causes().disturbed(down_ms * MS);
                    self.agent_dies(index);
                    let incarnation = self.nodes[index].incarnation;
                    self.after(down_ms * MS, Event::AgentStarts(index, incarnation));
                }
                Ok(())
            }
            FaultKind::AgentPaused { for_ms } => {
                let (now, life) = (self.now, self.nodes[index].life);
                let Some(agent) = &mut self.nodes[index].agent else {
                    return Ok(());
                };
                agent.paused_until = agent.paused_until.max(now + for_ms * MS);
                self.landed(index, kind);
                self.checker.causes().disturbed(for_ms * MS);
                let address = Address { node: index, life };
                self.after(for_ms * MS, Event::AgentWakes(address));
                self.after(WATCHDOG_MS * MS, Event::Watchdog(address));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The keeper kills an agent that has done nothing for so long.
    pub(super) fn watchdog(&mut self, address: Address) -> Checked {
        let node = &self.nodes[address.node];
        let agent = node.agent.as_ref().filter(|_| node.life == address.life);
        if agent.is_some_and(|agent| agent.paused_until > self.now) {
            let incarnation = node.incarnation;
            self.agent_dies(address.node);
            let starts = Event::AgentStarts(address.node, incarnation);
            self.after(RESPAWN_MS * MS, starts);
        }
        Ok(())
    }

    /// The agent is gone; what it has said to the keeper arrives.
    fn agent_dies(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.agent = None;
        node.life += 1;
    }

    /// The keeper is gone, and with it all workers and the agent.
    fn keeper_dies(&mut self, index: usize) {
        self.last_step_of_one(index);
        let node = &mut self.nodes[index];
        let generation = node.keeper.generation;
        let incarnation = node.incarnation;
        for worker in &mut node.keeper.workers {
            if worker.life == Life::Alive {
                worker.life = Life::Dying(WorkerExit::Signal(9));
                self.checker.ended(worker.serial, false);
            }
        }
        self.checker.keeper_died(index, incarnation);
        self.supervisor_ends(index);
        self.survivors_notice(generation);
    }

    /// Nothing of the supervisor is left.
    pub(super) fn supervisor_ends(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.served = false;
        node.agent = None;
        node.life += 1;
    }

    /// Somebody starts a supervisor on the node, which is switched on for it if need be.
    pub(super) fn node_returns(&mut self, index: usize) -> Checked {
        let now = self.now;
        let node = &mut self.nodes[index];
        node.returning = false;
        if node.served || node.left {
            return Ok(());
        }
        if !node.up {
            node.up = true;
            node.boot += 1;
            node.paused_until = 0;
            node.kept.clear();
            node.clock.restart(now);
        }
        node.served = true;
        node.incarnation += 1;
        let next_port = node.keeper.next_port.wrapping_add(100).max(1_024);
        node.keeper = Keeper {
            next_port,
            ..Keeper::default()
        };
        let incarnation = node.incarnation;
        self.agent_starts(index, incarnation)
    }

    pub(super) fn agent_wakes(&mut self, address: Address) -> Checked {
        let now = self.now;
        let node = &mut self.nodes[address.node];
        let agent = node.agent.as_mut().filter(|_| node.life == address.life);
        let awake = agent.filter(|agent| agent.paused_until <= now);
        let kept = awake.map(|agent| std::mem::take(&mut agent.kept));
        let kept = kept.unwrap_or_default();
        if node.is_paused(now) {
            // It was missed before what the whole node has missed since.
            node.kept.splice(0..0, kept);
        } else {
            self.catch_up(kept);
        }
        Ok(())
    }

    pub(super) fn node_wakes(&mut self, index: usize) -> Checked {
        let node = &mut self.nodes[index];
        if node.is_paused(self.now) {
            return Ok(());
        }
        let kept = std::mem::take(&mut node.kept);
        self.catch_up(kept);
        let node = &self.nodes[index];
        if !node.served {
            return Ok(());
        }
        let incarnation = node.incarnation;
        self.checker.woke(index);
        // Before anything else.
        self.fence_due(index, incarnation)
    }

    /// What was missed happens now, in its order, and before what only happens now.
    fn catch_up(&mut self, kept: Vec<Event>) {
        for event in kept {
            self.queue.push_first(self.now, event);
        }
    }

    fn request(&mut self, index: usize, kind: FaultKind) -> Checked {
        let life = self.nodes[index].life;
        let address = Address { node: index, life };
        let reason = "asked in a simulation".to_owned();
        if let FaultKind::Preempted { signal } = kind {
            return self.signalled(index, signal, kind);
        }
        // Nobody answers on the socket while there is no agent.
        let asleep = self.nodes[index].is_paused(self.now)
            || self.nodes[index]
                .agent
                .as_ref()
                .is_some_and(|agent| agent.paused_until > self.now);
        let Some(session) = self.session(address).filter(|_| !asleep) else {
            return Ok(());
        };
        let generation = session.member.generation().0;
        self.landed(index, kind);
        let request = match kind {
            FaultKind::OperatorStops => {
                self.checker.causes().end_asked();
                OperatorRequest::Stop {
                    grace: None,
                    reason,
                }
            }
            FaultKind::OperatorDrains => {
                self.checker.causes().leave_asked(index);
                OperatorRequest::Leave {
                    grace: None,
                    reason,
                }
            }
            _ => {
                self.checker.restart_asked(generation);
                OperatorRequest::Restart { reason }
            }
        };
        self.tell_member(address, MemberEvent::Operator(request))?;
        self.settle(address);
        Ok(())
    }

    /// A signal to the supervisor: on one of several nodes it takes the node out of the job.
    fn signalled(&mut self, index: usize, signal: i32, kind: FaultKind) -> Checked {
        self.landed(index, kind);
        self.checker.causes().signalled(index);
        if self.schedule.is_alone() {
            self.checker.causes().end_asked();
        } else {
            self.checker.causes().leave_asked(index);
        }
        let interrupts = &mut self.nodes[index].keeper.interrupts;
        interrupts.push(signal);
        let count = u32::try_from(interrupts.len()).unwrap_or(u32::MAX);
        self.say(index, MemberEvent::Interrupt { signal, count });
        Ok(())
    }
}
