// SPDX-License-Identifier: Apache-2.0
//! What the progress pages say.

use serde_json::json;
use steadfast_core::{Generation as CoreGeneration, MemberEvent};

use super::Agent;
use crate::agent::AgentError;
use crate::agent::pages::PageEvent;

impl Agent {
    pub(super) async fn on_page(&mut self, event: PageEvent) -> Result<(), AgentError> {
        match event {
            PageEvent::Changed {
                generation,
                local_rank,
                page,
            } => {
                if generation == self.generation.number {
                    let costs = &mut self.saving_costs;
                    costs.note_phase(local_rank, page.phase, page.phase_ns);
                }
                let news = self.generation.shown(generation, local_rank, &page);
                self.tell_step(news).await?;
                let step = page.step.map(|step| step.number);
                match page.loss {
                    Some(loss) => self.note_loss(generation, local_rank, step, loss).await,
                    None => Ok(()),
                }
            }
            PageEvent::AskedLate { generation, step } => {
                let fields = json!({ "step": step });
                self.journal
                    .record(generation, "checkpoint.asked_late", fields);
                let generation = CoreGeneration(generation);
                self.tell(MemberEvent::ToldLate { generation, step }).await
            }
            PageEvent::Note(text) => {
                let fields = json!({ "note": text });
                self.journal
                    .record(self.generation.number, "page.ignored", fields);
                self.say(&text);
                Ok(())
            }
        }
    }

    /// Tells the core of a new highest step, if there is one.
    pub(super) async fn tell_step(&mut self, news: Option<u64>) -> Result<(), AgentError> {
        if let Some(step) = news {
            let generation = CoreGeneration(self.generation.number);
            self.tell(MemberEvent::Step { generation, step }).await?;
        }
        self.look_at_saving().await?;
        self.tell_progress().await
    }
}
