// SPDX-License-Identifier: Apache-2.0
//! A member's part in a checkpoint that is asked for, and how long a stop waits for one.

use std::time::Duration;

use super::{Member, MemberEffect, Work};
use crate::{Instant, MemberRecord, Plan, Request, RequestKind, SaveMeans, SaveOrder, SaveOutcome};

/// What is left of the grace of a stop for the workers to end in, when a checkpoint is made first: a quarter of it, but no
/// more than this.
const LONGEST_REST: Duration = Duration::from_secs(5);

/// A generation's checkpoint that was asked for, as its member has it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Saving {
    /// How the workers can be asked for one.
    pub(super) means: Option<SaveMeans>,
    /// Step of the newest one that they have made because they were asked.
    pub(super) saved: Option<u64>,
    /// Step of an order that came when one of them had made that step already.
    pub(super) told_late: Option<u64>,
    /// What the agent was told last.
    order: Option<SaveOrder>,
    outcome: Option<SaveOutcome>,
    committed: Option<u64>,
}

/// How long a checkpoint may be waited for, of a grace after which all must be over.
pub(super) fn window(grace: Duration) -> Duration {
    grace.saturating_sub((grace / 4).min(LONGEST_REST))
}

impl Work {
    /// Takes in that a checkpoint is on stable storage.
    pub(super) fn note_durable(&mut self, step: u64) {
        // The same step may be made again, after it was moved aside.
        if let Err(place) = self.durable.binary_search(&step) {
            self.durable.insert(place, step);
        }
        let older = self
            .durable
            .len()
            .saturating_sub(MemberRecord::MOST_DURABLE);
        self.durable.drain(..older);
    }
}

impl Member {
    /// Passes on what the plan says of a checkpoint that is wanted.
    pub(super) fn follow_save(&mut self, effects: &mut Vec<MemberEffect>) {
        let (Some(work), Some(plan)) = (&mut self.work, self.view.plan()) else {
            return;
        };
        let plan: &Plan = &plan.value;
        if plan.generation != work.generation {
            return;
        }
        let generation = work.generation;
        if plan.save != work.saving.order && work.is_active() && work.started {
            work.saving.order.clone_from(&plan.save);
            effects.push(MemberEffect::Save {
                generation,
                order: plan.save.clone(),
            });
        }
        if plan.last_save != work.saving.outcome
            && let Some(outcome) = &plan.last_save
        {
            work.saving.outcome = Some(outcome.clone());
            effects.push(MemberEffect::SaveEnded {
                generation,
                outcome: outcome.clone(),
            });
        }
        if plan.committed != work.saving.committed
            && let Some(step) = plan.committed
        {
            work.saving.committed = Some(step);
            effects.push(MemberEffect::Committed { generation, step });
        }
        let answered = plan.last_save.as_ref().map(|outcome| outcome.number);
        self.request.take_if(|request| match request.kind {
            RequestKind::Checkpoint { number } => {
                answered == Some(number) || request.generation != generation
            }
            _ => false,
        });
    }

    /// Whether a stop that was asked for here waits: the workers can be asked for a checkpoint first, and there is time.
    pub(super) fn waits_for_save(
        &mut self,
        now: Instant,
        request: &Request,
        effects: &mut Vec<MemberEffect>,
    ) -> bool {
        let can = self.work.as_ref().is_some_and(Work::can_save);
        let running = self
            .view
            .plan()
            .is_some_and(|plan| plan.value.generation == request.generation && plan.value.is_run());
        let Some(until) = self.save_until(request) else {
            return false;
        };
        if !can || !running || self.insisted || now >= until {
            return false;
        }
        self.wake(until);
        if !self.postponed {
            self.postponed = true;
            effects.push(MemberEffect::Postpone {
                within: until - now,
            });
        }
        true
    }

    /// What is left of the grace of a stop that was asked for here some time ago.
    pub(super) fn rest_of(&self, now: Instant, grace: Duration) -> Duration {
        let asked_at = self.asked_at.unwrap_or(now);
        grace.saturating_sub(now.saturating_since(asked_at))
    }

    fn save_until(&self, request: &Request) -> Option<Instant> {
        let is_no_stop = matches!(request.kind, RequestKind::Checkpoint { .. });
        (request.save_ms > 0 && !is_no_stop).then_some(())?;
        Some(self.asked_at? + Duration::from_millis(request.save_ms))
    }
}
