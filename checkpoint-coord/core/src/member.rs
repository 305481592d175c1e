// SPDX-License-Identifier: Apache-2.0
//! The member: looks after one node's workers, as the plan says, and reports what happened to them.

mod advance;
mod event;
mod leaving;
mod looking;
mod report;
mod resume;
mod saving;
#[cfg(test)]
mod tests;
mod words;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use steadfast_proto::v1::Finding;

use crate::{
    CheckpointReport, Generation, Instant, JobResult, LocalRank, MemberPhase, Outcome, OwnSteps,
    Request, RequestKind, Revision, View,
};

pub use event::{
    KeeperStop, MemberEffect, MemberEvent, MemberSettings, OperatorRequest, SpawnFailure,
    WorkerObservation, WorkerState, kinds,
};
use looking::Looks;
use report::Report;
use work::Work;
pub(crate) use work::is_fatal;

/// SIGTERM, the first signal unless somebody asked with another one.
const TERMINATE: i32 = 15;
/// How long to wait before a write that failed or was refused is tried again, when nothing else changes.
const WRITE_RETRY: Duration = Duration::from_millis(200);
/// How much later than members of the plan spares try to take a leadership that is vacant.
const SPARES_CAMPAIGN_AFTER: Duration = Duration::from_millis(300);

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
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are independent of each other, and looked at in different files"
)]
pub struct Member {
    settings: MemberSettings,
    view: View,
    /// Whether the keeper has said what it has; nothing is done before.
    resumed: bool,
    next_port: u16,
    request: Option<Request>,
    /// Whether a signal asked for the stop; then it does not wait for the store.
    urgent: bool,
    /// Whether somebody wants everything to end at once.
    insisted: bool,
    /// When the request was made.
    asked_at: Option<Instant>,
    /// Whether the agent was told that the stop waits for a checkpoint.
    postponed: bool,
    /// What we can vouch for in the checkpoint directory.
    checkpoints: Option<CheckpointReport>,
    looks: Looks,
    /// What earlier faults of the node's GPUs weigh.
    past_faults: u64,
    work: Option<Work>,
    /// Workers of any generation that survived SIGKILL; this keeper's node is not fit for others.
    unkillable: BTreeSet<LocalRank>,
    /// Fields of our record that this version does not know.
    extra: BTreeMap<String, Value>,
    written: Option<Report>,
    in_flight: Option<Report>,
    last_write: Revision,
    /// Whether the write in flight makes our record anew.
    registers: bool,
    /// When our record came into being, if we made it.
    registered_at: Revision,
    /// The revision at which the view last heard of our own record.
    own_known_at: Revision,
    /// Since when another supervisor stands in the store under our name.
    name_taken_since: Option<Instant>,
    /// When we shall leave even though nobody has taken over.
    leave_at: Option<Instant>,
    wake_at: Option<Instant>,
    retry_at: Option<Instant>,
    refusal: Option<JobResult>,
    finished: bool,
}

impl Member {
    /// A member that knows what the store holds. It wakes up with [`MemberEvent::Resume`].
    pub fn new(settings: MemberSettings, view: View) -> Self {
        Self {
            own_known_at: view.revision(),
            name_taken_since: None,
            leave_at: None,
            wake_at: None,
            looks: Looks::new(settings.looks_every),
            past_faults: 0,
            settings,
            view,
            resumed: false,
            next_port: 0,
            request: None,
            urgent: false,
            insisted: false,
            asked_at: None,
            postponed: false,
            checkpoints: None,
            work: None,
            unkillable: BTreeSet::new(),
            extra: BTreeMap::new(),
            written: None,
            in_flight: None,
            last_write: Revision(0),
            registers: false,
            registered_at: Revision(0),
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
        self.insisted |= kill;
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
        if self.finished {
            return None;
        }
        self.retry_at.into_iter().chain(self.wake_at).min()
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

    /// The steps that this member has seen its own workers make, with their generation.
    pub fn own_steps(&self) -> Option<(Generation, OwnSteps)> {
        let work = self.work.as_ref()?;
        Some((work.generation, work.own_steps?))
    }

    /// What this member found in its generation.
    pub fn findings(&self) -> &[Finding] {
        self.work.as_ref().map_or(&[], |work| &work.findings)
    }

    /// What it found that its generation cannot survive, if anything.
    pub fn fault(&self) -> Option<&Finding> {
        self.work.as_ref().and_then(Work::fault)
    }

    /// Whether this member may lead the job: the job has not ended, and the member is not kept out of it.
    pub fn may_lead(&self) -> bool {
        let is_over = self.finished || self.view.result().is_some();
        !is_over && self.refusal.is_none() && !self.awaits_its_name()
    }

    /// How long the leadership must have been vacant before this member tries to take it. Members of the plan come before
    /// spares: they have seen the training themselves, so they know best when the workers of a node that is lost with the
    /// leadership can run no more.
    pub fn campaign_delay(&self) -> Duration {
        let plan = self.view.plan().map(|plan| &plan.value);
        let is_spare = plan.is_some_and(|plan| {
            let own = &self.settings.node;
            !plan.members.iter().any(|place| place.node == *own)
        });
        if is_spare {
            SPARES_CAMPAIGN_AFTER
        } else {
            Duration::ZERO
        }
    }

    /// Whether this member cannot register because another supervisor stands in the store under its node's name. Its
    /// record is then to be read again and again ([`MemberEvent::OwnRecord`]).
    pub fn awaits_its_name(&self) -> bool {
        self.name_taken_since.is_some()
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
                let own = self.settings.keys.member(&self.settings.node);
                if batch.changes.iter().any(|change| change.key() == own) {
                    self.own_known_at = self.own_known_at.max(batch.revision);
                }
                self.view.apply(&batch);
                self.retry_at = None;
            }
            MemberEvent::Relisted { entries, revision } => {
                self.view = View::load(self.settings.keys.clone(), &entries, revision);
                self.own_known_at = revision;
                self.retry_at = None;
            }
            MemberEvent::OwnRecord { record, revision } => {
                if revision > self.own_known_at {
                    let key = self.settings.keys.member(&self.settings.node);
                    self.view.set(&key, record.as_ref());
                    self.own_known_at = revision;
                }
            }
            MemberEvent::Interrupt { signal, .. } => {
                self.urgent = true;
                let kind = if self.settings.shared {
                    RequestKind::Leave {
                        signal,
                        grace_ms: None,
                    }
                } else {
                    RequestKind::Stop {
                        signal,
                        grace_ms: None,
                        requeue: false,
                    }
                };
                let reason = format!("signal {signal} was received on {}", self.settings.node);
                self.ask(now, kind, reason);
            }
            MemberEvent::Operator(request) => self.take_in_request(now, request, effects),
            MemberEvent::Checkpoints(report) => self.checkpoints = report,
            MemberEvent::Looked(faults) => self.take_in_look(now, faults),
            MemberEvent::PastFaults(weight) => self.past_faults = weight,
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
            MemberEvent::Witness { generation, report } if generation == work.generation => {
                work.witness = report;
            }
            MemberEvent::Checkpoint { generation, step } if generation == work.generation => {
                work.checkpoint = work.checkpoint.max(Some(step));
            }
            MemberEvent::Durable { generation, step } if generation == work.generation => {
                work.note_durable(step);
            }
            MemberEvent::CanSave { generation, means } if generation == work.generation => {
                work.saving.means = means;
            }
            MemberEvent::Saved { generation, step } if generation == work.generation => {
                work.saving.saved = work.saving.saved.max(Some(step));
            }
            MemberEvent::ToldLate { generation, step } if generation == work.generation => {
                work.saving.told_late = Some(step);
            }
            MemberEvent::Fenced { generation, at } if generation == work.generation => {
                work.note_fence(at);
            }
            MemberEvent::Stopped {
                generation,
                unkillable,
                next_port,
            } if generation == work.generation => {
                work.stop_began.get_or_insert(now);
                self.unkillable.extend(&unkillable);
                work.note_stopped(now, unkillable);
                self.next_port = next_port;
            }
            _ => {}
        }
    }

