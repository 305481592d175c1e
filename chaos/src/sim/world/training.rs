// SPDX-License-Identifier: Apache-2.0
//! The training itself: all ranks of a generation step together, or not at all.

use steadfast_core::{Generation, MemberEvent, WorkerExit};
use steadfast_proto::v1::FaultRole;

use super::{MS, World};
use crate::sim::event::Event;
use crate::sim::node::Life;
use crate::sim::plant::Plant;

/// The newest generation's training.
#[derive(Debug, Default)]
pub(super) struct Training {
    generation: u64,
    world_size: u64,
    begun: bool,
    step: u64,
    best: u64,
}

impl Training {
    /// A node has begun to start this generation.
    pub(super) fn planned(&mut self, generation: u64, world_size: u64) {
        if generation > self.generation {
            self.generation = generation;
            self.world_size = world_size;
            self.begun = false;
        }
    }
}

impl World {
    /// Begins to step once every rank is there, from the last checkpoint.
    pub(super) fn begin_training(&mut self) {
        let generation = self.training.generation;
        if self.training.begun || self.fit_ranks(generation) < self.training.world_size {
            return;
        }
        let every = self.schedule.shape.checkpoint_every;
        self.training.begun = true;
        self.training.step = self.training.best / every * every;
        self.after(self.schedule.pace.step_ms * MS, Event::Step(generation));
    }

    pub(super) fn step(&mut self, generation: u64) {
        // Whoever is missing holds up all the others.
        if generation != self.training.generation
            || self.fit_ranks(generation) < self.training.world_size
        {
            return;
        }
        if self.is_stopping(generation) {
            return;
        }
        self.training.step += 1;
        let step = self.training.step;
        self.training.best = self.training.best.max(step);
        self.checker.step(generation, step);
        self.report_step(generation, step);
        if self.plant == Some(Plant::FalseExit) && !self.planted {
            self.planted = true;
            self.say_exit(0, 0, WorkerExit::Code(1), None);
        }
        if self.schedule.program_fails_at == Some(step) {
            self.count("program's own error");
            let rank = step % self.training.world_size;
            self.hit_rank(generation, rank, WorkerExit::Code(3));
        }
        if self.fit_ranks(generation) == self.training.world_size
            && step >= self.schedule.shape.steps
        {
            self.finish_training(generation);
        } else {
            self.after(self.schedule.pace.step_ms * MS, Event::Step(generation));
        }
    }

    /// Ends a rank by a fault; the others notice or wait for ever, as the schedule has it.
    pub(super) fn hit_rank(&mut self, generation: u64, rank: u64, exit: WorkerExit) {
        let found = self.nodes.iter().enumerate().find_map(|(index, node)| {
            let here = node.up && node.keeper.generation == generation;
            let worker = node
                .keeper
                .alive()
                .find(|worker| here && worker.rank == rank)?;
            Some((index, worker.serial))
        });
        let Some((index, serial)) = found else {
            return;
        };
        if !exit.is_success() {
            self.checker.cause(generation, Some(rank));
        }
        self.death(index, serial, exit, FaultRole::Cause);
        if !exit.is_success() {
            self.survivors_notice(generation);
        }
    }

    pub(super) fn survivors_notice(&mut self, generation: u64) {
        if !self.schedule.pace.survivors_fail {
            return;
        }
        for index in 0..self.nodes.len() {
            if self.nodes[index].keeper.generation != generation {
                continue;
            }
            let serials: Vec<_> = self.nodes[index]
                .keeper
                .alive()
                .map(|worker| worker.serial)
                .collect();
            for serial in serials {
                let delay = self.random.between(5 * MS, 300 * MS);
                let exit = WorkerExit::Code(1);
                self.after(
                    delay,
                    Event::Death(index, serial, exit, FaultRole::Consequence),
                );
            }
        }
    }

    fn report_step(&mut self, generation: u64, step: u64) {
        for index in 0..self.nodes.len() {
            if self.nodes[index].keeper.generation == generation && self.nodes[index].up {
                let generation = Generation(generation);
                self.say(index, MemberEvent::Step { generation, step });
            }
        }
    }

    fn finish_training(&mut self, generation: u64) {
        for index in 0..self.nodes.len() {
            if self.nodes[index].keeper.generation != generation {
                continue;
            }
            let serials: Vec<_> = self.nodes[index]
                .keeper
                .alive()
                .map(|worker| worker.serial)
                .collect();
            for serial in serials {
                let delay = self.random.between(MS, 2_000 * MS);
                self.after(
                    delay,
                    Event::Death(index, serial, WorkerExit::Code(0), FaultRole::Cause),
                );
            }
        }
    }

    fn is_stopping(&self, generation: u64) -> bool {
        self.nodes
            .iter()
            .any(|node| node.keeper.generation == generation && node.keeper.stop.is_some())
    }

    /// How many ranks of the generation are alive or have done their part.
    fn fit_ranks(&self, generation: u64) -> u64 {
        let fit = |life: &Life| match life {
            Life::Alive => true,
            Life::Dying(exit) | Life::Reaped(exit, ..) => exit.is_success(),
            Life::NeverBorn(_) => false,
        };
        let here = self
            .nodes
            .iter()
            .filter(|node| node.up && node.keeper.generation == generation);
        here.flat_map(|node| &node.keeper.workers)
            .filter(|worker| fit(&worker.life))
            .count() as u64
    }
}
