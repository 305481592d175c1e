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
/// How long a member that was told to end by a signal, and has stopped its workers, tries to tell the others. Whoever sent
/// the signal will not wait for long before a harder one.
const TELLING: Duration = Duration::from_secs(5);

impl Member {
    /// Leaves if somebody asked for it, nothing of ours runs, and the others know or cannot be told.
    pub(super) fn leave_alone(&mut self, now: Instant, effects: &mut Vec<MemberEffect>) {
        if self.finished {
            return;
        }
        let is_known = self.is_known_to_be_idle();
        let patience = if is_known && self.leave_request().is_some() {
            HANDING_OVER
        } else if !is_known && self.is_idle() && self.settings.shared && self.urgent {
            TELLING
        } else {
            return;
        };
        let until = *self.leave_at.get_or_insert(now + patience);
        let taken_over = match (&self.work, self.view.plan()) {
            (Some(work), Some(plan)) => plan.value.generation > work.generation,
            _ => true,
        };
        if !taken_over && now < until {
            return self.wake(until);
        }
        self.finished = true;
        effects.push(MemberEffect::Finish(self.left(is_known)));
    }

    /// Whether none of our workers run.
    fn is_idle(&self) -> bool {
        let phase = self.work.as_ref().map(Work::phase);
        matches!(
            phase,
            None | Some(Some(MemberPhase::Stopped | MemberPhase::Completed))
        )
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

    fn left(&self, is_known: bool) -> JobResult {
        let generation = self.generation();
        let request = self.request.as_ref();
        let signal = request.and_then(|request| match request.kind {
            RequestKind::Leave { signal, .. } | RequestKind::Stop { signal, .. } if self.urgent => {
                Some(signal)
            }
            _ => None,
        });
        let reason = request.map_or("", |request| request.reason.as_str());
        let node = &self.settings.node;
        let message = if is_known {
            format!("{node} has left the job, which goes on without it if it can: {reason}")
        } else {
            format!(
                "{node} has left the job: {reason}. The coordination store does not answer, so the others will know when \
                 the lease of this node has ended"
            )
        };
        JobResult {
            version: RECORD_VERSION,
            outcome: JobOutcome::Stopped,
            rule: EndRule::Left,
            exit: signal.map_or(ExitReason::Success, ExitReason::Interrupted),
            message,
            generation,
            root_cause: None,
            others: Vec::new(),
            restarts: generation.restart_count(),
            best_step: self.best_step(),
            extra: BTreeMap::new(),
        }
    }
}
