// SPDX-License-Identifier: Apache-2.0
//! The training itself: all ranks of a generation step together, or not at all; or each node for itself, if the program
//! is such a one.

use steadfast_core::{Generation, MemberEvent, WitnessReport, WorkerExit};
use steadfast_proto::v1::FaultRole;

use super::{Checked, MS, World};
use crate::event::{Address, Event};

/// How often a training that stands still is looked at, in milliseconds.
const LOOK_MS: u64 = 200;
/// How late an agent may see a step, in milliseconds: it looks ten times a second.
const SIGHT_MS: u64 = 100;

/// The newest generation's training.
#[derive(Debug, Default)]
pub(super) struct Training {
    generation: u64,
    world_size: u64,
    /// How many nodes the plan names.
    nodes: usize,
    /// Nodes that have started their workers.
    parts: Vec<usize>,
    ready: usize,
    begun: bool,
    /// The program has come to its end.
    finished: bool,
    /// The step of the checkpoint that the workers were told to resume from.
    resume: Option<u64>,
    step: u64,
    best: u64,
    /// Nothing is stepped before: an evaluation, or a checkpoint.
    busy_until: u64,
    /// Nothing is stepped before, unless that is taken back: a rank has saved, and waits for the stop.
    held_until: u64,
    stepped_at: Option<u64>,
    /// For a program whose nodes do not wait for each other: what each has done.
    own_steps: Vec<u64>,
}

impl Training {
    /// A node has begun to start this generation.
    pub(super) fn planned(
        &mut self,
        generation: u64,
        world_size: u64,
        nodes: usize,
        resume: Option<u64>,
    ) {
        if generation > self.generation {
            *self = Self {
                generation,
                world_size,
                nodes,
                resume,
                best: self.best,
                ..Self::default()
            };
        }
    }

    pub(super) fn take_part(&mut self, generation: u64, node: usize) {
        if generation == self.generation {
            self.parts.push(node);
        }
    }

    /// The workers make no step before, since some of them wait.
    pub(super) fn hold(&mut self, until: u64) {
        self.held_until = self.held_until.max(until);
    }

    /// Those that wait go on.
    pub(super) fn release(&mut self) {
        self.held_until = 0;
    }

    /// Whether this step has been made.
    pub(super) fn has_made(&self, step: u64) -> bool {
        self.begun && self.step >= step
    }

    pub(super) fn has_stepped_in(&self, generation: u64) -> bool {
        self.generation >= generation && self.stepped_at.is_some()
    }

    /// When a generation made its last step.
    pub(super) fn last_step(&self, generation: u64) -> Option<u64> {
        self.stepped_at.filter(|_| generation == self.generation)
    }
}

impl World {
    /// The workers of a node can make steps. The first step comes when all can.
    pub(super) fn ready(&mut self, index: usize, generation: u64) -> Checked {
        let training = &mut self.training;
        if generation != training.generation || self.nodes[index].keeper.generation != generation {
            return Ok(());
        }
        if training.finished {
            // It has come too late, and finds that there is nothing to do.
            self.finish_node(index);
            return Ok(());
        }
        training.ready += 1;
        if training.begun || training.ready < training.nodes {
            return Ok(());
        }
        training.begun = true;
        let every = self.schedule.shape.checkpoint_every;
        let newest = training.best / every * every;
        training.step = training.resume.unwrap_or(newest);
        let step_ms = self.schedule.pace.step_ms;
        if self.schedule.shape.synchronous {
            self.after(step_ms * MS, Event::Step(generation, None));
            return Ok(());
        }
        let begin = self.training.step;
        self.training.own_steps = vec![begin; self.nodes.len()];
        for node in self.training.parts.clone() {
            self.after(step_ms * MS, Event::Step(generation, Some(node)));
        }
        Ok(())
    }

    pub(super) fn step(&mut self, generation: u64, alone: Option<usize>) -> Checked {
        if generation != self.training.generation || self.training.finished {
            return Ok(());
        }
        match alone {
            Some(index) => self.step_alone(generation, index),
            None => self.step_together(generation),
        }
    }

