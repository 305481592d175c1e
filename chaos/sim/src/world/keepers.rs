// SPDX-License-Identifier: Apache-2.0
//! Keepers: they start, stop and reap workers, and tell their agent.

use steadfast_core::{Generation, LeaseId, LocalRank, MemberEffect, MemberEvent, Plan, WorkerExit};
use steadfast_proto::v1::{FaultRole, Finding};

use super::{Checked, MS, World};
use crate::event::{Address, Event};
use crate::node::{Life, Stop};

/// How long the keeper waits for a worker to die of SIGKILL, in milliseconds.
const GIVE_UP_MS: u64 = 2_000;
/// Most milliseconds that a worker takes to die of SIGKILL; the product counts with half a second.
const DEATH_MS: u64 = 300;
/// When to look again whether a worker that does nothing goes on, in milliseconds.
const HUNG_MS: u64 = 500;
const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

impl World {
    pub(super) fn command(
        &mut self,
        index: usize,
        command: MemberEffect,
        tenure: LeaseId,
    ) -> Checked {
        if !self.nodes[index].served {
            return Ok(());
        }
        match command {
            MemberEffect::Start { plan } => self.start_workers(index, &plan, tenure)?,
            MemberEffect::Stop {
                generation,
                first_signal,
                grace,
                ..
            } => {
                let grace = u64::try_from(grace.as_micros()).unwrap_or(u64::MAX / 2);
                self.stop_workers(index, generation.0, first_signal, grace);
            }
            MemberEffect::KillNow { generation } => {
                if self.nodes[index].keeper.stop.is_some() {
                    self.kill_workers(index, generation.0);
                }
            }
            MemberEffect::Save { generation, order } => {
                self.asked_to_save(index, generation.0, order);
            }
            MemberEffect::Look
            | MemberEffect::Write(_)
            | MemberEffect::SaveEnded { .. }
            | MemberEffect::Committed { .. }
            | MemberEffect::Postpone { .. }
            | MemberEffect::Say(_)
            | MemberEffect::Finish(_) => {}
        }
        Ok(())
    }

    fn start_workers(&mut self, index: usize, plan: &Plan, tenure: LeaseId) -> Checked {
        let generation = plan.generation.0;
        let node = &mut self.nodes[index];
        if generation <= node.keeper.generation {
            return Ok(());
        }
        if self.is_fenced(index) || tenure != self.nodes[index].keeper.fence.tenure {
            return self.refuse_start(index, generation);
        }
        let node = &mut self.nodes[index];
        let failures = node.keeper.start(plan, &node.name, &mut self.serial);
        node.keeper.fence.window = plan.witness();
        let workers = node.keeper.workers.clone();
        let nodes = plan.members.len();
        let resume = self.resumes(plan)?;
        self.training
            .planned(generation, plan.world_size.into(), nodes, resume);
        self.training.take_part(generation, index);
        for worker in workers {
            if let Life::NeverBorn(_) = worker.life {
                self.checker.causes().add(generation, Some(worker.rank));
                continue;
            }
            let serial = worker.serial;
            self.checker
                .spawned(serial, index, generation, worker.rank)?;
        }
        let started = MemberEvent::Started {
            generation: plan.generation,
            failures,
        };
        self.say(index, started);
        self.watch_fence(index);
        let delay = self.delay(self.schedule.pace.start_ms);
        self.after(delay, Event::Ready(index, generation));
        Ok(())
    }

