// SPDX-License-Identifier: Apache-2.0
//! Checkpoints that the workers are asked for.

use std::time::Duration;

use serde_json::json;
use steadfast_core::{Generation as CoreGeneration, MemberEvent, SaveOrder, SaveOutcome};

use super::Agent;
use crate::agent::AgentError;
use crate::agent::checkpoints::Awaited;
use crate::agent::pages::SaveWish;
use crate::agent::saving::{STOP_ARRIVES, Wanted, hold_until_ns, signal_ranks};
use crate::clock;
use crate::keeper::protocol::Request;

/// How much longer the keeper waits with a stop than the decision core wants to.
const KEEPER_WAITS_LONGER: Duration = Duration::from_secs(2);

impl Agent {
    /// Tells the decision core whether the workers can be asked for a checkpoint, and whether they have made it.
    pub(super) async fn look_at_saving(&mut self) -> Result<(), AgentError> {
        let generation = self.generation.number;
        if self.saving.look(&self.generation, &self.settings) {
            let means = self.saving.means();
            let generation = CoreGeneration(generation);
            self.tell(MemberEvent::CanSave { generation, means })
                .await?;
        }
        let Some(mut wanted) = self.saving.wanted else {
            return Ok(());
        };
        if wanted.generation != generation || wanted.is_there {
            return Ok(());
        }
        let (all_done, any_done) = self.generation.said_done(wanted.step.max(1));
        // Nobody is left who could still be writing.
        let any_done = any_done || self.generation.is_done();
        match &self.checkpoints {
            Some(checkpoints) if any_done && !wanted.is_said_done => {
                wanted.is_said_done = true;
                self.saving.wanted = Some(wanted);
                checkpoints.wait_for(Some(awaited(&wanted)));
                Ok(())
            }
            // The directory tells.
            Some(_) => Ok(()),
            None if all_done => self.on_saved(generation, wanted.step).await,
            None => Ok(()),
        }
    }

    /// The checkpoint that was asked for is there.
    pub(super) async fn on_saved(&mut self, generation: u64, step: u64) -> Result<(), AgentError> {
        if let Some(wanted) = &mut self.saving.wanted
            && wanted.generation == generation
            && !wanted.is_there
        {
            wanted.is_there = true;
            let fields = json!({ "step": step });
            self.journal.record(generation, "checkpoint.saved", fields);
            let generation = CoreGeneration(generation);
            self.tell(MemberEvent::Saved { generation, step }).await?;
        }
        Ok(())
    }

    /// The decision core wants a checkpoint, or does not want it any more.
    pub(super) async fn on_save(
        &mut self,
        generation: CoreGeneration,
        order: Option<SaveOrder>,
    ) -> Result<(), AgentError> {
        let generation = generation.0;
        if generation != self.generation.number {
            return Ok(());
        }
        let Some(order) = order else {
            self.saving.wanted = None;
            if let Some(checkpoints) = &self.checkpoints {
                checkpoints.wait_for(None);
            }
            self.pages.ask_for_checkpoint(SaveWish {
                generation,
                step: 0,
                hold_until_ns: 0,
            });
            return Ok(());
        };
        let fields = json!({ "step": order.step, "ends": order.ends, "why": order.why });
        self.journal
            .record_incident(generation, "checkpoint.asked", fields);
        let before = self.saving.wanted;
        let is_same =
            |before: &Wanted| (before.generation, before.step) == (generation, order.step);
        let wanted = before.filter(is_same).unwrap_or(Wanted {
            generation,
            step: order.step,
            is_there: false,
            is_said_done: false,
        });
        self.saving.wanted = Some(wanted);
        if let Some(checkpoints) = self.checkpoints.as_ref().filter(|_| !wanted.is_there) {
            checkpoints.wait_for(Some(awaited(&wanted)));
        }
        if order.step > 0 {
            self.pages.ask_for_checkpoint(SaveWish {
                generation,
                step: order.step,
                hold_until_ns: hold_until_ns(&order, clock::monotonic_ns()),
            });
        } else if before.is_none_or(|before| !is_same(&before)) {
            self.signal_for_checkpoint();
        }
        self.look_at_saving().await
    }

    fn signal_for_checkpoint(&mut self) {
        let settings = self.settings.checkpoints.as_ref();
        if let Some(signal) = settings.and_then(|known| known.signal) {
            let ranks = signal_ranks(&self.generation, signal);
            let fields = json!({ "signal": signal, "ranks": ranks });
            let generation = self.generation.number;
            self.journal
                .record(generation, "checkpoint.signalled", fields);
        }
    }

    pub(super) fn on_save_ended(&mut self, generation: CoreGeneration, outcome: &SaveOutcome) {
        let kind = match outcome.made {
            Some(_) => "checkpoint.answered",
            None => "checkpoint.missed",
        };
        let fields = json!({ "step": outcome.made, "wanted": outcome.wanted, "why": outcome.why });
        self.journal.record_incident(generation.0, kind, fields);
        self.saving.answer(outcome);
    }

    /// The workers are being told to stop: those that are held back need not be any longer.
    pub(super) fn release_workers(&mut self, generation: u64) {
        self.saving
            .answer_all("the workers are stopped before a checkpoint was made");
        if let Some(wanted) = self.saving.wanted.take()
            && wanted.generation == generation
        {
            let arrives = u64::try_from(STOP_ARRIVES.as_nanos()).unwrap_or(0);
            self.pages.ask_for_checkpoint(SaveWish {
                generation,
                step: wanted.step,
                hold_until_ns: clock::monotonic_ns().saturating_add(arrives),
            });
            if let Some(checkpoints) = &self.checkpoints {
                checkpoints.wait_for(None);
            }
        }
    }

    /// A stop waits for a checkpoint: the keeper, which would carry it out by itself, is to wait, too.
    pub(super) fn on_postpone(&mut self, within: Duration) -> Result<(), AgentError> {
        self.say(&format!(
            "the workers are asked for a checkpoint, for up to {:.0} s, before they are stopped",
            within.as_secs_f64()
        ));
        let within = within + KEEPER_WAITS_LONGER;
        let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        self.ask(&Request::Postpone { within_ms }, Vec::new())
    }
}

fn awaited(wanted: &Wanted) -> Awaited {
    Awaited {
        generation: wanted.generation,
        step: wanted.step,
        is_said_done: wanted.is_said_done,
    }
}
