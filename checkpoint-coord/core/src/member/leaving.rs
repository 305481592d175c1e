// SPDX-License-Identifier: Apache-2.0
//! A member that leaves a job which goes on without it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Member, MemberEffect, Work};
use crate::{
    EndRule, ExitReason, Instant, JobOutcome, JobResult, MemberPhase, RECORD_VERSION, RequestKind,
};

/// How long a member that has stopped its workers stays to see its ranks taken over. Its record, while it stands, proves
/// to any leader that they are stopped.
const HANDING_OVER: Duration = Duration::from_secs(3);

impl Member {
    /// Leaves if somebody asked for it, nothing of ours runs, and the others know.
    pub(super) fn leave_alone(&mut self, now: Instant, effects: &mut Vec<MemberEffect>) {
        if self.finished || self.leave_request().is_none() || !self.is_known_to_be_idle() {
            return;
        }
        let until = *self.leave_at.get_or_insert(now + HANDING_OVER);
        let taken_over = match (&self.work, self.view.plan()) {
            (Some(work), Some(plan)) => plan.value.generation > work.generation,
            _ => true,
        };
        if !taken_over && now < until {
            return self.wake(until);
        }
        self.finished = true;
        effects.push(MemberEffect::Finish(self.left()));
    }

    /// Whether none of our workers run, and our record says so.
    fn is_known_to_be_idle(&self) -> bool {
        match self.work.as_ref().map(Work::phase) {
            None => true,
            Some(Some(phase @ (MemberPhase::Stopped | MemberPhase::Completed))) => {
                let generation = self.generation();
                self.written.as_ref().is_some_and(|written| {
                    written.record.generation == generation && written.record.phase == phase
                })
            }
            Some(_) => false,
        }
    }

    fn left(&self) -> JobResult {
        let generation = self.generation();
        let request = self.leave_request();
        let signal = request.and_then(|request| match request.kind {
            RequestKind::Leave { signal, .. } if self.urgent => Some(signal),
            _ => None,
        });
        let reason = request.map_or("", |request| request.reason.as_str());
        JobResult {
            version: RECORD_VERSION,
            outcome: JobOutcome::Stopped,
            rule: EndRule::Left,
            exit: signal.map_or(ExitReason::Success, ExitReason::Interrupted),
            message: format!(
                "{} has left the job, which goes on without it if it can: {reason}",
                self.settings.node
            ),
            generation,
            root_cause: None,
            others: Vec::new(),
            restarts: generation.restart_count(),
            best_step: self.best_step(),
            extra: BTreeMap::new(),
        }
    }
}
