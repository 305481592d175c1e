// SPDX-License-Identifier: Apache-2.0
//! Keepers: they start, stop and reap workers, and tell their agent.

use steadfast_core::{Generation, LocalRank, MemberEffect, MemberEvent, Plan, WorkerExit};
use steadfast_proto::v1::{FaultRole, Finding};

use super::{Checked, MS, World};
use crate::sim::event::{Address, Event, Who};
use crate::sim::node::{Life, Stop};
use crate::sim::plant::Plant;

/// How long the keeper waits for a worker to die of SIGKILL, in milliseconds.
const GIVE_UP_MS: u64 = 2_000;
const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

impl World {
    pub(super) fn command(&mut self, index: usize, command: MemberEffect) -> Checked {
        if !self.nodes[index].up {
            return Ok(());
        }
        match command {
            MemberEffect::Start { plan } => self.start_workers(index, &plan)?,
            MemberEffect::Stop {
                generation,
                first_signal,
                grace,
                ..
            } => {
                let grace = u64::try_from(grace.as_micros()).unwrap_or(u64::MAX / 2);
                self.stop_workers(index, generation.0, first_signal, grace);
            }
            MemberEffect::KillNow { generation } => self.kill_workers(index, generation.0),
            MemberEffect::Write(_) | MemberEffect::Say(_) | MemberEffect::Finish(_) => {}
        }
        Ok(())
    }

    fn start_workers(&mut self, index: usize, plan: &Plan) -> Checked {
        let generation = plan.generation.0;
        let node = &mut self.nodes[index];
        if generation <= node.keeper.generation {
            return Ok(());
        }
        let failures = node.keeper.start(plan, &node.name, &mut self.serial);
        let name = node.name.0.clone();
        let workers = node.keeper.workers.clone();
        self.training.planned(generation, plan.world_size.into());
        for worker in workers {
            if let Life::NeverBorn(_) = worker.life {
                self.checker.cause(generation, Some(worker.rank));
                continue;
            }
            self.checker
                .spawned(worker.serial, &name, generation, worker.rank)?;
            if self.plant == Some(Plant::StartTwice) {
                self.checker.spawned(
                    worker.serial + 1_000_000_000,
                    &name,
                    generation,
                    worker.rank,
                )?;
            }
        }
        self.say(
            index,
            MemberEvent::Started {
                generation: plan.generation,
                failures,
            },
        );
        self.begin_training();
        Ok(())
    }

    fn stop_workers(&mut self, index: usize, generation: u64, signal: i32, grace: u64) {
        let now = self.now;
        let keeper = &mut self.nodes[index].keeper;
        if generation != keeper.generation {
            // Never started here, or long gone: nothing is left of it.
            return self.say_stopped(index, generation, Vec::new());
        }
        if self.plant == Some(Plant::IgnoreStop) {
            return self.say_stopped(index, generation, Vec::new());
        }
        if let Some(stop) = &mut keeper.stop {
            stop.reported = false;
            return self.look_whether_stopped(index);
        }
        keeper.stop = Some(Stop {
            began: now,
            reported: false,
        });
        let alive: Vec<_> = keeper.alive().cloned().collect();
        for worker in alive {
            if worker.ignores_term || worker.unkillable {
                continue;
            }
            let delay = self.delay(self.schedule.pace.obey_ms);
            let exit = match self.random.below(10) {
                0..=1 => WorkerExit::Code(0),
                2 => WorkerExit::Code(1),
                _ if signal == SIGTERM => WorkerExit::Signal(SIGTERM),
                _ => WorkerExit::Signal(signal),
            };
            self.after(
                delay,
                Event::Death(index, worker.serial, exit, FaultRole::Cause),
            );
        }
        self.after(grace, Event::GraceOver(index, generation));
        self.look_whether_stopped(index);
    }

    pub(super) fn grace_over(&mut self, index: usize, generation: u64) {
        if self.nodes[index].keeper.stop.is_some() {
            self.kill_workers(index, generation);
        }
    }

    fn kill_workers(&mut self, index: usize, generation: u64) {
        let keeper = &self.nodes[index].keeper;
        if generation != keeper.generation || keeper.stop.is_none() {
            return;
        }
        let alive: Vec<_> = keeper.alive().cloned().collect();
        for worker in alive {
            if worker.unkillable {
                // It runs no instruction of its own any more.
                self.checker.ended(worker.serial, false);
                self.after(GIVE_UP_MS * MS, Event::GivesUp(index, generation));
            } else {
                let exit = WorkerExit::Signal(SIGKILL);
                self.after(
                    100,
                    Event::Death(index, worker.serial, exit, FaultRole::Cause),
                );
            }
        }
    }