    fn stop_workers(&mut self, index: usize, generation: u64, signal: i32, grace: u64) {
        let now = self.now;
        let keeper = &mut self.nodes[index].keeper;
        if generation != keeper.generation {
            // Never started here, or long gone: nothing is left of it.
            keeper.generation = keeper.generation.max(generation);
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

    pub(super) fn grace_over(&mut self, index: usize, generation: u64) -> Checked {
        if self.nodes[index].keeper.stop.is_some() {
            self.kill_workers(index, generation);
        }
        Ok(())
    }

    /// SIGKILL to all workers of the generation that are left.
    pub(super) fn kill_workers(&mut self, index: usize, generation: u64) {
        let keeper = &mut self.nodes[index].keeper;
        if generation != keeper.generation {
            return;
        }
        let mut stuck = Vec::new();
        let mut dying = Vec::new();
        for worker in &mut keeper.workers {
            if worker.life != Life::Alive || worker.killed {
                continue;
            }
            if worker.unkillable {
                // It runs no instruction of its own any more.
                worker.killed = true;
                stuck.push(worker.serial);
            } else {
                dying.push(worker.serial);
            }
        }
        let any_stuck = !stuck.is_empty();
        for serial in stuck {
            self.checker.ended(serial, false);
        }
        for serial in dying {
            let delay = self.delay(DEATH_MS);
            let exit = WorkerExit::Signal(SIGKILL);
            self.after(delay, Event::Death(index, serial, exit, FaultRole::Cause));
        }
        if any_stuck {
            self.after(GIVE_UP_MS * MS, Event::GivesUp(index, generation));
        }
    }

    pub(super) fn gives_up(&mut self, index: usize, generation: u64) -> Checked {
        let keeper = &mut self.nodes[index].keeper;
        if generation != keeper.generation || keeper.stop.is_none() {
            return Ok(());
        }
        for worker in &mut keeper.workers {
            worker.survived |= worker.life == Life::Alive && worker.killed;
        }
        self.look_whether_stopped(index);
        Ok(())
    }

    /// A worker process ends, for whatever reason, unless it has ended already.
    pub(super) fn death(
        &mut self,
        index: usize,
        serial: u64,
        exit: WorkerExit,
        role: FaultRole,
    ) -> Checked {
        let keeper = &mut self.nodes[index].keeper;
        let stopping = keeper.stop.is_some();
        let Some(worker) = keeper.worker(serial) else {
            return Ok(());
        };
        // Nothing sees a worker that is stuck before somebody wants it to stop.
        let stuck = (worker.unkillable && stopping) || worker.killed;
        if worker.life != Life::Alive || stuck {
            return Ok(());
        }
        if worker.hangs && exit != WorkerExit::Signal(SIGKILL) {
            // It will come to it when it goes on.
            self.after(HUNG_MS * MS, Event::Death(index, serial, exit, role));
            return Ok(());
        }
        worker.life = Life::Dying(exit);
        self.checker.ended(serial, exit.is_success());
        self.note(|| format!("node-{index}: worker {serial} {exit}"));
        let delay = self.delay(self.schedule.pace.reap_ms);
        let died = self.now;
        self.after(delay, Event::Reaped(index, serial, exit, died, role));
        Ok(())
    }

    pub(super) fn reaped(
        &mut self,
        index: usize,
        serial: u64,
        exit: WorkerExit,
        died: u64,
        role: FaultRole,
    ) -> Checked {
        let now = self.now;
        let node = &mut self.nodes[index];
        let Some(local) = node.keeper.worker(serial).map(|worker| worker.local) else {
            return Ok(());
        };
        let finding = node.finding(died, local, exit, role);
        if let Some(worker) = node.keeper.worker(serial) {
            worker.life = Life::Reaped(exit, now, Box::new(finding.clone()));
        }
        if self.schedule.pace.late_findings {
            self.say_exit(index, local, exit, None);
            let understood = self.exit_event(index, local, exit, Some(finding));
            let delay = self.random.between(1, 500 * MS);
            self.after(delay, Event::Understood(index, Box::new(understood)));
        } else {
            self.say_exit(index, local, exit, Some(finding));
        }
        self.look_whether_stopped(index);
        Ok(())
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
            at: node.clock.show(self.now),
            finding,
        }
    }

    /// Sends a message to the agent, if there is one.
    pub(super) fn say(&mut self, index: usize, event: MemberEvent) {
        if self.nodes[index].agent.is_some() {
            let delay = self.delay(self.schedule.pace.link_ms);
            let at = self.link(index, 1, delay);
            let life = self.nodes[index].life;
            let address = Address { node: index, life };
            self.at(at, Event::ToAgent(address, Box::new(event)));
        }
    }

    pub(super) fn look_whether_stopped(&mut self, index: usize) {
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
            self.checker.stuck(index, node.incarnation);
        }
        self.say_stopped(index, generation, left);
    }

    pub(super) fn say_stopped(
        &mut self,
        index: usize,
        generation: u64,
        unkillable: Vec<LocalRank>,
    ) {
        let keeper = &mut self.nodes[index].keeper;
        keeper.next_port = keeper.next_port.wrapping_add(1).max(1_024);
        let next_port = keeper.next_port;
        let stopped = MemberEvent::Stopped {
            generation: Generation(generation),
            unkillable,
            next_port,
        };
        if let Some(seen) = self.checkpoints_seen() {
            self.say(index, seen);
        }
        self.say(index, stopped);
    }
}
