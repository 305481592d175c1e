// SPDX-License-Identifier: Apache-2.0
//! The checkpoints that workers make, and the one that they resume from.

use std::time::Duration;

use serde_json::json;
use steadfast_coord::Hint;
use steadfast_core::{Generation as CoreGeneration, MemberEvent, NodeName, Plan};

use super::Agent;
use crate::agent::AgentError;
use crate::agent::checkpoints::{CheckpointEvent, Choice, Resume, ResumePoint, Task};
use crate::agent::saving_costs::{Advice, Record};
use crate::clock;
use crate::settings::CheckpointEvery;

impl Agent {
    pub(super) async fn on_checkpoint(&mut self, event: CheckpointEvent) -> Result<(), AgentError> {
        let number = self.generation.number;
        match event {
            CheckpointEvent::Made { step, path } => {
                let fields = json!({ "step": step, "path": path });
                self.journal.record(number, "checkpoint.made", fields);
                self.saving.note_made(number, path);
                self.saving_costs.note_made(self.generation.shows_phases());
                let generation = CoreGeneration(number);
                self.tell(MemberEvent::Checkpoint { generation, step })
                    .await
            }
            CheckpointEvent::Awaited {
                generation,
                step,
                path,
            } => {
                let fields = json!({ "step": step, "path": path });
                self.journal
                    .record(generation, "checkpoint.durable", fields);
                self.on_saved(generation, step).await
            }
            CheckpointEvent::Flushed { step, path } => {
                let Some(generation) = self.saving.made_by(number, &path) else {
                    return Ok(());
                };
                let fields = json!({ "step": step, "path": path });
                self.journal.record(number, "checkpoint.flushed", fields);
                self.saving_costs.note_flushed(clock::monotonic_ns());
                self.tell_of_costs().await;
                let generation = CoreGeneration(generation);
                self.tell(MemberEvent::Durable { generation, step }).await
            }
            CheckpointEvent::Deleted { step, path } => {
                let fields = json!({ "step": step, "path": path });
                self.journal
                    .record_incident(number, "checkpoint.deleted", fields);
                Ok(())
            }
            CheckpointEvent::Report(report) => {
                self.tell(MemberEvent::Checkpoints(Some(report))).await
            }
            CheckpointEvent::Note(text) => {
                let fields = json!({ "note": text });
                self.journal.record(number, "checkpoint.note", fields);
                self.say(&text);
                Ok(())
            }
        }
    }

    /// Tells the decision core what this node can vouch for. A file system that hangs keeps nobody waiting for long.
    pub(super) async fn tell_checkpoints(&mut self) -> Result<(), AgentError> {
        let Some(checkpoints) = &self.checkpoints else {
            return Ok(());
        };
        let report = checkpoints.report().await;
        if report.is_none() {
            let generation = self.generation.number;
            self.journal
                .record_incident(generation, "checkpoint.unknown", json!({}));
            self.say(
                "the checkpoint directory does not answer: this node vouches for no checkpoint",
            );
        }
        // What was seen on the way comes first.
        while let Ok(event) = self.checkpoint_events.try_recv() {
            Box::pin(self.on_checkpoint(event)).await?;
        }
        self.tell(MemberEvent::Checkpoints(report)).await
    }