    fn take_in_request(
        &mut self,
        now: Instant,
        request: OperatorRequest,
        effects: &mut Vec<MemberEffect>,
    ) {
        match request {
            OperatorRequest::Stop { grace, reason } => {
                let kind = RequestKind::Stop {
                    signal: TERMINATE,
                    grace_ms: grace.map(milliseconds),
                    requeue: false,
                };
                self.ask(now, kind, reason);
            }
            OperatorRequest::TimeUp { grace, reason } => {
                let kind = RequestKind::Stop {
                    signal: TERMINATE,
                    grace_ms: Some(milliseconds(grace)),
                    requeue: true,
                };
                self.ask(now, kind, reason);
            }
            OperatorRequest::Leave { grace, reason } => {
                let kind = RequestKind::Leave {
                    signal: TERMINATE,
                    grace_ms: grace.map(milliseconds),
                };
                self.ask(now, kind, reason);
            }
            OperatorRequest::Restart { reason } => {
                let running = self.view.plan().is_some_and(|plan| plan.value.is_run());
                if running && self.work.as_ref().is_some_and(Work::is_active) {
                    self.ask(now, RequestKind::Restart, reason);
                } else {
                    effects.push(MemberEffect::Say(format!(
                        "nothing to restart now: {}",
                        self.reason()
                    )));
                }
            }
            OperatorRequest::Checkpoint { number, reason } => {
                self.ask(now, RequestKind::Checkpoint { number }, reason);
            }
        }
    }

    /// Notes what somebody wants of the job. The first request to stop stands, and one to stop is more than one to leave.
    fn ask(&mut self, now: Instant, kind: RequestKind, reason: String) {
        let stops = matches!(kind, RequestKind::Stop { .. });
        let generation = self.generation();
        let restarts = |request: &Request| {
            request.kind == RequestKind::Restart && request.generation == generation
        };
        let is_less = matches!(kind, RequestKind::Checkpoint { .. })
            && self.request.as_ref().is_some_and(restarts);
        if self.stop_request().is_none() && (stops || self.leave_request().is_none()) && !is_less {
            self.asked_at = Some(now);
            self.postponed = false;
            self.request = Some(Request {
                generation,
                kind,
                save_ms: milliseconds(self.save_window(kind)),
                reason,
            });
        }
    }

    /// For how long a checkpoint may be waited for before a request is carried out.
    fn save_window(&self, kind: RequestKind) -> Duration {
        match kind {
            RequestKind::Stop { grace_ms, .. } | RequestKind::Leave { grace_ms, .. } => {
                saving::window(self.stop_grace(grace_ms))
            }
            RequestKind::Restart | RequestKind::Checkpoint { .. } => self.settings.save_timeout,
        }
    }

    fn take_in_outcome(&mut self, now: Instant, outcome: Outcome) {
        let report = self.in_flight.take();
        if outcome.succeeded {
            self.written = report;
            if self.registers {
                self.registered_at = outcome.revision;
            }
            self.last_write = self.last_write.max(outcome.revision);
        } else {
            self.retry_at = Some(now + WRITE_RETRY);
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

    fn leave_request(&self) -> Option<&Request> {
        self.request
            .as_ref()
            .filter(|request| matches!(request.kind, RequestKind::Leave { .. }))
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

    fn wake(&mut self, at: Instant) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
