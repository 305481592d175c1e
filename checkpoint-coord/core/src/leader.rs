// SPDX-License-Identifier: Apache-2.0
//! The leader: gathers members, publishes plans, judges faults, ends the job.
//!
//! Everything that it must remember is in the store, written in one transaction with the plan or the result that rests
//! on it. So it does not matter which leader acts, how often it is rebuilt, or how late it hears of something.

mod committing;
mod decide;
mod ending;
mod event;
mod fitness;
mod gathering;
mod growing;
mod progress;
mod resuming;
mod saving;
mod standing;
#[cfg(test)]
mod tests;
mod witness;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use steadfast_proto::v1::Finding;

use crate::jury::{ClocksAhead, Jury};
use crate::{
    Course, Generation, Instant, JobSpec, Ledger, NodeName, Outcome, OwnSteps, Plan, PlanPhase,
    Request, RequestKind, Revision, Transaction, View,
};

pub use event::{LeaderEffect, LeaderEvent, LeaderSettings};
use fitness::Looks;
use gathering::Gathering;
use growing::Growing;
use progress::Progress;
use saving::Saving;
use standing::{Seen, Standing};

/// How long to wait before a write that failed or was refused is tried again, when nothing else changes.
const WRITE_RETRY: Duration = Duration::from_millis(200);
/// SIGTERM, the first signal of a stop that nobody asked for.
const TERMINATE: i32 = 15;

/// What the leader is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaderState {
    /// Not enough members for the smallest world.
    Gathering,
    /// The plan is out; the generation runs.
    Running(Generation),
    /// An incident is open; not all members have stopped.
    Draining(Generation),
    /// All have stopped; what comes next is being written.
    Deciding(Generation),
    /// The result is published.
    Finished,
    /// Somebody else leads.
    Deposed,
}

/// Decides for the job. See the crate's documentation for how it is driven.
#[derive(Debug)]
pub struct Leader {
    settings: LeaderSettings,
    /// Create revision of the `leader` key that makes this leader the leader.
    epoch: Revision,
    view: View,
    state: LeaderState,
    reason: String,
    /// What is to be said once the write in flight has succeeded.
    in_flight: Option<String>,
    /// The view must be as new as our own last write before anything is decided on it.
    awaited: Revision,
    retry_at: Option<Instant>,
    wake_at: Option<Instant>,
    seen: Seen,
    progress: Progress,
    gathering: Gathering,
    growing: Growing,
    saving: Saving,
    /// What comparing all ranks has shown, until it stands in the store.
    verdict: Option<Finding>,
    /// Who judges the words of the ranks.
    jury: Option<Arc<dyn Jury>>,
    /// What is known of the clocks of the other nodes.
    clocks: ClocksAhead,
    looks: Looks,
}

impl Leader {
    /// The leader of that epoch, which is the create revision of the `leader` key that its runtime holds.
    pub fn new(settings: LeaderSettings, epoch: Revision, view: View) -> Self {
        Self {
            settings,
            epoch,
            view,
            state: LeaderState::Gathering,
            reason: "looking at what the store holds".to_owned(),
            in_flight: None,
            awaited: Revision(0),
            retry_at: None,
            wake_at: None,
            seen: Seen::default(),
            progress: Progress::default(),
            gathering: Gathering::default(),
            growing: Growing::default(),
            saving: Saving::default(),
            verdict: None,
            jury: None,
            clocks: ClocksAhead::new(),
            looks: Looks::default(),
        }
    }

    /// The same leader, with somebody who judges the words of the ranks.
    #[must_use]
    pub fn with_jury(self, jury: Option<Arc<dyn Jury>>) -> Self {
        Self { jury, ..self }
    }

