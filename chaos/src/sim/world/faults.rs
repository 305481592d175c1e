// SPDX-License-Identifier: Apache-2.0
//! Faults and requests, as the schedule has them.

use steadfast_core::{LeaseId, MemberEvent, Operation, OperatorRequest, Transaction, WorkerExit};

use steadfast_proto::v1::Finding;

use super::{Checked, MS, World};
use crate::sim::event::{Address, Event, Who};
use crate::sim::node::{Keeper, Life};
use crate::sim::schedule::FaultKind;

impl World {
    pub(super) fn fault(&mut self, number: usize) -> Checked {
        let fault = self.schedule.faults[number];
        let index = fault.node as usize;
        if self
            .nodes
            .get(index)
            .is_none_or(|node| !node.up || node.left)
        {
            return Ok(());
        }
        self.note(|| format!("node-{index}: FAULT {:?}", fault.kind));
        match fault.kind {
            FaultKind::WorkerExits { worker, code } => {
                self.hit(index, worker, WorkerExit::Code(code), fault.kind);
            }
            FaultKind::WorkerKilled { worker, signal } => {
                self.hit(index, worker, WorkerExit::Signal(signal), fault.kind);
            }
            FaultKind::WorkerLeavesEarly { worker } => {
                self.hit(index, worker, WorkerExit::Code(0), fault.kind);
            }
            FaultKind::WorkerIgnoresTerm { worker } => self.mark(index, worker, fault.kind),
            FaultKind::WorkerUnkillable { worker } => self.mark(index, worker, fault.kind),
            FaultKind::SpawnFails { worker, certain } => {
                self.count(fault.kind.name());
                self.nodes[index]
                    .keeper
                    .spawn_failures
                    .insert(worker, certain);
            }
            FaultKind::AgentCrashes { down_ms } => {
                self.agent_crashes(index, down_ms, fault.kind)?;
            }
            FaultKind::NodeCrashes { down_ms } => self.node_crashes(index, down_ms, fault.kind)?,
            FaultKind::LeadershipLost => {
                self.count(fault.kind.name());
                let key = self.keys.leader();
                let then = vec![Operation::Delete { key }];
                self.transact(&Transaction { when: vec![], then })?;
            }
            FaultKind::StoreDown { for_ms } => {
                self.count(fault.kind.name());
                self.checker.store_silent(for_ms * MS);
                self.store_down_until = self.store_down_until.max(self.now + for_ms * MS);
            }
            FaultKind::WatchBroken { gap_ms } => self.watch_broken(index, gap_ms, fault.kind),
            FaultKind::ExitRepeated => self.exit_repeated(index, fault.kind),
            FaultKind::OperatorStops | FaultKind::OperatorRestarts => {
                self.operator(index, fault.kind)?;
            }
            FaultKind::Interrupted { signal } => self.interrupted(index, signal, fault.kind),
        }
        Ok(())
    }

    pub(super) fn node_returns(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.up = true;
        node.incarnation += 1;
        node.clock_ahead = 5_000 * MS;
        let next_port = node.keeper.next_port.wrapping_add(100).max(1_024);
        node.keeper = Keeper {
            next_port,
            ..Keeper::default()
        };
        node.lease_held = false;
        self.agent_starts(index);
    }

    /// A lease that nobody keeps any more has run out.
    pub(super) fn lease_ends(&mut self, index: usize, lease: LeaseId) -> Checked {
        let node = &mut self.nodes[index];
        if node.lease == lease {
            if node.agent.is_some() {
                return Ok(());
            }
            node.lease_held = false;
        }
        self.end_lease(lease)
    }

    fn hit(&mut self, index: usize, worker: u32, exit: WorkerExit, kind: FaultKind) {
        let keeper = &mut self.nodes[index].keeper;
        let (generation, stopping) = (keeper.generation, keeper.stop.is_some());
        let Some(rank) = keeper
            .living(worker)
            .filter(|_| !stopping)
            .map(|worker| worker.rank)
        else {
            return;
        };
        self.count(kind.name());
        self.hit_rank(generation, rank, exit);
    }

    fn mark(&mut self, index: usize, worker: u32, kind: FaultKind) {
        let Some(worker) = self.nodes[index].keeper.living(worker) else {
            return;
        };
        if kind
            == (FaultKind::WorkerUnkillable {
                worker: worker.local,
            })
        {
            worker.unkillable = true;
        } else {
            worker.ignores_term = true;
        }
        self.count(kind.name());
    }

