// SPDX-License-Identifier: Apache-2.0
//! The stall of a generation, from the first doubt to the verdict: when to look, what to say, when to act.
//!
//! Looking takes a moment and is done elsewhere; here it is kept in mind what was seen. Something is done only upon a
//! fresh look, and only while the stall still goes on.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_core::{
    Activity, Confidence, Instant, Rank, RankSigns, Stall, StallState, StallVerdict, find_culprit,
};
use steadfast_proto::v1::{FaultClass, Finding};
use tokio::sync::mpsc;

use super::generation::Generation;
use crate::clock;
use crate::evidence::RankEvidence;
use crate::settings::{Settings, Stall as StallOptions, StallAction};

/// While a stall goes on, the workers are looked at again, less and less often: what they do may change.
const SOONEST_LOOK: Duration = Duration::from_secs(3);
const LATEST_LOOK: Duration = Duration::from_mins(1);

/// What is seen of stalls.
#[derive(Debug)]
pub(super) struct StallDesk {
    options: StallOptions,
    incident: Option<Incident>,
    /// Stalls so far, of all generations.
    count: u64,
    /// Whether a step was ever seen.
    has_stepped: bool,
    looks: (
        mpsc::UnboundedSender<Looked>,
        mpsc::UnboundedReceiver<Looked>,
    ),
}

/// What a look at the workers has shown.
#[derive(Debug)]
pub(super) struct Looked {
    /// Of which stall.
    pub(super) number: u64,
    pub(super) ranks: Vec<RankEvidence>,
}

/// One stall.
#[derive(Debug)]
struct Incident {
    number: u64,
    generation: u64,
    stall: Stall,
    is_looking: bool,
    /// When the next look is due, and how long after that the one then.
    next_look: (Instant, Duration),
    verdict: Option<StallVerdict>,
    /// Whether it is the core's by now, or nobody's.
    is_settled: bool,
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum StallOrder {
    /// Look at the workers; the answer is for [`StallDesk::looked`].
    Look {
        /// Which stall.
        number: u64,
    },
    /// It is over by itself.
    Over {
        /// Which stall, and how long it was.
        fields: Value,
        /// Whether somebody was told of it.
        was_told: bool,
    },
}

/// What a look has come to.
#[derive(Debug)]
pub(super) struct Outcome {
    /// What is said to the user, where that is news.
    pub(super) say: Option<String>,
    /// What the decision core is told, where something is to be done.
    pub(super) finding: Option<Finding>,
    /// Where the evidence belongs.
    pub(super) directory: PathBuf,
    /// Fields for the journal and for the index of the evidence.
    pub(super) fields: Value,
}

impl StallDesk {
    pub(super) fn new(options: StallOptions) -> StallDesk {
        StallDesk {
            options,
            incident: None,
            count: 0,
            has_stepped: false,
            looks: mpsc::unbounded_channel(),
        }
    }

    /// Where what was seen is to be sent.
    pub(super) fn sender(&self) -> mpsc::UnboundedSender<Looked> {
        self.looks.0.clone()
    }

    /// What is seen next. Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Looked {
        match self.looks.1.recv().await {
            Some(looked) => looked,
            // A sender is in our own hands.
            None => std::future::pending().await,
        }
    }

    /// What is to be done now.
    pub(super) fn tick(&mut self, generation: &Generation, now: Instant) -> Option<StallOrder> {
        self.has_stepped |= generation.step.is_some();
        if self.options.action == StallAction::Off || !generation.is_active() {
            self.incident = None;
            return None;
        }
        self.incident
            .take_if(|incident| incident.generation != generation.number);
        let StallState::Stalled(stall) = generation.stall.judge(now) else {
            return self.end(now);
        };
        let known = self.incident.as_ref();
        if known.is_some_and(|known| known.stall.since != stall.since) {
            return self.end(now);
        }
        let count = &mut self.count;
        let incident = self.incident.get_or_insert_with(|| {
            *count += 1;
            Incident {
                number: *count,
                generation: generation.number,
                stall,
                is_looking: false,
                next_look: (now, stall.bound.clamp(SOONEST_LOOK, LATEST_LOOK)),
                verdict: None,
                is_settled: false,
            }
        });
        let (next, pause) = incident.next_look;
        if incident.is_looking || incident.is_settled || now < next {
            return None;
        }
        incident.is_looking = true;
        incident.next_look = (now + pause, pause.saturating_mul(2).min(LATEST_LOOK));
        Some(StallOrder::Look {
            number: incident.number,
        })
    }