    /// Takes in one event; the effects are to be carried out in their order.
    pub fn handle(&mut self, now: Instant, event: LeaderEvent) -> Vec<LeaderEffect> {
        let mut effects = Vec::new();
        if self.state == LeaderState::Deposed {
            return effects;
        }
        match event {
            LeaderEvent::Changed(batches) => {
                for batch in &batches {
                    self.view.apply(batch);
                }
                self.retry_at = None;
            }
            LeaderEvent::Relisted { entries, revision } => {
                self.view = View::load(self.view.keys().clone(), &entries, revision);
                self.retry_at = None;
            }
            LeaderEvent::WriteDone(outcome) => self.take_in_outcome(now, outcome, &mut effects),
            LeaderEvent::WriteFailed => {
                self.in_flight = None;
                self.retry_at = Some(now + WRITE_RETRY);
            }
            LeaderEvent::Tick => {}
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
        self.advance(now, &mut effects);
        effects
    }

    /// Takes in that a worker of `generation` has made a training step; `own` if it is one of this leader's node. Says
    /// nothing in answer, so it costs little.
    pub fn note_step(&mut self, generation: Generation, step: u64, at: Instant, own: bool) {
        self.progress.note_step(generation, step, at, own);
    }

    /// Takes in what the member of this node has seen of its own workers' steps before it came to lead. Without that, a new
    /// leader would have to take every worker for one that made a step just now.
    pub fn note_own_steps(&mut self, generation: Generation, steps: OwnSteps) {
        self.progress.inherit(generation, steps);
    }

    /// Takes in that nothing is heard of the agent of `node` (any more), or that something is again. It is a hint: a node
    /// counts as lost only when its lease has ended. Send a [`LeaderEvent::Tick`] after it.
    pub fn note_silence(&mut self, node: &NodeName, silent: bool) {
        self.progress.note_silence(node, silent);
    }

    /// Takes in what comparing the ranks of all nodes has shown: a finding about a rank that may be another node's. If it is
    /// about the generation that runs, and that cannot survive it, the generation ends, and the finding is written in the
    /// same transaction. Send a [`LeaderEvent::Tick`] after it.
    pub fn note_verdict(&mut self, finding: Finding) {
        self.verdict = Some(finding);
    }

    /// Takes in by how many milliseconds the clock of `node` is ahead of this leader's. It decides nothing but the order in
    /// which faults of different nodes are taken to have happened.
    pub fn note_clock(&mut self, node: NodeName, ahead_ms: i64) {
        self.clocks.insert(node, ahead_ms);
    }

    /// Changes [`LeaderSettings::save_every`]. Send a [`LeaderEvent::Tick`] after it.
    pub fn set_save_every(&mut self, save_every: Option<Duration>) {
        self.settings.save_every = save_every;
    }

    /// When to send a [`LeaderEvent::Tick`], if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.retry_at.into_iter().chain(self.wake_at).min()
    }

    /// Create revision of the `leader` key that makes this leader the leader.
    pub fn epoch(&self) -> Revision {
        self.epoch
    }

    /// What the leader is doing.
    pub fn state(&self) -> LeaderState {
        self.state
    }

    /// What it waits for, in words.
    pub fn reason(&self) -> String {
        self.reason.clone()
    }

    /// What the leader knows of the store.
    pub fn view(&self) -> &View {
        &self.view
    }

    fn take_in_outcome(&mut self, now: Instant, outcome: Outcome, effects: &mut Vec<LeaderEffect>) {
        let said = self.in_flight.take();
        if outcome.succeeded {
            self.awaited = self.awaited.max(outcome.revision);
            if let Some(text) = said.filter(|text| !text.is_empty()) {
                effects.push(LeaderEffect::Say(text));
            }
        } else {
            self.retry_at = Some(now + WRITE_RETRY);
        }
    }

    fn advance(&mut self, now: Instant, effects: &mut Vec<LeaderEffect>) {
        self.wake_at = None;
        let holds = self
            .view
            .leader()
            .is_some_and(|leader| leader.create_revision == self.epoch);
        if !holds && self.view.revision() >= self.epoch {
            self.set(LeaderState::Deposed, "another supervisor leads the job");
            return;
        }
        if let Some(result) = self.view.result() {
            let message = result.message.clone();
            self.set(LeaderState::Finished, &message);
            return;
        }
        if self.in_flight.is_some()
            || self.retry_at.is_some()
            || self.view.revision() < self.awaited
        {
            return;
        }
        if let Some(problem) = self.view.blocking_problem().map(ToString::to_string) {
            self.reason = problem;
            return;
        }
        let Some(spec) = self.view.spec().map(|spec| spec.value.clone()) else {
            self.set(
                LeaderState::Gathering,
                "waiting for the first member to register",
            );
            return;
        };
        self.note_looks(now);
        let ledger = self.ledger();
        match self.view.plan().cloned() {
            None => self.gather(now, &spec, ledger, None, effects),
            Some(plan) if ledger.judged == plan.value.generation => {
                self.gather(now, &spec, ledger, Some(&plan.value), effects);
            }
            Some(plan) => self.supervise(now, &spec, &plan.value, effects),
        }
    }

    /// A generation is out: does it run, must it end, has it ended?
    fn supervise(
        &mut self,
        now: Instant,
        spec: &JobSpec,
        plan: &Plan,
        effects: &mut Vec<LeaderEffect>,
    ) {
        self.gathering.pause();
        let standings = self.standings(now, plan);
        let all_completed = standings
            .iter()
            .all(|(_, standing)| *standing == Standing::Completed);
        if all_completed && !saving::ends_after(plan) {
            self.succeed(plan, effects);
        } else if standings.iter().all(|(_, standing)| standing.is_over()) {
            if self.await_safety(now, spec, plan, &standings, effects) {
                self.decide(now, spec, plan, &standings, effects);
            }
        } else if !plan.is_run() {
            let waiting = standing::list(&standings, |standing| !standing.is_over());
            let reason = format!("waiting for the workers to be stopped on {waiting}");
            self.set(LeaderState::Draining(plan.generation), &reason);
        } else if let Some(phase) = self.reason_to_drain(plan, &standings) {
            self.save_and_drain(now, plan, &standings, phase, effects);
        } else if let Some(phase) = self.reason_to_grow(now, spec, plan) {
            self.save_and_drain(now, plan, &standings, phase, effects);
        } else if self.save_and_go_on(now, plan, &standings, effects) {
            // The reason was set there.
        } else if let Some(witness_ms) = self.wider_witness(now, spec, plan) {
            let wider = Course {
                witness_ms,
                ..self.course(plan)
            };
            let mut transaction = self.guarded();
            transaction.then.push(self.put_course(&wider));
            self.write(transaction, String::new(), effects);
        } else if let Some(step) = self.newest_durable(plan) {
            self.commit_routine(plan, step, effects);
        } else {
            self.say_why_it_does_not_grow(now, plan, effects);
            self.set_running(plan, &standings);
        }
    }

