// SPDX-License-Identifier: Apache-2.0
//! Taking more nodes into a job that runs.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Leader, LeaderEffect, TERMINATE};
use crate::{Generation, Grow, Instant, JobSpec, NodeName, Plan, PlanPhase, Request, RequestKind};

/// How long a job that could grow waits for a checkpoint before it says that it sees none.
const PATIENCE: Duration = Duration::from_mins(2);

/// Nodes that could be taken in.
#[derive(Debug, Default)]
pub(super) struct Growing {
    waiting: Option<Waiting>,
}

/// They are not taken in before the next checkpoint.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    generation: Generation,
    since: Instant,
    /// Step of the newest checkpoint at that time.
    known: Option<u64>,
    /// How many nodes the job would have.
    larger: u32,
    /// Whether it was said that no checkpoint comes.
    told: bool,
}

impl Leader {
    /// Why the running generation is to end so that a larger one can begin, if it is.
    pub(super) fn reason_to_grow(
        &mut self,
        now: Instant,
        spec: &JobSpec,
        plan: &Plan,
    ) -> Option<PlanPhase> {
        let size = u32::try_from(plan.members.len()).unwrap_or(u32::MAX);
        if spec.grow == Grow::Never || size >= spec.max_nodes {
            return None;
        }
        self.note_arrivals(now);
        let ledger = self.ledger();
        let usable = self.usable(&ledger);
        let planned: BTreeSet<&NodeName> = plan.members.iter().map(|place| &place.node).collect();
        let newcomers: Vec<_> = usable
            .keys()
            .filter(|node| !planned.contains(*node))
            .filter(|node| self.is_fit(now, usable[*node], &plan.members))
            .map(|node| self.quarantined_until(node, &ledger).filter(|at| *at > now))
            .collect();
        let kept_out = newcomers.iter().flatten().min().copied();
        let ready = newcomers.iter().filter(|until| until.is_none()).count();
        let ready = u32::try_from(ready).unwrap_or(u32::MAX);
        if let Some(at) = kept_out {
            self.wake(at);
        }
        let larger = spec.size_with(size.saturating_add(ready))?;
        if larger <= size {
            self.growing.waiting = None;
            return None;
        }
        // Where a checkpoint can be asked for, none need be waited for.
        let waits = spec.grow == Grow::AtCheckpoint && self.save_means(plan).is_none();
        let newest = self.newest_checkpoint(plan);
        let before = self.growing.waiting;
        let waiting = before
            .filter(|waiting| waiting.generation == plan.generation)
            .unwrap_or(Waiting {
                generation: plan.generation,
                since: now,
                known: newest,
                larger,
                told: false,
            });
        self.growing.waiting = Some(Waiting { larger, ..waiting });
        if waits && newest <= waiting.known {
            if !waiting.told {
                self.wake(waiting.since + PATIENCE);
            }
            return None;
        }
        let save_ms = match spec.grow {
            Grow::Immediately => 0,
            _ => u64::try_from(self.settings.save_timeout.as_millis()).unwrap_or(u64::MAX),
        };
        let reason = format!("{larger} nodes can be used instead of {size}");
        Some(PlanPhase::Drain {
            signal: TERMINATE,
            why: reason.clone(),
            request: Some(Request {
                generation: plan.generation,
                kind: RequestKind::Restart,
                save_ms,
                reason,
            }),
        })
    }

    /// That nodes wait to be taken in, for the reason that is shown while the generation runs; empty where none do.
    pub(super) fn waiting_to_grow(&self, plan: &Plan) -> String {
        let waiting = self.growing.waiting;
        let waiting = waiting.filter(|waiting| waiting.generation == plan.generation);
        waiting.map_or_else(String::new, |waiting| {
            format!(
                "; goes on with {} nodes after the next checkpoint",
                waiting.larger
            )
        })
    }

    /// Says once in a generation that the checkpoint after which the job would grow does not come. It does not grow without:
    /// that would cost all steps since the last one, or all steps.
    pub(super) fn say_why_it_does_not_grow(
        &mut self,
        now: Instant,
        plan: &Plan,
        effects: &mut Vec<LeaderEffect>,
    ) {
        let Some(waiting) = &mut self.growing.waiting else {
            return;
        };
        let is_current = waiting.generation == plan.generation;
        if !is_current || waiting.told || now < waiting.since + PATIENCE {
            return;
        }
        waiting.told = true;
        let text = format!(
            "{} nodes can be used instead of {}, but the job grows only after a checkpoint, and none was seen for {} s. If it \
             makes any, say where and in which form (--checkpoint-dir, --checkpoint-layout); with --grow immediately it does \
             not wait for one, and loses the steps since the last",
            waiting.larger,
            plan.members.len(),
            PATIENCE.as_secs()
        );
        effects.push(LeaderEffect::Say(text));
    }

    /// Step of the newest checkpoint that the generation has made.
    pub(super) fn newest_checkpoint(&self, plan: &Plan) -> Option<u64> {
        let members = plan.members.iter();
        members
            .filter_map(|place| Some(&self.view.member(&place.node)?.value))
            .filter(|record| record.generation == plan.generation)
            .filter_map(|record| record.checkpoint)
            .max()
    }
}