    fn step_together(&mut self, generation: u64) -> Checked {
        if self.now < self.training.busy_until {
            let at = self.training.busy_until;
            self.at(at, Event::Step(generation, None));
            return Ok(());
        }
        match self.can_step(generation) {
            Some(true) if self.now >= self.training.held_until => {}
            Some(_) => {
                self.after(LOOK_MS * MS, Event::Step(generation, None));
                return Ok(());
            }
            // Never again.
            None => return Ok(()),
        }
        self.training.step += 1;
        let step = self.training.step;
        self.training.best = self.training.best.max(step);
        self.training.stepped_at = Some(self.now);
        let heard = self.is_heard();
        self.checker.step(generation, step, heard);
        for index in self.training.parts.clone() {
            let late = self.random.between(0, self.schedule.pace.step_ms / 8 * MS);
            self.step_done(index, generation, step, self.now + late);
        }
        let parts = self.training.parts.clone();
        self.save_parts(generation, step, &parts)?;
        if self.schedule.program_fails_at == Some(step) {
            self.count("program's own error");
            let rank = step % self.training.world_size;
            self.hit_rank(generation, rank, WorkerExit::Code(3))?;
        }
        let shape = &self.schedule.shape;
        if step >= shape.steps {
            self.finish_training(generation);
            return Ok(());
        }
        if shape.evaluate_every > 0 && step.is_multiple_of(shape.evaluate_every) {
            self.training.busy_until = self.now + shape.evaluation_ms * MS;
        }
        self.after(
            self.schedule.pace.step_ms * MS,
            Event::Step(generation, None),
        );
        Ok(())
    }

    /// Whether there is a leader, and somebody who sees the training's steps and can tell it.
    fn is_heard(&self) -> bool {
        let speaks = |index: &usize| {
            let node = &self.nodes[*index];
            let agent = node.agent.as_ref();
            agent.is_some_and(|agent| agent.session.is_some() && agent.paused_until <= self.now)
                && !node.is_paused(self.now)
        };
        let tells = |index: &usize| speaks(index) && self.nodes[*index].is_connected(self.now);
        let leads = |index: &usize| {
            let agent = self.nodes[*index].agent.as_ref();
            let session = agent.and_then(|agent| agent.session.as_ref());
            session.is_some_and(|session| session.leader.is_some()) && speaks(index)
        };
        let leader = (0..self.nodes.len()).find(leads);
        let parts = &self.training.parts;
        leader.is_some_and(|leader| {
            parts.contains(&leader) || (tells(&leader) && parts.iter().any(tells))
        })
    }

    /// Whether every rank is there and reaches every other; `None` when one is gone for good.
    fn can_step(&self, generation: u64) -> Option<bool> {
        let mut all = true;
        for index in &self.training.parts {
            let node = &self.nodes[*index];
            let keeper = &node.keeper;
            if !node.served || keeper.generation != generation || keeper.stop.is_some() {
                return None;
            }
            let there = !node.is_paused(self.now) && node.is_connected(self.now);
            all &= there && keeper.is_fit();
        }
        Some(all && !self.is_data_cut(&self.training.parts))
    }

    fn step_alone(&mut self, generation: u64, index: usize) -> Checked {
        let node = &self.nodes[index];
        let keeper = &node.keeper;
        if !node.served || keeper.generation != generation || keeper.stop.is_some() {
            return Ok(());
        }
        // Each node has a pace of its own.
        let step_ms = self.schedule.pace.step_ms * (3 + index as u64 % 4) / 3;
        if node.is_paused(self.now) || !keeper.is_fit() {
            self.after(LOOK_MS * MS, Event::Step(generation, Some(index)));
            return Ok(());
        }
        self.training.own_steps[index] += 1;
        let step = self.training.own_steps[index];
        self.training.best = self.training.best.max(step);
        self.checker.step(generation, step, false);
        self.step_done(index, generation, step, self.now);
        if step >= self.schedule.shape.steps {
            self.finish_node(index);
        } else {
            self.after(step_ms * MS, Event::Step(generation, Some(index)));
        }
        Ok(())
    }

    /// A step ends on one node at that time, which is near: its keeper sees it at once, its agent soon.
    fn step_done(&mut self, index: usize, generation: u64, step: u64, at: u64) {
        let synchronous = self.schedule.shape.synchronous;
        let node = &mut self.nodes[index];
        if node.keeper.generation != generation || node.keeper.alive().next().is_none() {
            return;
        }
        if synchronous {
            let shown = node.clock.show(at);
            node.keeper.fence.stepped = node.keeper.fence.stepped.max(Some(shown));
        }
        if node.agent.is_some() {
            let life = node.life;
            let address = Address { node: index, life };
            let late = self.random.between(0, SIGHT_MS * MS);
            self.at(at + late, Event::Stepped(address, generation, step));
        }
    }

