// SPDX-License-Identifier: Apache-2.0
//! The stall of a generation, from the first doubt to the verdict: when to look, what to say, when to act.
//!
//! Looking takes a moment and is done elsewhere; here it is kept in mind what was seen. Something is done only upon a
//! fresh look, and only while the stall still goes on. Of several nodes, the one that leads judges for all: the others
//! look when it asks them, and judge for themselves only while there is no stream to it.

mod council;
mod enquiry;
mod scene;
mod words;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_core::{
    Activity, Confidence, Instant, RankSigns, Stall, StallState, StallVerdict, find_culprit,
};
use steadfast_proto::v1::Finding;
use tokio::sync::mpsc;

pub(super) use self::council::Council;
pub(super) use self::enquiry::{Enquiry, Findings};
pub(super) use self::scene::{Scene, Scope};
use self::words::{age, describe};
use crate::evidence::Seen;
use crate::settings::{Stall as StallOptions, StallAction};

/// While a stall goes on, the workers are looked at again, less and less often: what they do may change.
const SOONEST_LOOK: Duration = Duration::from_secs(3);
const LATEST_LOOK: Duration = Duration::from_mins(1);
/// Whenever something moves, the next stall begins at least a bound later, which is longer than this as a rule.
const SAME_WITHIN: Duration = Duration::from_secs(1);

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
    pub(super) seen: Seen,
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
    pub(super) fn tick(&mut self, scene: &Scene, now: Instant) -> Option<StallOrder> {
        self.has_stepped |= scene.has_stepped;
        if self.options.action == StallAction::Off || !scene.is_active {
            self.incident = None;
            return None;
        }
        self.incident
            .take_if(|incident| incident.generation != scene.generation);
        let StallState::Stalled(stall) = scene.state else {
            return self.end(now);
        };
        let known = self.incident.as_ref();
        if known.is_some_and(|known| !is_same(&known.stall, &stall)) {
            return self.end(now);
        }
        let count = &mut self.count;
        let incident = self.incident.get_or_insert_with(|| {
            *count += 1;
            Incident {
                number: *count,
                generation: scene.generation,
                stall,
                is_looking: false,
                next_look: (now, stall.bound.clamp(SOONEST_LOOK, LATEST_LOOK)),
                verdict: None,
                is_settled: false,
            }
        });
        let (next, pause) = incident.next_look;
        let is_anothers = scene.scope == Scope::Led;
        if incident.is_looking || incident.is_settled || is_anothers || now < next {
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
        ranks: &[RankSigns],
        scene: &Scene,
        (now, run_dir): (Instant, &Path),
    ) -> Option<Outcome> {
        let StallState::Stalled(stall) = scene.state else {
            return None;
        };
        let bounds = &self.options.bounds.fixed;
        let expects_steps = self.has_stepped || bounds.contains_key(&Activity::Init);
        let incident = self.incident.as_mut().filter(|incident| {
            incident.number == number
                && incident.generation == scene.generation
                && is_same(&incident.stall, &stall)
                && scene.is_active
        })?;
        incident.is_looking = false;
        let verdict = find_culprit(ranks)?;
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
        let acts = acts && expects_steps && scene.scope != Scope::Led;
        // What goes to the leading core by another way than through this node's member may be lost, and is then said again.
        incident.is_settled = is_due && !(acts && scene.scope == Scope::Job);
        let directory = run_dir.join(format!(
            "incidents/generation-{}-stall-{number}",
            incident.generation
        ));
        let fields = words::fields(&stall, &verdict, now, acts);
        let is_worth_words = stall.step.is_some() || verdict.confidence > Confidence::Thin;
        let say = (news && is_worth_words).then(|| words::words(&stall, &verdict, now, &directory));
        let finding = acts.then(|| words::finding(scene.generation, &stall, &verdict, ranks));
        incident.verdict = Some(verdict);
        Some(Outcome {
            say,
            finding,
            directory,
            fields,
        })
    }

    /// How it stands, for `status`; empty when all is well.
    pub(super) fn status(&self, scene: &Scene, now: Instant) -> Option<String> {
        if self.options.action == StallAction::Off || !scene.is_active {
            return None;
        }
        match scene.state {
            StallState::NoSignal => Some(
                "no signal of progress: neither steps nor phases are seen, so a hang would not be noticed (see the guide \
                 to progress)"
                    .to_owned(),
            ),
            StallState::Moving { .. } => None,
            StallState::Stalled(stall) => {
                let verdict = self.incident.as_ref().and_then(|incident| incident.verdict.as_ref());
                let what = match (verdict, scene.scope) {
                    (Some(verdict), _) => describe(verdict),
                    (None, Scope::Led) => "the node that leads compares the ranks of all nodes".to_owned(),
                    (None, Scope::Node | Scope::Job) => "looking at the workers".to_owned(),
                };
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

/// Whether it is the same stall. What other nodes tell of it comes with the delays of the network.
fn is_same(known: &Stall, stall: &Stall) -> bool {
    let apart = if known.since > stall.since {
        known.since.saturating_since(stall.since)
    } else {
        stall.since.saturating_since(known.since)
    };
    apart <= SAME_WITHIN.min(known.bound / 2)
}

#[cfg(test)]
mod tests;