    /// What was seen. `None` when nobody wants to know any more.
    pub(super) fn looked(
        &mut self,
        number: u64,
        seen: &[RankEvidence],
        generation: &Generation,
        settings: &Settings,
    ) -> Option<Outcome> {
        let now = Instant::from_nanos(clock::monotonic_ns());
        let StallState::Stalled(stall) = generation.stall.judge(now) else {
            return None;
        };
        let bounds = &self.options.bounds.fixed;
        let expects_steps = self.has_stepped || bounds.contains_key(&Activity::Init);
        let incident = self.incident.as_mut().filter(|incident| {
            incident.number == number
                && incident.generation == generation.number
                && incident.stall.since == stall.since
                && generation.is_active()
        })?;
        incident.is_looking = false;
        let ranks: Vec<RankSigns> = seen.iter().map(|seen| seen.signs.clone()).collect();
        let verdict = find_culprit(&ranks)?;
        let news = incident.verdict.as_ref().is_none_or(|before| {
            (&before.culprit, before.class) != (&verdict.culprit, verdict.class)
        });
        let due = stall.since.saturating_add(verdict.patience(&stall));
        let is_due = now >= due;
        if !is_due {
            incident.next_look.0 = incident.next_look.0.min(due);
        }
        let acts = is_due && self.options.action == StallAction::Restart && !verdict.is_held;
        // Before the first step it may be a program that never makes one, unless somebody has said that it must.
        let acts = acts && expects_steps;
        incident.is_settled = is_due;
        let directory = settings.log.run_dir.join(format!(
            "incidents/generation-{}-stall-{number}",
            incident.generation
        ));
        let fields = fields(&stall, &verdict, now, acts);
        let is_worth_words = stall.step.is_some() || verdict.confidence > Confidence::Thin;
        let say = (news && is_worth_words).then(|| words(&stall, &verdict, now, &directory));
        let finding = acts.then(|| finding(generation, &stall, &verdict, &ranks));
        incident.verdict = Some(verdict);
        Some(Outcome {
            say,
            finding,
            directory,
            fields,
        })
    }

    /// How it stands, for `status`; empty when all is well.
    pub(super) fn status(&self, generation: &Generation) -> Option<String> {
        if self.options.action == StallAction::Off || !generation.is_active() {
            return None;
        }
        let now = Instant::from_nanos(clock::monotonic_ns());
        match generation.stall.judge(now) {
            StallState::NoSignal => Some(
                "no signal of progress: neither steps nor phases are seen, so a hang would not be noticed (see the guide \
                 to progress)"
                    .to_owned(),
            ),
            StallState::Moving { .. } => None,
            StallState::Stalled(stall) => {
                let verdict = self.incident.as_ref().and_then(|incident| incident.verdict.as_ref());
                let what = verdict.map_or("looking at the workers".to_owned(), describe);
                Some(format!("stalled for {:.1} s: {what}", age(&stall, now)))
            }
        }
    }

    fn end(&mut self, now: Instant) -> Option<StallOrder> {
        let incident = self.incident.take()?;
        let fields = json!({
            "stall": incident.number,
            "seconds": age(&incident.stall, now),
            "step": incident.stall.step,
        });
        Some(StallOrder::Over {
            fields,
            was_told: incident.verdict.is_some(),
        })
    }
}

fn age(stall: &Stall, now: Instant) -> f64 {
    now.saturating_since(stall.since).as_secs_f64()
}

/// Who it is, and why.
fn describe(verdict: &StallVerdict) -> String {
    match &verdict.culprit {
        Some(culprit) => format!(
            "rank {} on {} {}",
            culprit.rank, culprit.node, verdict.summary
        ),
        None => verdict.summary.clone(),
    }
}

fn words(
    stall: &Stall,
    verdict: &StallVerdict,
    now: Instant,
    directory: &std::path::Path,
) -> String {
    let usual = stall.typical.map_or_else(String::new, |typical| {
        format!(" (one takes {:.1} s as a rule)", typical.as_secs_f64())
    });
    let sure = match verdict.confidence {
        Confidence::Strong => "the signs are clear",
        Confidence::Fair => "it may also be slow only, so it gets more time",
        Confidence::Thin => "the evidence is thin",
    };
    let step = stall
        .step
        .map_or_else(String::new, |step| format!(" after step {step}"));
    format!(
        "no step for {:.1} s{step}{usual}: {}; {sure}. To do: {}. Evidence: {}",
        age(stall, now),
        describe(verdict),
        verdict.advice,
        directory.display()
    )
}

fn fields(stall: &Stall, verdict: &StallVerdict, now: Instant, acts: bool) -> Value {
    json!({
        "seconds": age(stall, now),
        "bound_seconds": stall.bound.as_secs_f64(),
        "typical_seconds": stall.typical.map(|typical| typical.as_secs_f64()),
        "activity": stall.activity,
        "step": stall.step,
        "class": verdict.class_name(),
        "culprit": verdict.culprit,
        "others": verdict.others,
        "confidence": verdict.confidence,
        "signs": verdict.signs,
        "summary": describe(verdict),
        "advice": verdict.advice,
        "restarts": acts,
    })
}

/// What the core is told: the fault is as old as the stall.
fn finding(
    generation: &Generation,
    stall: &Stall,
    verdict: &StallVerdict,
    ranks: &[RankSigns],
) -> Finding {
    let rank_of = |rank: Rank| ranks.iter().find(|signs| signs.rank == rank);
    let culprit = verdict
        .culprit
        .as_ref()
        .and_then(|culprit| rank_of(culprit.rank));
    let place = culprit.and_then(|signs| signs.stack.first().cloned());
    let since_ns = stall.since.as_nanos();
    let class: FaultClass = verdict.class;
    Finding {
        kind: steadfast_core::kinds::WORKER_HUNG.to_owned(),
        class: class.into(),
        generation: generation.number,
        local_rank: culprit.map(|signs| signs.local_rank.0),
        monotonic_ns: since_ns,
        wall_ms: clock::wall_ms_at(since_ns),
        step: stall.step,
        fingerprint: format!(
            "hung:{}:{}",
            class.as_str_name(),
            place.or_else(|| culprit?.wchan.clone()).unwrap_or_default()
        ),
        summary: verdict.summary.clone(),
        evidence: verdict
            .signs
            .iter()
            .cloned()
            .chain([format!("to do: {}", verdict.advice)])
            .collect(),
        pid: culprit.map_or(0, |signs| signs.pid),
        ..Finding::default()
    }
}

#[cfg(test)]
mod tests;
