// SPDX-License-Identifier: Apache-2.0
//! One generation's workers on this node, and what happened to them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use steadfast_proto::v1::{FaultClass, FaultRole, Finding, Repeatability};

use super::saving::Saving;
use super::{kinds, milliseconds};
use crate::{
    Generation, Instant, LastStep, LocalRank, MemberPhase, NodeName, OwnSteps, Rank, SpawnFailure,
    WitnessReport, WorkerExit,
};

/// Findings that a member keeps for a generation; the earliest matter most.
const FINDINGS_LIMIT: usize = 64;
/// How often a running member writes down how far the training is.
const STEP_REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Makes whole milliseconds no less than what they stand for.
const ROUND_UP: Duration = Duration::from_nanos(999_999);

/// Everything known about this node's part in one generation. Nothing in it outlives the generation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Work {
    pub(crate) generation: Generation,
    pub(crate) node: NodeName,
    pub(crate) slots: u32,
    pub(crate) base_rank: Rank,
    /// Whether the keeper has said that the workers are started.
    pub(crate) started: bool,
    pub(crate) exits: BTreeMap<LocalRank, WorkerExit>,
    pub(crate) findings: Vec<Finding>,
    /// Workers whose exit finding was made up here, for want of a better one.
    guessed: BTreeSet<LocalRank>,
    pub(crate) best_step: Option<u64>,
    /// Not what an earlier agent has seen.
    pub(crate) own_steps: Option<OwnSteps>,
    pub(crate) reported_step: Option<u64>,
    reported_at: Instant,
    pub(crate) witness: Option<WitnessReport>,
    /// Step of the newest checkpoint that was made.
    pub(crate) checkpoint: Option<u64>,
    /// Steps of the newest ones that are on stable storage, ascending.
    pub(super) durable: Vec<u64>,
    pub(super) saving: Saving,
    /// When this node began to stop the workers.
    pub(crate) stop_began: Option<Instant>,
    /// Set once all workers are gone: those that survived SIGKILL.
    pub(crate) stopped: Option<Vec<LocalRank>>,
    /// What can be said of the workers' steps since they are gone.
    pub(crate) last_step: Option<LastStep>,
}

impl Work {
    pub(crate) fn new(generation: Generation, node: NodeName, slots: u32, base_rank: Rank) -> Self {
        Self {
            generation,
            node,
            slots,
            base_rank,
            started: false,
            exits: BTreeMap::new(),
            findings: Vec::new(),
            guessed: BTreeSet::new(),
            best_step: None,
            own_steps: None,
            reported_step: None,
            reported_at: Instant::default(),
            witness: None,
            checkpoint: None,
            durable: Vec::new(),
            saving: Saving::default(),
            stop_began: None,
            stopped: None,
            last_step: None,
        }
    }

    /// Takes in that all workers are gone, but for those that survived SIGKILL. All their output has been read by now, so no
    /// step of theirs can still come to light.
    pub(crate) fn note_stopped(&mut self, now: Instant, unkillable: Vec<LocalRank>) {
        if self.stopped.is_none() {
            self.last_step = self.own_steps.map(|steps| LastStep {
                age_ms: milliseconds(now - steps.at),
                one_step_ms: milliseconds(steps.one_step + ROUND_UP),
            });
        }
        self.stopped = Some(unkillable);
    }

    /// How far it is; `None` while the workers are being started.
    pub(crate) fn phase(&self) -> Option<MemberPhase> {
        if self.stopped.is_some() {
            Some(MemberPhase::Stopped)
        } else if self.stop_began.is_some() {
            Some(MemberPhase::Draining)
        } else if self.is_clean() {
            Some(MemberPhase::Completed)
        } else if self.started {
            Some(MemberPhase::Running)
        } else {
            None
        }
    }