    /// Finds out where the workers of a plan resume, and clears the way.
    /// `Err`, in words, where that cannot be told.
    pub(super) async fn choose_checkpoint(&mut self, plan: &Plan) -> Result<ResumePoint, String> {
        let generation = plan.generation.0;
        let (Some(checkpoints), Some(settings)) = (&self.checkpoints, &self.settings.checkpoints)
        else {
            return Ok(ResumePoint::Untold);
        };
        let place = plan.member(&NodeName(self.settings.node.clone()));
        // A node that is alone knows best itself.
        let planned = plan.resume.clone().filter(|_| plan.members.len() > 1);
        let task = Task {
            world_size: plan.world_size,
            clears: planned.is_none() || place.is_some_and(|place| place.clears),
            planned,
        };
        let (planned, world_size) = (task.planned.clone(), task.world_size);
        let Some(choice) = checkpoints.prepare(task).await else {
            self.journal
                .record_incident(generation, "checkpoint.unknown", json!({}));
            let directory = settings.directory.clone();
            let Some(planned) = planned else {
                let resume = checkpoints.seen_last(world_size).map_err(|why| {
                    format!(
                        "the checkpoint directory {} does not answer, so nobody can say where to resume: {why}",
                        directory.display()
                    )
                })?;
                self.say(
                    "the checkpoint directory does not answer: the workers are told to resume from what was seen there last, \
                     and nothing is moved aside",
                );
                return Ok(resume);
            };
            self.say(
                "the checkpoint directory does not answer: the workers are told to resume from what other nodes vouch for, and \
                 nothing is moved aside",
            );
            let resume = planned.from.map(|from| Resume {
                step: from.step,
                path: directory.join(from.name),
            });
            return Ok(resume.map_or(ResumePoint::Beginning, ResumePoint::Checkpoint));
        };
        if let Some(why) = choice.unreadable {
            return Err(why);
        }
        self.tell_of_choice(generation, &choice);
        Ok(choice
            .resume
            .map_or(ResumePoint::Beginning, ResumePoint::Checkpoint))
    }

    /// The job has committed a checkpoint: older ones may go.
    pub(super) fn on_committed(&mut self, generation: CoreGeneration, step: u64) {
        let fields = json!({ "step": step });
        self.journal
            .record_incident(generation.0, "checkpoint.committed", fields);
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.retire(step);
        }
    }

    /// How often checkpoints should be made, as far as that is known.
    pub(super) fn saving_advice(&self) -> Option<Advice> {
        self.saving_costs.advice(self.record())
    }

    fn record(&self) -> Record {
        let view = self.view.borrow();
        let members = view.plan.as_ref().map_or(1, |plan| plan.members.len());
        let uptime = clock::monotonic_ns().saturating_sub(self.welcome.started_ns);
        Record {
            nodes: u32::try_from(members).unwrap_or(u32::MAX),
            uptime: Duration::from_nanos(uptime),
            failures: view.failures,
        }
    }

    /// Writes down what checkpoints cost and how often they should be made, when that has changed, and has the program
    /// asked accordingly where the user wants that.
    async fn tell_of_costs(&mut self) {
        let Some(advice) = self.saving_costs.news(self.record()) else {
            return;
        };
        let fields = json!({
            "blocking_seconds": advice.blocking.as_secs_f64(),
            "persisting_seconds": advice.persisting.map(|time| time.as_secs_f64()),
            "mtbf_seconds": advice.mtbf.as_secs_f64(),
            "interval_seconds": advice.interval.as_secs_f64(),
        });
        let number = self.generation.number;
        self.journal.record(number, "checkpoint.advice", fields);
        if self.settings.checkpoint_every == CheckpointEvery::Auto {
            let hint = Hint::SaveEvery(advice.interval);
            // A session that has ended asks nobody any more.
            let _has_ended = self.hints.send(hint).await;
        }
    }

    fn tell_of_choice(&mut self, generation: u64, choice: &Choice) {
        for aside in &choice.aside {
            let fields = json!({ "name": aside.name, "why": aside.why, "path": aside.path });
            self.journal
                .record_incident(generation, "checkpoint.moved_aside", fields);
            self.say(&format!(
                "checkpoint {} {}: it is now {}",
                aside.name,
                aside.why,
                aside.path.display()
            ));
        }
        for note in &choice.notes {
            self.journal
                .record(generation, "checkpoint.note", json!({ "note": note }));
            self.say(note);
        }
        if let Some(Resume { step, path }) = &choice.resume {
            let fields = json!({ "step": step, "path": path });
            self.journal
                .record_incident(generation, "checkpoint.chosen", fields);
            self.say(&format!(
                "generation {generation} resumes from step {step}: {}",
                path.display()
            ));
        }
    }
}
