// SPDX-License-Identifier: Apache-2.0
//! The checkpoints that workers make, and the one that they resume from.

use serde_json::json;
use steadfast_core::{Generation as CoreGeneration, MemberEvent, NodeName, Plan};

use super::Agent;
use crate::agent::AgentError;
use crate::agent::checkpoints::{CheckpointEvent, Choice, Resume, ResumePoint, Task};

impl Agent {
    pub(super) async fn on_checkpoint(&mut self, event: CheckpointEvent) -> Result<(), AgentError> {
        let number = self.generation.number;
        match event {
            CheckpointEvent::Made { step, path } => {
                let fields = json!({ "step": step, "path": path });
                self.journal.record(number, "checkpoint.made", fields);
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
    pub(super) async fn choose_checkpoint(&mut self, plan: &Plan) -> ResumePoint {
        let generation = plan.generation.0;
        let (Some(checkpoints), Some(settings)) = (&self.checkpoints, &self.settings.checkpoints)
        else {
            return ResumePoint::Untold;
        };
        let place = plan.member(&NodeName(self.settings.node.clone()));
        // A node that is alone knows best itself.
        let planned = plan.resume.clone().filter(|_| plan.members.len() > 1);
        let task = Task {
            world_size: plan.world_size,
            clears: planned.is_none() || place.is_some_and(|place| place.clears),
            planned,
        };
        let from = task
            .planned
            .as_ref()
            .and_then(|planned| planned.from.clone());
        let Some(choice) = checkpoints.prepare(task).await else {
            let resume = from.map(|from| Resume {
                step: from.step,
                path: settings.directory.join(from.name),
            });
            let text = if resume.is_some() {
                "the checkpoint directory does not answer: the workers are told to resume from what other nodes vouch \
                 for, and nothing is moved aside"
            } else {
                "the checkpoint directory does not answer: the workers start without being told where to resume, and \
                 nothing is moved aside"
            };
            self.journal
                .record_incident(generation, "checkpoint.unknown", json!({}));
            self.say(text);
            return resume.map_or(ResumePoint::Beginning, ResumePoint::Checkpoint);
        };
        self.tell_of_choice(generation, &choice);
        choice
            .resume
            .map_or(ResumePoint::Beginning, ResumePoint::Checkpoint)
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