    /// Whether workers run or may run, and nobody has begun to stop them.
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.phase(), None | Some(MemberPhase::Running))
    }

    /// Whether the workers can be asked for a checkpoint, and nothing is wrong.
    pub(crate) fn can_save(&self) -> bool {
        // Workers may end by themselves once they have saved.
        let well = self.exits.values().all(|exit| exit.is_success());
        self.saving.means.is_some() && well && self.fault().is_none()
    }

    /// Whether every worker has ended with code 0.
    pub(crate) fn is_clean(&self) -> bool {
        self.exits.len() as u64 == u64::from(self.slots)
            && self.exits.values().all(|exit| exit.is_success())
    }

    /// Whether that worker may still be there.
    pub(crate) fn may_run(&self, local_rank: u32) -> bool {
        let never_started = self.findings.iter().any(|finding| {
            finding.kind == kinds::WORKER_SPAWN_FAILED && finding.local_rank == Some(local_rank)
        });
        !never_started && !self.exits.contains_key(&LocalRank(local_rank))
    }

    /// Whether something was found that the generation cannot survive.
    pub(crate) fn fault(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| is_fatal(finding))
    }

    /// Takes in that a worker was reaped. Hearing of it again changes nothing, except that a finding that says more
    /// takes the place of one that was made up.
    pub(crate) fn note_exit(
        &mut self,
        local_rank: LocalRank,
        exit: WorkerExit,
        at: Instant,
        finding: Option<Finding>,
    ) {
        let first = self.exits.insert(local_rank, exit).is_none();
        if exit.is_success() || (finding.is_none() && !first) {
            return;
        }
        let guessed = finding.is_none();
        let mut finding = finding.unwrap_or_else(|| guess(exit));
        complete(&mut finding, local_rank, exit, at);
        if !guessed && self.guessed.remove(&local_rank) {
            self.replace_exit(finding);
            return;
        }
        // A worker that was seen dying before the stop did not die of it, however late it is reaped.
        let seen_dying = self
            .findings
            .iter()
            .find(|old| old.kind == kinds::WORKER_DYING && old.local_rank == finding.local_rank);
        if let Some(dying) = seen_dying {
            finding.monotonic_ns = finding.monotonic_ns.min(dying.monotonic_ns);
        }
        if self.note(finding) && guessed {
            self.guessed.insert(local_rank);
        }
    }

    /// Takes in what a detector saw.
    pub(crate) fn note_finding(&mut self, now: Instant, mut finding: Finding) {
        if finding.monotonic_ns == 0 {
            finding.monotonic_ns = now.as_nanos();
        }
        if finding.kind == kinds::WORKER_DYING && !is_fatal(&finding) {
            return;
        }
        self.note(finding);
    }

    /// Takes in that a worker could not be started.
    pub(crate) fn note_spawn_failure(&mut self, now: Instant, failure: &SpawnFailure) {
        let repeatability = if failure.certain {
            Repeatability::Certain
        } else {
            Repeatability::MayDiffer
        };
        self.note(Finding {
            kind: kinds::WORKER_SPAWN_FAILED.to_owned(),
            class: FaultClass::Program.into(),
            repeatability: repeatability.into(),
            local_rank: Some(failure.local_rank.0),
            exit_code: failure.exit_code,
            monotonic_ns: now.as_nanos(),
            fingerprint: format!("spawn:{}", failure.message),
            summary: format!("could not be started: {}", failure.message),
            ..Finding::default()
        });
    }

    /// Takes in that the keeper has killed the workers, or has not started them, since nothing vouched for them any more.
    /// Workers that had all done their work by then have lost nothing.
    pub(crate) fn note_fence(&mut self, at: Instant) {
        if self.stop_began.is_some() || self.is_clean() {
            return;
        }
        self.note(Finding {
            kind: kinds::WORKER_FENCED.to_owned(),
            class: FaultClass::Network.into(),
            role: FaultRole::Consequence.into(),
            monotonic_ns: at.as_nanos(),
            fingerprint: "fenced".to_owned(),
            summary: "this node could not renew its lease and no training step was seen either, so its workers were \
                      killed before others could take their place"
                .to_owned(),
            ..Finding::default()
        });
        self.stop_began = Some(at);
    }

    /// Takes in how far the training is; decides whether that is to be written down now. `beyond` is the best step of
    /// earlier generations: passing it is worth a write at once, since it refills the restart budget.
    pub(crate) fn note_step(&mut self, now: Instant, step: u64, beyond: Option<u64>) {
        self.own_steps = Some(OwnSteps::and(self.own_steps, step, now));
        if self.best_step.is_some_and(|best| best >= step) {
            return;
        }
        self.best_step = Some(step);
        let passes = Some(step) > beyond && self.reported_step <= beyond;
        let due = now.saturating_since(self.reported_at) >= STEP_REPORT_INTERVAL;
        if self.reported_step.is_none() || passes || due {
            self.reported_step = self.best_step;
            self.reported_at = now;
        }
    }

    /// Takes in that the node is unfit. It does not matter whether the workers are being stopped already: no stop does that
    /// to a node.
    pub(crate) fn note_unfit(&mut self, now: Instant, mut finding: Finding) {
        let known = self
            .findings
            .iter()
            .any(|old| old.kind == kinds::NODE_CHECK_FAILED && old.summary == finding.summary);
        if known
            || self.stopped.is_some()
            || self.is_clean()
            || self.findings.len() >= FINDINGS_LIMIT
        {
            return;
        }
        kinds::NODE_CHECK_FAILED.clone_into(&mut finding.kind);
        finding.role = FaultRole::Cause.into();
        if finding.monotonic_ns == 0 {
            finding.monotonic_ns = now.as_nanos();
        }
        self.place_finding(&mut finding);
        self.findings.push(finding);
    }

    /// Adds a finding unless it is known already or was brought about by our own stop. Says whether it was added.
    fn note(&mut self, mut finding: Finding) -> bool {
        // What was said before the stop is gathered when it has begun.
        let caused_by_stop = finding.kind != kinds::WORKER_SAID
            && self
                .stop_began
                .is_some_and(|began| finding.monotonic_ns >= began.as_nanos());
        let known = self.findings.iter().any(|old| {
            old.kind == finding.kind
                && old.local_rank == finding.local_rank
                && (finding.local_rank.is_some() || old.fingerprint == finding.fingerprint)
        });
        if caused_by_stop || known || self.findings.len() >= FINDINGS_LIMIT {
            return false;
        }
        self.place_finding(&mut finding);
        self.findings.push(finding);
        true
    }

    /// Puts what is now known in the place of what was made up. The fault stays as old as it was.
    fn replace_exit(&mut self, mut finding: Finding) {
        self.place_finding(&mut finding);
        let old = self
            .findings
            .iter_mut()
            .find(|old| old.kind == kinds::WORKER_EXITED && old.local_rank == finding.local_rank);
        if let Some(old) = old {
            finding.monotonic_ns = finding.monotonic_ns.min(old.monotonic_ns);
            *old = finding;
        }
    }

    fn place_finding(&self, finding: &mut Finding) {
        finding.generation = self.generation.0;
        finding.node.clone_from(&self.node.0);
        finding.rank = finding.local_rank.map(|local| self.base_rank.0 + local);
        finding.step = finding.step.or(self.best_step);
    }
}