    /// The agent sees a step.
    pub(super) fn stepped(&mut self, address: Address, generation: u64, step: u64) -> Checked {
        let now = self.now;
        let shown = self.nodes[address.node].clock.show(now);
        let synchronous = self.schedule.shape.synchronous;
        let every = self.schedule.shape.checkpoint_every;
        let Some(session) = self.session_mut(address) else {
            return Ok(());
        };
        let number = Generation(generation);
        if let Some(leader) = &mut session.leader {
            leader.note_step(number, step, shown, true);
        }
        if synchronous {
            let before = session.lockstep.window_and_step().map(|(window, _)| window);
            session.lockstep.step(generation, now);
            let after = session.lockstep.window_and_step();
            if let Some((window_ms, step_ms)) =
                after.filter(|(window, _)| before.is_none_or(|before| before < *window))
            {
                let report = WitnessReport {
                    window_ms,
                    step_ms,
                    step,
                };
                let witness = MemberEvent::Witness {
                    generation: number,
                    report: Some(report),
                };
                self.tell_member(address, witness)?;
            }
        }
        let seen = MemberEvent::Step {
            generation: number,
            step,
        };
        self.tell_member(address, seen)?;
        if let Some(asks) = self.asks_to_save(generation) {
            self.tell_member(address, asks)?;
        }
        if step.is_multiple_of(every) {
            let made = MemberEvent::Checkpoint {
                generation: number,
                step,
            };
            self.tell_member(address, made)?;
        }
        self.settle(address);
        Ok(())
    }

    /// Before something happens to a node: its ranks may come further than the others by the one step that is on its way.
    pub(super) fn last_step_of_one(&mut self, index: usize) {
        let training = &self.training;
        let generation = training.generation;
        let began = training.stepped_at.is_some()
            && !training.finished
            && self.now >= training.busy_until
            && self.can_step(generation) == Some(true);
        let takes_part = self.nodes[index].keeper.generation == generation;
        if self.schedule.shape.synchronous && began && takes_part && self.random.chance(50) {
            let step = training.step + 1;
            let late = self.random.between(0, self.schedule.pace.step_ms * MS);
            let ends = self.now + late;
            self.checker.step_of_one(generation, step, ends);
            self.step_done(index, generation, step, ends);
        }
    }

    /// Ends a rank by a fault; the others notice or wait for ever, as the schedule has it.
    pub(super) fn hit_rank(&mut self, generation: u64, rank: u64, exit: WorkerExit) -> Checked {
        let found = self.nodes.iter().enumerate().find_map(|(index, node)| {
            let here = node.served && node.keeper.generation == generation;
            let worker = node.keeper.alive().find(|worker| {
                let can = !worker.hangs || exit == WorkerExit::Signal(9);
                here && worker.rank == rank && can
            })?;
            Some((index, worker.serial))
        });
        let Some((index, serial)) = found else {
            return Ok(());
        };
        if !exit.is_success() {
            self.checker.causes().add(generation, Some(rank));
        }
        self.death(index, serial, exit, FaultRole::Cause)?;
        if !exit.is_success() {
            self.survivors_notice(generation);
        }
        Ok(())
    }

    pub(super) fn survivors_notice(&mut self, generation: u64) {
        if !self.schedule.pace.survivors_fail || !self.schedule.shape.synchronous {
            return;
        }
        for index in 0..self.nodes.len() {
            if self.nodes[index].keeper.generation != generation {
                continue;
            }
            for serial in self.nodes[index].keeper.living_serials() {
                let delay = self.random.between(5 * MS, 300 * MS);
                let exit = WorkerExit::Code(1);
                self.after(
                    delay,
                    Event::Death(index, serial, exit, FaultRole::Consequence),
                );
            }
        }
    }

    /// All ranks come to the end of the program together.
    pub(super) fn finish_training(&mut self, generation: u64) {
        if generation == self.training.generation {
            self.training.finished = true;
        }
        for index in 0..self.nodes.len() {
            if self.nodes[index].keeper.generation == generation {
                self.finish_node(index);
            }
        }
    }

    fn finish_node(&mut self, index: usize) {
        for serial in self.nodes[index].keeper.living_serials() {
            let delay = self.random.between(MS, 2_000 * MS);
            let exit = WorkerExit::Code(0);
            self.after(delay, Event::Death(index, serial, exit, FaultRole::Cause));
        }
    }
}