    /// Why the running generation must end, if it must.
    fn reason_to_drain(
        &self,
        plan: &Plan,
        standings: &[(NodeName, Standing)],
    ) -> Option<PlanPhase> {
        let asked = self
            .stop_request()
            .or_else(|| self.departure(plan))
            .or_else(|| self.restart_request(plan));
        if let Some(request) = asked {
            let signal = match request.kind {
                RequestKind::Stop { signal, .. } => signal,
                // The others are stopped as for any restart, whatever the signal was that the one got.
                RequestKind::Restart
                | RequestKind::Checkpoint { .. }
                | RequestKind::Leave { .. } => TERMINATE,
            };
            return Some(PlanPhase::Drain {
                signal,
                why: request.reason.clone(),
                request: Some(request),
            });
        }
        let fault = self
            .view
            .findings_of(plan.generation)
            .into_iter()
            .chain(self.verdict_on(plan.generation).cloned())
            .find(crate::member::is_fatal)
            .map(|finding| finding.summary);
        let silent = standing::list(standings, |standing| *standing == Standing::Silent);
        let fault = fault.or_else(|| {
            let why = "the training has stopped, and nothing is heard of";
            (!silent.is_empty()).then(|| format!("{why} {silent}"))
        });
        let ending = standings.iter().any(|(_, standing)| standing.is_ending());
        (fault.is_some() || ending).then(|| PlanPhase::Drain {
            signal: TERMINATE,
            request: None,
            why: fault.unwrap_or_else(|| {
                let ending = standing::list(standings, Standing::is_ending);
                format!("the generation has ended on {ending}")
            }),
        })
    }

    /// What comparing all ranks of that generation has shown.
    fn verdict_on(&self, generation: Generation) -> Option<&Finding> {
        let verdict = self.verdict.as_ref();
        verdict.filter(|verdict| verdict.generation == generation.0)
    }

    fn set_running(&mut self, plan: &Plan, standings: &[(NodeName, Standing)]) {
        let missing = standing::list(standings, |standing| *standing == Standing::Missing);
        let reason = if missing.is_empty() {
            let (workers, nodes) = (plan.world_size, plan.members.len());
            let growth = self.waiting_to_grow(plan);
            format!("{workers} workers on {nodes} nodes{growth}")
        } else {
            format!(
                "waiting for {missing} to register again; the training goes on, so its workers live"
            )
        };
        self.set(LeaderState::Running(plan.generation), &reason);
    }

    /// Somebody's wish that the job end, if there is one.
    fn stop_request(&self) -> Option<Request> {
        self.requests()
            .find(|request| matches!(request.kind, RequestKind::Stop { .. }))
            .cloned()
    }

    /// A member's wish to leave this generation, if there is one.
    fn departure(&self, plan: &Plan) -> Option<Request> {
        let wishes = |request: &&Request| {
            matches!(request.kind, RequestKind::Leave { .. })
                && request.generation == plan.generation
        };
        self.requests().find(wishes).cloned()
    }

    fn restart_request(&self, plan: &Plan) -> Option<Request> {
        self.requests()
            .find(|request| {
                request.kind == RequestKind::Restart && request.generation == plan.generation
            })
            .cloned()
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = &Request> {
        let members = self.view.members().values();
        let of_members = members.filter_map(|record| record.value.request.as_ref());
        let of_the_plan = self.view.plan().and_then(|plan| plan.value.phase.request());
        let kept = self.view.requests().map(|(_, request)| request);
        of_members.chain(of_the_plan).chain(kept)
    }

    fn ledger(&self) -> Ledger {
        self.view
            .ledger()
            .map(|ledger| Ledger::clone(&ledger.value))
            .unwrap_or_default()
    }

    fn wake(&mut self, at: Instant) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }

    fn set(&mut self, state: LeaderState, reason: &str) {
        self.state = state;
        if self.reason != reason {
            reason.clone_into(&mut self.reason);
        }
    }

    fn write(&mut self, transaction: Transaction, say: String, effects: &mut Vec<LeaderEffect>) {
        self.in_flight = Some(say);
        effects.push(LeaderEffect::Write(transaction));
    }
}