/// Whether the generation cannot survive what was found.
pub(crate) fn is_fatal(finding: &Finding) -> bool {
    match finding.kind.as_str() {
        kinds::WORKER_EXITED
        | kinds::WORKER_SPAWN_FAILED
        | kinds::WORKER_HUNG
        | kinds::LOSS_BROKEN
        | kinds::CHECKPOINT_UNREADABLE
        | kinds::WORKER_FENCED
        | kinds::NODE_UNFIT
        | kinds::GPU_FAULT
        | kinds::SWITCH_FAULT
        | kinds::NODE_CHECK_FAILED
        | kinds::MEMBER_LOST => true,
        kinds::WORKER_DYING => {
            finding.signal.is_some() || finding.exit_code.is_some_and(|code| code != 0)
        }
        _ => false,
    }
}

/// Fills in what an exit says by itself. The fault is never later than the reaping.
fn complete(finding: &mut Finding, local_rank: LocalRank, exit: WorkerExit, at: Instant) {
    kinds::WORKER_EXITED.clone_into(&mut finding.kind);
    finding.local_rank = Some(local_rank.0);
    match exit {
        WorkerExit::Code(code) => finding.exit_code = Some(code),
        WorkerExit::Signal(signal) => finding.signal = Some(signal),
    }
    if finding.fingerprint.is_empty() {
        finding.fingerprint = default_fingerprint(exit);
    }
    if finding.monotonic_ns == 0 || finding.monotonic_ns > at.as_nanos() {
        finding.monotonic_ns = at.as_nanos();
    }
}

fn guess(exit: WorkerExit) -> Finding {
    Finding {
        class: default_class(exit).into(),
        summary: exit.to_string(),
        ..Finding::default()
    }
}

fn default_fingerprint(exit: WorkerExit) -> String {
    match exit {
        WorkerExit::Code(code) => format!("exit:{code}"),
        WorkerExit::Signal(signal) => format!("signal:{signal}"),
    }
}

/// SIGHUP, SIGINT, SIGKILL and SIGTERM come from outside; a program gets the others from its own mistakes.
fn default_class(exit: WorkerExit) -> FaultClass {
    match exit {
        WorkerExit::Signal(1 | 2 | 9 | 15) => FaultClass::Killed,
        WorkerExit::Signal(_) | WorkerExit::Code(_) => FaultClass::Program,
    }
}
