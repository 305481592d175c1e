// SPDX-License-Identifier: Apache-2.0
//! Checkpoints: a directory that all nodes share, and workers that save when they are asked.

use std::collections::{BTreeMap, BTreeSet};

use steadfast_core::{
    CheckpointReport, Generation, MemberEvent, Plan, SaveMeans, SaveOrder, WholeCheckpoint,
};

use super::{Checked, MS, World};

/// The directory, and what the workers of the newest generation were asked for.
#[derive(Debug, Default)]
pub(super) struct Saving {
    generation: u64,
    /// What the workers of each node were asked for.
    wanted: BTreeMap<usize, SaveOrder>,
    /// At which step the workers of each node were asked to save last.
    asked: BTreeMap<usize, u64>,
    /// Which nodes have saved their part at a step.
    parts: BTreeMap<u64, BTreeSet<usize>>,
    /// The steps whose checkpoint is whole.
    whole: BTreeSet<u64>,
}

impl Saving {
    /// The directory as a member sees it that looks now.
    fn report(&self) -> CheckpointReport {
        let whole = self.whole.iter().rev().take(CheckpointReport::MOST);
        CheckpointReport {
            directory: "shared".to_owned(),
            whole: whole
                .map(|step| WholeCheckpoint {
                    step: *step,
                    name: format!("step-{step}"),
                    only_for: None,
                })
                .collect(),
        }
    }
}

impl World {
    /// Whether the program asks whether a checkpoint is wanted.
    pub(super) fn can_save(&self) -> bool {
        let shape = &self.schedule.shape;
        shape.synchronous && shape.checkpoint_every > 1
    }

    /// What a node's agent sees in the directory.
    pub(super) fn checkpoints_seen(&self) -> Option<MemberEvent> {
        let report = self.can_save().then(|| self.saving.report())?;
        Some(MemberEvent::Checkpoints(Some(report)))
    }

    /// The workers of a generation start: where do they resume? `None` where nobody tells them.
    pub(super) fn resumes(&mut self, plan: &Plan) -> Result<Option<u64>, super::Violation> {
        if plan.generation.0 > self.saving.generation {
            self.saving.generation = plan.generation.0;
            self.saving.wanted.clear();
            self.saving.asked.clear();
            self.saving.parts.clear();
        }
        let from = plan.resume.as_ref().and_then(|resume| resume.from.as_ref());
        let Some(from) = from.filter(|_| self.can_save()) else {
            return Ok(None);
        };
        if !self.saving.whole.contains(&from.step) {
            let message = format!(
                "generation {} resumes from step {}, of which there is no whole checkpoint",
                plan.generation, from.step
            );
            return self.checker.violation("no torn resume", message);
        }
        Ok(Some(from.step))
    }

    /// The agent asks the workers of its node for a checkpoint, or takes that back.
    pub(super) fn asked_to_save(
        &mut self,
        index: usize,
        generation: u64,
        order: Option<SaveOrder>,
    ) {
        if generation != self.saving.generation || self.nodes[index].keeper.generation != generation
        {
            return;
        }
        match order {
            Some(order) => {
                self.count("(asked to save)");
                let step = order.step;
                self.saving.wanted.insert(index, order);
                let is_new = self.saving.asked.insert(index, step) != Some(step);
                if self.training.has_made(step) && is_new {
                    self.count("(told to save too late)");
                    let generation = Generation(generation);
                    self.say(index, MemberEvent::ToldLate { generation, step });
                }
                // Who has saved at an earlier step goes on to this one.
                if !self.training.has_made(step) {
                    self.training.release();
                }
            }
            None => {
                self.saving.wanted.remove(&index);
            }
        }
    }

    /// All workers have made a step together: those save that were asked to, and all of them now and then.
    pub(super) fn save_parts(&mut self, generation: u64, step: u64, parts: &[usize]) -> Checked {
        if !self.can_save() || generation != self.saving.generation {
            return Ok(());
        }
        let due = step.is_multiple_of(self.schedule.shape.checkpoint_every);
        let mut answered = Vec::new();
        for index in parts {
            let order = self.saving.wanted.get(index);
            let is_asked = order.is_some_and(|order| order.step <= step);
            if !is_asked && !due {
                continue;
            }
            self.saving.parts.entry(step).or_default().insert(*index);
            if is_asked && let Some(order) = self.saving.wanted.remove(index) {
                answered.push(*index);
                if order.ends {
                    // Whoever has saved waits for the stop.
                    let held = self.now + (order.within_ms + 2_000) * MS;
                    self.training.hold(held);
                }
            }
        }
        let saved = self.saving.parts.get(&step).map_or(0, BTreeSet::len);
        if saved == parts.len() && saved > 0 {
            self.saving.whole.insert(step);
            // Every agent looks at the directory all the time, those of spares, too.
            for index in 0..self.nodes.len() {
                if let Some(seen) = self.checkpoints_seen() {
                    self.say(index, seen);
                }
            }
            for index in parts {
                self.say(
                    *index,
                    MemberEvent::Durable {
                        generation: Generation(generation),
                        step,
                    },
                );
            }
            for index in answered {
                self.count("(saved on request)");
                let generation = Generation(generation);
                self.say(index, MemberEvent::Saved { generation, step });
            }
        }
        Ok(())
    }

    /// That the program asks whether a checkpoint is wanted has been seen.
    pub(super) fn asks_to_save(&self, generation: u64) -> Option<MemberEvent> {
        self.can_save().then_some(MemberEvent::CanSave {
            generation: Generation(generation),
            means: Some(SaveMeans::AtStep),
        })
    }
}
