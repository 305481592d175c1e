// SPDX-License-Identifier: Apache-2.0
//! The checkpoints that workers make, and the one that they resume from.

use serde_json::json;
use steadfast_core::{Generation as CoreGeneration, MemberEvent};

use super::Agent;
use crate::agent::AgentError;
use crate::agent::checkpoints::{CheckpointEvent, Choice, Resume, ResumePoint};

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
            CheckpointEvent::Note(text) => {
                let fields = json!({ "note": text });
                self.journal.record(number, "checkpoint.note", fields);
                self.say(&text);
                Ok(())
            }
        }
    }

    /// Chooses where the workers of `generation` resume, and clears the way.
    pub(super) async fn choose_checkpoint(
        &mut self,
        generation: u64,
        world_size: u32,
    ) -> ResumePoint {
        let Some(checkpoints) = &self.checkpoints else {
            return ResumePoint::Untold;
        };
        let Some(choice) = checkpoints.choose(world_size).await else {
            let text = "the checkpoint directory does not answer: the workers start without being told where to \
                        resume, and nothing is moved aside";
            self.journal
                .record_incident(generation, "checkpoint.unknown", json!({}));
            self.say(text);
            return ResumePoint::Beginning;
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
                "checkpoint {} is torn ({}): it is now {}",
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
