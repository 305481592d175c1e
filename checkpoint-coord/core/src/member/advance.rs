// SPDX-License-Identifier: Apache-2.0
//! What a member does: it compares what is with what the plan, the result and its own findings ask for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Member, MemberEffect, TERMINATE, Work};
use crate::{
    EndRule, ExitReason, Instant, JobOutcome, JobResult, MemberPhase, Plan, PlanPhase,
    RECORD_VERSION, RequestKind,
};

impl Member {
    /// Compares what is with what should be, and does what is missing.
    pub(super) fn advance(&mut self, now: Instant, effects: &mut Vec<MemberEffect>) {
        self.wake_at = None;
        self.check_registration(now);
        self.stop_for_own_reasons(now, effects);
        let ending = self.refusal.as_ref().or(self.view.result()).cloned();
        if let Some(result) = ending {
            self.leave(now, result, effects);
            if self.finished {
                return;
            }
        } else if let Some(plan) = self.news() {
            self.follow(now, plan, effects);
        }
        self.follow_save(effects);
        self.leave_alone(now, effects);
        if !self.finished {
            self.write(effects);
        }
    }

    /// Finds out whether this member may take part, and whether its record is still its own.
    fn check_registration(&mut self, now: Instant) {
        if let Some(spec) = self.view.spec()
            && let Some(difference) = spec.value.disagreement(&self.settings.spec)
        {
            let message = format!(
                "{} cannot join the job: {difference}; start every node with the same options",
                self.settings.node
            );
            self.refuse(message);
        }
        if self.own_known_at < self.last_write || self.in_flight.is_some() {
            return;
        }
        let incarnation = self
            .view
            .member(&self.settings.node)
            .map(|record| record.value.incarnation);
        match incarnation {
            // The lease ran out: register again.
            None => {
                self.written = None;
                self.name_taken_since = None;
            }
            Some(incarnation) if incarnation != self.settings.incarnation => {
                self.share_no_name(now);
            }
            Some(_) => self.name_taken_since = None,
        }
    }

    /// Another supervisor stands under our name. It may be an earlier one of this node that is dead: then its lease ends.
    fn share_no_name(&mut self, now: Instant) {
        let since = *self.name_taken_since.get_or_insert(now);
        let until = since + self.settings.name_patience;
        if self.written.is_some() || now >= until {
            self.refuse(format!(
                "another supervisor has joined the job under the name {}; give each node its own name",
                self.settings.node
            ));
        } else {
            self.wake(until);
        }
    }

    fn refuse(&mut self, message: String) {
        let generation = self.generation();
        self.refusal.get_or_insert_with(|| JobResult {
            version: RECORD_VERSION,
            outcome: JobOutcome::Failed,
            rule: EndRule::Refused,
            exit: ExitReason::Configuration,
            message,
            generation,
            root_cause: None,
            others: Vec::new(),
            restarts: generation.restart_count(),
            best_step: None,
            extra: BTreeMap::new(),
        });
    }

    /// A fault among our own workers, or a request made here, needs no plan: the stop begins at once.
    fn stop_for_own_reasons(&mut self, now: Instant, effects: &mut Vec<MemberEffect>) {
        let Some(work) = self.work.as_ref().filter(|work| work.is_active()) else {
            return;
        };
        let generation = work.generation;
        if let Some(fault) = work.fault() {
            let reason = fault.summary.clone();
            let grace = self.settings.restart_grace;
            self.order_stop(now, TERMINATE, grace, reason, effects);
        } else if let Some(request) = self.request_to_obey().cloned() {
            if self.waits_for_save(now, &request, effects) {
                return;
            }
            match request.kind {
                RequestKind::Stop {
                    signal, grace_ms, ..
                }
                | RequestKind::Leave { signal, grace_ms } => {
                    let grace = self.rest_of(now, self.stop_grace(grace_ms));
                    self.order_stop(now, signal, grace, request.reason, effects);
                }
                RequestKind::Restart if request.generation == generation => {
                    let grace = self.settings.stop_grace;
                    self.order_stop(now, TERMINATE, grace, request.reason, effects);
                }
                RequestKind::Restart | RequestKind::Checkpoint { .. } => {}
            }
        }
    }

    /// The job has ended: leave as soon as nothing of ours runs.
    fn leave(&mut self, now: Instant, result: JobResult, effects: &mut Vec<MemberEffect>) {
        match self.work.as_ref().map(Work::phase) {
            Some(None | Some(MemberPhase::Running)) => {
                let grace = self.settings.stop_grace;
                let reason = result.message.clone();
                self.order_stop(now, TERMINATE, grace, reason, effects);
            }
            Some(Some(MemberPhase::Draining)) => {}
            None | Some(Some(_)) => {
                self.finished = true;
                effects.push(MemberEffect::Finish(result));
            }
        }
    }

