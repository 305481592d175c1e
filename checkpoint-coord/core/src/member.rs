// SPDX-License-Identifier: Apache-2.0
//! The member: looks after one node's workers, as the plan says, and reports what happened to them.

mod event;
mod resume;
#[cfg(test)]
mod tests;
mod work;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use steadfast_proto::v1::Finding;

use crate::records::encode;
use crate::{
    Condition, EndRule, ExitReason, FindingsRecord, Generation, Instant, JobOutcome, JobResult,
    MemberPhase, MemberRecord, Operation, Outcome, Plan, PlanPhase, RECORD_VERSION, Request,
    RequestKind, Revision, Transaction, View,
};

pub use event::{
    KeeperStop, MemberEffect, MemberEvent, MemberSettings, OperatorRequest, SpawnFailure,
    WorkerObservation, WorkerState, kinds,
};
use work::Work;
pub(crate) use work::is_fatal;

/// SIGTERM, the first signal unless somebody asked with another one.
const TERMINATE: i32 = 15;
/// How long to wait before a write that failed or was refused is tried again, when nothing else changes.
const WRITE_RETRY: Duration = Duration::from_millis(200);

/// Where a member is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// Not registered yet.
    Joining,
    /// Registered, but the plan gives it nothing to do.
    Spare,
    /// Its workers are being started.
    Starting(Generation),
    /// Its workers have been started.
    Running(Generation),
    /// All its workers have exited with code 0.
    Completed(Generation),
    /// Its workers are being stopped.
    Draining(Generation),
    /// Its workers are gone.
    Stopped(Generation),
    /// The job has ended, or goes on without this member; nothing of ours runs.
    Left,
}

/// Looks after one node's workers. See the crate's documentation for how it is driven.
#[derive(Debug)]
pub struct Member {
    settings: MemberSettings,
    view: View,
    /// Whether the keeper has said what it has; nothing is done before.
    resumed: bool,
    next_port: u16,
    request: Option<Request>,
    /// Whether a signal asked for the stop; then it does not wait for the store.
    urgent: bool,
    work: Option<Work>,
    /// Fields of our record that this version does not know.
    extra: BTreeMap<String, Value>,
    written: Option<Report>,
    in_flight: Option<Report>,
    last_write: Revision,
    retry_at: Option<Instant>,
    refusal: Option<JobResult>,
    finished: bool,
}

/// What a member writes about itself.
#[derive(Debug, Clone, PartialEq)]
struct Report {
    record: MemberRecord,
    findings: Vec<Finding>,
}

impl Member {
    /// A member that knows what the store holds. It wakes up with [`MemberEvent::Resume`].
    pub fn new(settings: MemberSettings, view: View) -> Self {
        Self {
            settings,
            view,
            resumed: false,
            next_port: 0,
            request: None,
            urgent: false,
            work: None,
            extra: BTreeMap::new(),
            written: None,
            in_flight: None,
            last_write: Revision(0),
            retry_at: None,
            refusal: None,
            finished: false,
        }
    }

    /// Takes in one event; the effects are to be carried out in their order.
    pub fn handle(&mut self, now: Instant, event: MemberEvent) -> Vec<MemberEffect> {
        let mut effects = Vec::new();
        if self.finished {
            return effects;
        }
        let kill = matches!(event, MemberEvent::Interrupt { count, .. } if count >= 2);
        self.take_in(now, event, &mut effects);
        if self.resumed {
            self.advance(now, &mut effects);
            if kill && let Some(work) = self.draining() {
                effects.push(MemberEffect::KillNow {
                    generation: work.generation,
                });
            }
        }
        effects
    }