    pub(super) fn gives_up(&mut self, index: usize, generation: u64) {
        let keeper = &mut self.nodes[index].keeper;
        if generation != keeper.generation || keeper.stop.is_none() {
            return;
        }
        for worker in &mut keeper.workers {
            worker.survived |= worker.life == Life::Alive && worker.unkillable;
        }
        self.look_whether_stopped(index);
    }

    /// A worker process ends, for whatever reason, unless it has ended already.
    pub(super) fn death(&mut self, index: usize, serial: u64, exit: WorkerExit, role: FaultRole) {
        let keeper = &mut self.nodes[index].keeper;
        let stopping = keeper.stop.is_some();
        let Some(worker) = keeper.worker(serial) else {
            return;
        };
        // Nothing sees a worker that is stuck before somebody wants it to stop.
        if worker.life != Life::Alive || (worker.unkillable && stopping) {
            return;
        }
        worker.life = Life::Dying(exit);
        self.checker.ended(serial, exit.is_success());
        self.note(|| format!("node-{index}: worker {serial} {exit}"));
        let delay = self.delay(self.schedule.pace.reap_ms);
        let died = self.now;
        self.after(delay, Event::Reaped(index, serial, exit, died, role));
    }

    pub(super) fn reaped(
        &mut self,
        index: usize,
        serial: u64,
        exit: WorkerExit,
        died: u64,
        role: FaultRole,
    ) {
        let now = self.now;
        let node = &mut self.nodes[index];
        let Some(local) = node.keeper.worker(serial).map(|worker| worker.local) else {
            return;
        };
        let finding = node.finding(died, local, exit, role);
        if let Some(worker) = node.keeper.worker(serial) {
            worker.life = Life::Reaped(exit, now, Box::new(finding.clone()));
        }
        if self.schedule.pace.late_findings {
            self.say_exit(index, local, exit, None);
            let understood = self.exit_event(index, local, exit, Some(finding));
            let delay = self.random.between(1, 500 * MS);
            self.after(delay, Event::Understood(index, understood));
        } else {
            self.say_exit(index, local, exit, Some(finding));
        }
        self.look_whether_stopped(index);
    }

    /// Tells the agent that a worker was reaped.
    pub(super) fn say_exit(
        &mut self,
        index: usize,
        local: u32,
        exit: WorkerExit,
        finding: Option<Finding>,
    ) {
        let event = self.exit_event(index, local, exit, finding);
        self.say(index, event);
    }

    fn exit_event(
        &self,
        index: usize,
        local: u32,
        exit: WorkerExit,
        finding: Option<Finding>,
    ) -> MemberEvent {
        let node = &self.nodes[index];
        MemberEvent::WorkerExited {
            generation: Generation(node.keeper.generation),
            local_rank: LocalRank(local),
            exit,
            at: node.instant(self.now),
            finding,
        }
    }

    /// Sends a message to the agent, if there is one.
    pub(super) fn say(&mut self, index: usize, event: MemberEvent) {
        let delay = self.delay(self.schedule.pace.link_ms);
        if self.nodes[index].agent.is_some() {
            let at = self.link(index, 1, delay);
            let life = self.nodes[index].life;
            self.at(at, Event::ToAgent(index, life, event));
        }
    }

    pub(super) fn heard(&mut self, index: usize, life: u64, event: MemberEvent) -> Checked {
        let node = &mut self.nodes[index];
        let Some(agent) = node.agent.as_mut().filter(|_| node.life == life) else {
            return Ok(());
        };
        if agent.member.is_none() {
            agent.inbox.push(event);
            return Ok(());
        }
        let who = Who::Member;
        self.tell_member(
            Address {
                node: index,
                life,
                who,
            },
            event,
        )
    }

    fn look_whether_stopped(&mut self, index: usize) {
        let keeper = &mut self.nodes[index].keeper;
        let Some(left) = keeper.is_stopped() else {
            return;
        };
        let generation = keeper.generation;
        match &mut keeper.stop {
            Some(stop) if !stop.reported => stop.reported = true,
            _ => return,
        }
        if !left.is_empty() {
            let node = &self.nodes[index];
            self.checker.stuck(&node.name.0, node.incarnation);
        }
        self.say_stopped(index, generation, left);
    }

    fn say_stopped(&mut self, index: usize, generation: u64, unkillable: Vec<LocalRank>) {
        let keeper = &mut self.nodes[index].keeper;
        keeper.next_port = keeper.next_port.wrapping_add(1).max(1_024);
        let next_port = keeper.next_port;
        if self.plant != Some(Plant::MuteKeeper) {
            let generation = Generation(generation);
            self.say(
                index,
                MemberEvent::Stopped {
                    generation,
                    unkillable,
                    next_port,
                },
            );
        }
    }
}