    /// The plan, if it asks for something that has not been begun. Most events find that it does not.
    fn news(&self) -> Option<Arc<Plan>> {
        let plan = &self.view.plan()?.value;
        let current = self.generation();
        let stopping = self
            .work
            .as_ref()
            .is_some_and(|work| work.stop_began.is_some());
        let drain = plan.generation == current && !plan.is_run() && !stopping;
        (plan.generation > current || drain).then(|| Arc::clone(plan))
    }

    /// Does what the plan says.
    fn follow(&mut self, now: Instant, plan: Arc<Plan>, effects: &mut Vec<MemberEffect>) {
        let current = self.generation();
        if plan.generation == current {
            if let PlanPhase::Drain {
                signal,
                request,
                why,
            } = &plan.phase
            {
                let grace = match request.as_ref().map(|request| request.kind) {
                    Some(RequestKind::Stop { grace_ms, .. }) => self.stop_grace(grace_ms),
                    Some(_) => self.settings.stop_grace,
                    None => self.settings.restart_grace,
                };
                // Whoever asked here does not wait longer because others had to be told first.
                let grace = match self.request.as_ref().map(|request| request.kind) {
                    Some(
                        RequestKind::Stop { grace_ms, .. } | RequestKind::Leave { grace_ms, .. },
                    ) => grace.min(self.rest_of(now, self.stop_grace(grace_ms))),
                    _ => grace,
                };
                self.order_stop(now, *signal, grace, why.clone(), effects);
            }
            return;
        }
        if let Some(work) = &self.work
            && work.stopped.is_none()
        {
            let reason = format!("generation {current} is over");
            let grace = self.settings.restart_grace;
            self.order_stop(now, TERMINATE, grace, reason, effects);
            return;
        }
        self.begin(now, plan, effects);
    }

    /// Takes up a generation; nothing of an older one is left on this node.
    fn begin(&mut self, now: Instant, plan: Arc<Plan>, effects: &mut Vec<MemberEffect>) {
        let Some(place) = plan
            .member(&self.settings.node)
            .filter(|place| place.incarnation == self.settings.incarnation)
        else {
            self.work = None;
            return;
        };
        let mut work = Work::new(
            plan.generation,
            self.settings.node.clone(),
            place.slots,
            place.base_rank,
        );
        // Old news that a watch brings late: the leader has long seen that the record which it names is gone.
        let published = self.view.plan().map(|plan| plan.mod_revision);
        let is_news = published >= Some(self.registered_at());
        let asked_to_go = self.stop_request().is_some() || self.leave_request().is_some();
        if plan.is_run() && is_news && !asked_to_go {
            self.begin_as_it_is(now, &mut work);
            self.work = Some(work);
            effects.push(MemberEffect::Start { plan });
        } else if plan.is_run() && !is_news {
            // The keeper answers that nothing runs, with another port.
            work.note_fence(now);
            let generation = work.generation;
            self.work = Some(work);
            effects.push(MemberEffect::Stop {
                generation,
                first_signal: TERMINATE,
                grace: self.settings.restart_grace,
                reason: "the plan is older than this node's registration".to_owned(),
            });
        } else {
            // An earlier agent may have told the keeper to start it, which has not come to that yet: it must never do so.
            let reason = format!(
                "generation {} is over before it began here",
                work.generation
            );
            let grace = self.settings.restart_grace;
            self.work = Some(work);
            self.order_stop(now, TERMINATE, grace, reason, effects);
        }
    }

    /// Begins to stop the workers, unless that has begun already.
    fn order_stop(
        &mut self,
        now: Instant,
        first_signal: i32,
        grace: Duration,
        reason: String,
        effects: &mut Vec<MemberEffect>,
    ) {
        let is_last = self.stop_request().is_some()
            || self.leave_request().is_some()
            || self.view.result().is_some();
        let looks = self.settings.looks_every.is_some() && !is_last;
        if let Some(work) = &mut self.work
            && work.stop_began.is_none()
        {
            work.stop_began = Some(now);
            if looks {
                effects.push(MemberEffect::Look);
            }
            effects.push(MemberEffect::Stop {
                generation: work.generation,
                first_signal,
                grace,
                reason,
            });
        }
    }
}