    /// The agent is gone. Of what it had said to the keeper, a part arrives.
    fn agent_crashes(&mut self, index: usize, down_ms: u64, kind: FaultKind) -> Checked {
        if self.nodes[index].agent.is_none() {
            return Ok(());
        }
        self.count(kind.name());
        self.lose_agent(index)?;
        self.after(down_ms * MS, Event::AgentStarts(index));
        Ok(())
    }

    fn lose_agent(&mut self, index: usize) -> Checked {
        self.checker.agent_died();
        let node = &mut self.nodes[index];
        let (life, lease) = (node.life, node.lease);
        node.agent = None;
        node.life += 1;
        let said: Vec<_> = self
            .queue
            .iter()
            .filter(|(_, event)| matches!(event, Event::ToKeeper(of, at, _) if *of == index && *at == life))
            .map(|(key, _)| *key)
            .collect();
        let arrive = self.random.below(said.len() as u64 + 1);
        for (number, key) in said.into_iter().enumerate() {
            if let Some(Event::ToKeeper(_, _, command)) = self.queue.remove(&key)
                && (number as u64) < arrive
            {
                self.command(index, command)?;
            }
        }
        self.after(
            self.schedule.pace.lease_ms * MS,
            Event::LeaseEnds(index, lease),
        );
        Ok(())
    }

    fn node_crashes(&mut self, index: usize, down_ms: Option<u64>, kind: FaultKind) -> Checked {
        self.count(kind.name());
        self.lose_agent(index)?;
        let node = &mut self.nodes[index];
        node.up = false;
        let generation = node.keeper.generation;
        let serials: Vec<_> = node
            .keeper
            .workers
            .iter()
            .map(|worker| worker.serial)
            .collect();
        for worker in &mut node.keeper.workers {
            if worker.life == Life::Alive {
                worker.life = Life::Dying(WorkerExit::Signal(9));
            }
        }
        let (name, incarnation) = (node.name.0.clone(), node.incarnation);
        for serial in serials {
            self.checker.ended(serial, false);
        }
        self.checker.keeper_died(&name, incarnation);
        self.survivors_notice(generation);
        if let Some(down_ms) = down_ms {
            self.after(down_ms * MS, Event::NodeReturns(index));
        }
        Ok(())
    }

    fn watch_broken(&mut self, index: usize, gap_ms: u64, kind: FaultKind) {
        let node = &mut self.nodes[index];
        let life = node.life;
        let Some(agent) = node.agent.as_mut().filter(|agent| agent.member.is_some()) else {
            return;
        };
        let mut broken = vec![Who::Member];
        agent.member_desk.watch = 0;
        if agent.leader.is_some() {
            agent.leader_desk.watch = 0;
            broken.push(Who::Leader);
        }
        self.count(kind.name());
        self.checker.store_silent(gap_ms * MS);
        for who in broken {
            let address = Address {
                node: index,
                life,
                who,
            };
            self.after(gap_ms * MS, Event::ReadArrives(address));
        }
    }

    fn exit_repeated(&mut self, index: usize, kind: FaultKind) {
        let found = self.nodes[index]
            .keeper
            .workers
            .iter()
            .find_map(|worker| match &worker.life {
                Life::Reaped(exit, _, finding) => {
                    Some((worker.local, *exit, Finding::clone(finding)))
                }
                _ => None,
            });
        if let Some((local, exit, finding)) = found {
            self.count(kind.name());
            self.say_exit(index, local, exit, Some(finding));
        }
    }

    fn operator(&mut self, index: usize, kind: FaultKind) -> Checked {
        let node = &self.nodes[index];
        // Nobody answers on the socket while there is no agent.
        let Some(member) = node.member() else {
            return Ok(());
        };
        let (generation, life) = (member.generation().0, node.life);
        self.count(kind.name());
        let reason = "asked in a simulation".to_owned();
        let request = if kind == FaultKind::OperatorStops {
            self.checker.end_asked();
            OperatorRequest::Stop {
                grace: None,
                reason,
            }
        } else {
            self.checker.restart_asked(generation);
            OperatorRequest::Restart { reason }
        };
        let address = Address {
            node: index,
            life,
            who: Who::Member,
        };
        self.tell_member(address, MemberEvent::Operator(request))
    }

    fn interrupted(&mut self, index: usize, signal: i32, kind: FaultKind) {
        self.count(kind.name());
        self.checker.end_asked();
        let interrupts = &mut self.nodes[index].keeper.interrupts;
        interrupts.push(signal);
        let count = u32::try_from(interrupts.len()).unwrap_or(u32::MAX);
        self.say(index, MemberEvent::Interrupt { signal, count });
    }
}
