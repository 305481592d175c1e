// SPDX-License-Identifier: Apache-2.0
//! A loss that is no number, or runs away.

use serde_json::json;
use steadfast_core::{LossFinding, LossTrouble, MemberEvent, kinds};
use steadfast_proto::v1::{FaultClass, FaultRole, Finding, Repeatability};

use super::Agent;
use crate::agent::AgentError;
use crate::clock;
use crate::settings::OnNan;

impl Agent {
    /// Takes in the loss that a worker has reported or printed.
    pub(super) async fn note_loss(
        &mut self,
        generation: u64,
        local_rank: u32,
        step: Option<u64>,
        loss: f64,
    ) -> Result<(), AgentError> {
        if generation != self.generation.number || !self.generation.is_active() {
            return Ok(());
        }
        let Some(worker) = self.generation.workers.get_mut(&local_rank) else {
            return Ok(());
        };
        let rank = worker.view.rank;
        let Some(found) = worker.losses.note(step, loss) else {
            return Ok(());
        };
        let words = words(&found);
        let acts = found.is_lasting && self.settings.on_nan != OnNan::Report;
        let fields = json!({
            "rank": rank,
            "step": found.step,
            "trouble": name(found.trouble),
            "loss": found.loss.to_string(),
            "last_good_step": found.last_good.and_then(|(step, _)| step),
            "last_good_loss": found.last_good.map(|(_, loss)| loss),
            "lasting": found.is_lasting,
            "acted_upon": acts,
        });
        self.journal
            .record_incident(generation, "loss.suspect", fields);
        // Mostly the ranks share one loss, and all of them tell of it.
        if self.generation.loss_trouble.is_none() || acts {
            let what_next = match (self.settings.on_nan, acts) {
                (OnNan::Report, _) => "the job goes on; --on-nan restart or end does more",
                (_, false) => "something is done about it if it lasts",
                (OnNan::Restart, true) => "the workers are started again",
                (OnNan::End, true) => "the job ends",
            };
            self.say(&format!(
                "generation {generation}: rank {rank} {words}; {what_next}"
            ));
        }
        self.generation.loss_trouble = Some(format!("rank {rank} {words}"));
        let finding = finding(&found, local_rank, (words, acts), self.settings.on_nan);
        self.tell(MemberEvent::Finding(finding)).await
    }
}

const fn name(trouble: LossTrouble) -> &'static str {
    match trouble {
        LossTrouble::NotANumber => "nan",
        LossTrouble::Infinite => "infinite",
        LossTrouble::Diverging => "diverging",
    }
}

/// What is said of the rank.
fn words(found: &LossFinding) -> String {
    let at = |step: Option<u64>| step.map_or_else(String::new, |step| format!(" at step {step}"));
    let lasts = if found.is_lasting { "still " } else { "" };
    let what = match found.trouble {
        LossTrouble::NotANumber => format!("has a loss that is {lasts}not a number"),
        LossTrouble::Infinite => format!("has a loss that is {lasts}infinite"),
        LossTrouble::Diverging => {
            format!(
                "has a loss ({}) that stays far above all before",
                found.loss
            )
        }
    };
    let before = match found.last_good {
        Some((step, loss)) => format!(" (the last good one was {loss}{})", at(step)),
        None => String::new(),
    };
    format!("{what}{}{before}", at(found.step))
}

fn finding(
    found: &LossFinding,
    local_rank: u32,
    (words, acts): (String, bool),
    on_nan: OnNan,
) -> Finding {
    let now_ns = clock::monotonic_ns();
    let (kind, role) = if acts {
        (kinds::LOSS_BROKEN, FaultRole::Cause)
    } else {
        // Whatever ends the generation later, it is not this.
        (kinds::LOSS_SUSPECT, FaultRole::Consequence)
    };
    let repeatability = if acts && on_nan == OnNan::End {
        Repeatability::Certain
    } else {
        Repeatability::MayDiffer
    };
    Finding {
        kind: kind.to_owned(),
        class: FaultClass::Numeric.into(),
        role: role.into(),
        repeatability: repeatability.into(),
        local_rank: Some(local_rank),
        monotonic_ns: now_ns,
        wall_ms: clock::wall_ms_at(now_ns),
        step: found.step,
        fingerprint: format!("loss:{}", name(found.trouble)),
        summary: words,
        evidence: vec![
            "to do: look at the data and the learning rate around that step; a checkpoint made after it may be spoilt"
                .to_owned(),
        ],
        ..Finding::default()
    }
}