    /// When to send a [`MemberEvent::Tick`], if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.finished { None } else { self.retry_at }
    }

    /// Where the member is in its life.
    pub fn state(&self) -> MemberState {
        if self.finished {
            return MemberState::Left;
        }
        let Some(work) = &self.work else {
            return if self.written.is_some() {
                MemberState::Spare
            } else {
                MemberState::Joining
            };
        };
        let generation = work.generation;
        match work.phase() {
            None | Some(MemberPhase::Idle) => MemberState::Starting(generation),
            Some(MemberPhase::Running) => MemberState::Running(generation),
            Some(MemberPhase::Completed) => MemberState::Completed(generation),
            Some(MemberPhase::Draining) => MemberState::Draining(generation),
            Some(MemberPhase::Stopped) => MemberState::Stopped(generation),
        }
    }

    /// What the member waits for, in words.
    pub fn reason(&self) -> String {
        if !self.resumed {
            return "waiting to hear from the keeper which workers there are".to_owned();
        }
        if let Some(problem) = self.view.unreadable().next() {
            return problem.to_string();
        }
        match self.state() {
            MemberState::Joining => "registering with the job".to_owned(),
            MemberState::Spare => "registered; waiting for a plan that names this node".to_owned(),
            MemberState::Starting(_) => "waiting for the workers to be started".to_owned(),
            MemberState::Running(_) => self.running_reason(),
            MemberState::Completed(_) => {
                "all workers of this node have finished; waiting for those of other nodes"
                    .to_owned()
            }
            MemberState::Draining(_) => self.draining_reason(),
            MemberState::Stopped(_) => {
                "all workers of this node are stopped; waiting for the leader's decision".to_owned()
            }
            MemberState::Left => "the job has ended".to_owned(),
        }
    }

    /// The generation that this member works on, or worked on last; 0 for none.
    pub fn generation(&self) -> Generation {
        self.work
            .as_ref()
            .map(|work| work.generation)
            .unwrap_or_default()
    }

    /// Highest training step seen in this member's generation.
    pub fn best_step(&self) -> Option<u64> {
        self.work.as_ref().and_then(|work| work.best_step)
    }

    /// What this member found in its generation.
    pub fn findings(&self) -> &[Finding] {
        self.work.as_ref().map_or(&[], |work| &work.findings)
    }

    /// What it found that its generation cannot survive, if anything.
    pub fn fault(&self) -> Option<&Finding> {
        self.work.as_ref().and_then(Work::fault)
    }

    /// What the member knows of the store.
    pub fn view(&self) -> &View {
        &self.view
    }

    fn take_in(&mut self, now: Instant, event: MemberEvent, effects: &mut Vec<MemberEffect>) {
        match event {
            MemberEvent::Resume {
                workers,
                stopping,
                next_port,
            } => self.resume(now, workers, stopping, next_port, effects),
            MemberEvent::Changed(batch) => {
                self.view.apply(&batch);
                self.retry_at = None;
            }
            MemberEvent::Relisted { entries, revision } => {
                self.view = View::load(self.settings.keys.clone(), &entries, revision);
                self.retry_at = None;
            }
            MemberEvent::Interrupt { signal, .. } => {
                self.urgent = true;
                let kind = RequestKind::Stop {
                    signal,
                    grace_ms: None,
                };
                let reason = format!("signal {signal} was received on {}", self.settings.node);
                self.ask(kind, reason);
            }
            MemberEvent::Operator(request) => self.take_in_request(request, effects),
            MemberEvent::Lease(lease) => {
                self.settings.lease = Some(lease);
                self.written = None;
            }
            MemberEvent::WriteDone(outcome) => self.take_in_outcome(now, outcome),
            MemberEvent::WriteFailed => {
                self.in_flight = None;
                self.retry_at = Some(now + WRITE_RETRY);
            }
            MemberEvent::Tick => {}
            about_workers => self.take_in_work(now, about_workers),
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
    }

    /// Events about workers count only for the generation in hand: a late one of an older generation says nothing
    /// about this one.
    fn take_in_work(&mut self, now: Instant, event: MemberEvent) {
        let beyond = self.view.ledger().and_then(|ledger| ledger.value.best_step);
        let Some(work) = &mut self.work else {
            return;
        };
        match event {
            MemberEvent::Started {
                generation,
                failures,
            } if generation == work.generation => {
                work.started = true;
                for failure in &failures {
                    work.note_spawn_failure(now, failure);
                }
            }
            MemberEvent::WorkerExited {
                generation,
                local_rank,
                exit,
                at,
                finding,
            } if generation == work.generation => work.note_exit(local_rank, exit, at, finding),
            MemberEvent::Finding(finding)
                if finding.generation == 0 || finding.generation == work.generation.0 =>
            {
                work.note_finding(now, finding);
            }
            MemberEvent::Step { generation, step } if generation == work.generation => {
                work.note_step(now, step, beyond);
            }
            MemberEvent::Stopped {
                generation,
                unkillable,
                next_port,
            } if generation == work.generation => {
                work.stop_began.get_or_insert(now);
                work.stopped = Some(unkillable);
                self.next_port = next_port;
            }
            _ => {}
        }
    }

    fn take_in_request(&mut self, request: OperatorRequest, effects: &mut Vec<MemberEffect>) {
        match request {
            OperatorRequest::Stop { grace, reason } => {
                let grace_ms =
                    grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
                let kind = RequestKind::Stop {
                    signal: TERMINATE,
                    grace_ms,
                };
                self.ask(kind, reason);
            }
            OperatorRequest::Restart { reason } => {
                let running = self.view.plan().is_some_and(|plan| plan.value.is_run());
                if running && self.work.as_ref().is_some_and(Work::is_active) {
                    self.ask(RequestKind::Restart, reason);
                } else {
                    effects.push(MemberEffect::Say(format!(
                        "nothing to restart now: {}",
                        self.reason()
                    )));
                }
            }
        }
    }

    /// Notes what somebody wants of the job. The first request to stop stands.
    fn ask(&mut self, kind: RequestKind, reason: String) {
        if self.stop_request().is_none() {
            self.request = Some(Request {
                generation: self.generation(),
                kind,
                reason,
            });
        }
    }

    fn take_in_outcome(&mut self, now: Instant, outcome: Outcome) {
        let report = self.in_flight.take();
        if outcome.succeeded {
            self.written = report;
            self.last_write = self.last_write.max(outcome.revision);
        } else {
            self.retry_at = Some(now + WRITE_RETRY);
        }
    }

    /// Compares what is with what should be, and does what is missing.
    fn advance(&mut self, now: Instant, effects: &mut Vec<MemberEffect>) {
        self.check_registration();
        self.stop_for_own_reasons(now, effects);
        let ending = self.refusal.as_ref().or(self.view.result()).cloned();
        if let Some(result) = ending {
            self.leave(now, result, effects);
            if self.finished {
                return;
            }
        } else if let Some(plan) = self.view.plan().map(|plan| plan.value.clone()) {
            self.follow(now, plan, effects);
        }
        self.write(effects);
    }

    /// Finds out whether this member may take part, and whether its record is still its own.
    fn check_registration(&mut self) {
        if let Some(spec) = self.view.spec()
            && let Some(difference) = spec.value.disagreement(&self.settings.spec)
        {
            let message = format!(
                "{} cannot join the job: {difference}; start every node with the same options",
                self.settings.node
            );
            self.refuse(message);
        }
        if self.view.revision() < self.last_write || self.in_flight.is_some() {
            return;
        }
        match self.view.member(&self.settings.node) {
            // The lease ran out: register again.
            None => self.written = None,
            Some(record) if record.value.incarnation != self.settings.incarnation => {
                if self.written.is_some() {
                    self.refuse(format!(
                        "another supervisor has joined the job under the name {}; give each node its own name",
                        self.settings.node
                    ));
                }
            }
            Some(_) => {}
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
        if let Some(fault) = work.fault() {
            let reason = fault.summary.clone();
            let grace = self.settings.restart_grace;
            self.order_stop(now, TERMINATE, grace, reason, effects);
        } else if let Some(request) = self.request_to_obey().cloned() {
            match request.kind {
                RequestKind::Stop { signal, grace_ms } => {
                    let grace = self.stop_grace(grace_ms);
                    self.order_stop(now, signal, grace, request.reason, effects);
                }
                RequestKind::Restart if request.generation == work.generation => {
                    let grace = self.settings.stop_grace;
                    self.order_stop(now, TERMINATE, grace, request.reason, effects);
                }
                RequestKind::Restart => {}
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

    /// Does what the plan says.
    fn follow(&mut self, now: Instant, plan: Plan, effects: &mut Vec<MemberEffect>) {
        let current = self.generation();
        if plan.generation < current {
            return;
        }
        if plan.generation == current {
            if let PlanPhase::Drain {
                signal,
                requested,
                grace_ms,
                why,
            } = plan.phase
            {
                let grace = if requested {
                    self.stop_grace(grace_ms)
                } else {
                    self.settings.restart_grace
                };
                self.order_stop(now, signal, grace, why, effects);
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
    fn begin(&mut self, now: Instant, plan: Plan, effects: &mut Vec<MemberEffect>) {
        let Some(place) = plan
            .member(&self.settings.node)
            .filter(|place| place.incarnation == self.settings.incarnation)
        else {
            self.work = None;
            return;
        };
        let work = Work::new(
            plan.generation,
            self.settings.node.clone(),
            place.slots,
            place.base_rank,
        );
        if plan.is_run() && self.stop_request().is_none() {
            self.work = Some(work);
            effects.push(MemberEffect::Start { plan });
        } else {
            self.work = Some(work.never_started(now));
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
        if let Some(work) = &mut self.work
            && work.stop_began.is_none()
        {
            work.stop_began = Some(now);
            effects.push(MemberEffect::Stop {
                generation: work.generation,
                first_signal,
                grace,
                reason,
            });
        }
    }

    fn write(&mut self, effects: &mut Vec<MemberEffect>) {
        if self.in_flight.is_some() || self.retry_at.is_some() {
            return;
        }
        let report = self.report();
        if self.written.as_ref() == Some(&report) {
            return;
        }
        let transaction = self.transaction(&report);
        self.in_flight = Some(report);
        effects.push(MemberEffect::Write(transaction));
    }

    fn transaction(&self, report: &Report) -> Transaction {
        let keys = &self.settings.keys;
        let mut transaction = Transaction {
            when: vec![Condition::ModRevision {
                key: keys.member(&self.settings.node),
                revision: self.own_revision(),
            }],
            then: vec![Operation::Put {
                key: keys.member(&self.settings.node),
                value: encode(&report.record),
                lease: self.settings.lease,
            }],
        };
        if self.view.spec().is_none() && self.written.is_none() {
            transaction.when.push(Condition::absent(keys.spec()));
            transaction.then.push(Operation::Put {
                key: keys.spec(),
                value: encode(&self.settings.spec),
                lease: None,
            });
        }
        let written = self
            .written
            .as_ref()
            .map(|written| (written.record.generation, written.findings.as_slice()));
        let generation = report.record.generation;
        if !report.findings.is_empty() && written != Some((generation, &report.findings)) {
            transaction.then.push(Operation::Put {
                key: keys.findings(generation, &self.settings.node),
                value: encode(&FindingsRecord {
                    version: RECORD_VERSION,
                    findings: report.findings.clone(),
                    extra: BTreeMap::new(),
                }),
                lease: None,
            });
        }
        transaction
    }

    /// The revision of our own record: nobody else writes it, unless another supervisor goes by our name.
    fn own_revision(&self) -> Revision {
        if self.view.revision() < self.last_write {
            return self.last_write;
        }
        self.view
            .member(&self.settings.node)
            .map_or(Revision(0), |record| record.mod_revision)
    }

    fn report(&self) -> Report {
        let work = self.work.as_ref();
        let exact = work.is_some_and(|work| !work.is_active());
        // While the workers are being started the record still speaks of what was before; it says nothing that the
        // plan does not say, and saves a write for each member.
        let phase = work.and_then(Work::phase).unwrap_or(MemberPhase::Idle);
        let record = MemberRecord {
            version: RECORD_VERSION,
            node: self.settings.node.clone(),
            incarnation: self.settings.incarnation,
            address: self.settings.address.clone(),
            slots: self.settings.slots,
            generation: self.generation(),
            phase,
            next_port: self.next_port,
            step: work.and_then(|work| {
                if exact {
                    work.best_step
                } else {
                    work.reported_step
                }
            }),
            stop_began: work.and_then(|work| work.stop_began),
            unkillable: work
                .and_then(|work| work.stopped.clone())
                .unwrap_or_default(),
            clean: work.is_some_and(Work::is_clean),
            request: self.request.clone(),
            extra: self.extra.clone(),
        };
        Report {
            record,
            findings: work.map(|work| work.findings.clone()).unwrap_or_default(),
        }
    }

    fn draining(&self) -> Option<&Work> {
        self.work
            .as_ref()
            .filter(|work| work.phase() == Some(MemberPhase::Draining))
    }

    fn stop_request(&self) -> Option<&Request> {
        self.request
            .as_ref()
            .filter(|request| matches!(request.kind, RequestKind::Stop { .. }))
    }

    /// The request, once it cannot be forgotten any more: were the agent to die after the stop and before the write,
    /// nobody could tell the stop from a fault. A signal is repeated by the keeper, so it need not wait.
    fn request_to_obey(&self) -> Option<&Request> {
        let request = self.request.as_ref()?;
        let safe = self
            .written
            .as_ref()
            .is_some_and(|written| written.record.request.as_ref() == Some(request));
        (safe || self.urgent).then_some(request)
    }

    fn stop_grace(&self, grace_ms: Option<u64>) -> Duration {
        grace_ms.map_or(self.settings.stop_grace, Duration::from_millis)
    }

    fn running_reason(&self) -> String {
        let Some(work) = &self.work else {
            return String::new();
        };
        let done = work.exits.len();
        let step = work.best_step.map_or_else(
            || "no step seen yet".to_owned(),
            |step| format!("step {step}"),
        );
        if done == 0 {
            format!("all {} workers are running, {step}", work.slots)
        } else {
            format!("{done} of {} workers have finished, {step}", work.slots)
        }
    }

    fn draining_reason(&self) -> String {
        let Some(work) = &self.work else {
            return String::new();
        };
        let left = (0..work.slots)
            .filter(|local| !work.exits.keys().any(|exited| exited.0 == *local))
            .map(|local| local.to_string())
            .collect::<Vec<_>>();
        if left.is_empty() {
            "all workers have exited; waiting until their process trees are gone".to_owned()
        } else {
            format!("stopping; still there: local rank {}", left.join(", "))
        }
    }
}
