// SPDX-License-Identifier: Apache-2.0
//! From the members that are there to the next generation: which of them, how many, and how long others are waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::ending::{Ending, node_at_fault, stopped};
use super::standing::{self, Standing};
use super::{Leader, LeaderEffect, LeaderState};
use crate::formation::{arrange, plan as make_plan};
use crate::{
    EndRule, ExitReason, Generation, Grow, Incarnation, Instant, JobOutcome, JobSpec, Ledger,
    MemberPhase, MemberRecord, NodeName, Plan, PlanMember, Request, RequestKind,
};

/// How long a node is kept out after it was lost for the second time; twice as long after each further time.
const FIRST_QUARANTINE: Duration = Duration::from_mins(1);
/// And never longer than this.
const LONGEST_QUARANTINE: Duration = Duration::from_hours(1);

/// Since when the leader waits for what.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// No generation runs.
    since: Option<Instant>,
    /// There have been enough members for the smallest world.
    enough_since: Option<Instant>,
    /// No generation begins before, after a failure that needs time.
    hold_until: Option<Instant>,
    /// When each node's present supervisor was first seen.
    first_seen: BTreeMap<NodeName, (Incarnation, Instant)>,
}

/// What to do with the members that are there.
enum Choice {
    /// Begin with so many.
    Begin(u32),
    /// Wait for more until then; why, in words.
    Wait(Instant, String),
    /// There have been too few for too long.
    GiveUp,
}

impl Gathering {
    /// A generation runs.
    pub(super) fn pause(&mut self) {
        self.since = None;
        self.enough_since = None;
        self.hold_until = None;
    }

    /// The next generation is to wait for so long. A leader that takes over meanwhile does not know of it, which costs no more
    /// than the pause.
    pub(super) fn hold(&mut self, now: Instant, pause: Duration) {
        self.hold_until = Some(now + pause).filter(|_| !pause.is_zero());
    }
}

impl Leader {
    /// Whether the workers of lost members can run no more, so that others may take their place. Otherwise waits, or
    /// ends the job when nobody can say.
    pub(super) fn await_safety(
        &mut self,
        now: Instant,
        spec: &JobSpec,
        plan: &Plan,
        standings: &[(NodeName, Standing)],
        effects: &mut Vec<LeaderEffect>,
    ) -> bool {
        let lost = standing::list(standings, |standing| {
            matches!(standing, Standing::Lost { proven: false, .. })
        });
        let state = LeaderState::Deciding(plan.generation);
        match self.safe_start(plan, standings) {
            Some(at) if now >= at => return true,
            Some(at) => {
                let reason = format!(
                    "waiting until the workers of {lost} can run no more: training steps may still vouch for them there"
                );
                self.set(state, &reason);
                self.wake(at);
            }
            None => {
                if let Some(request) = self.stop_request() {
                    // Whoever may still run has no part in the job any more.
                    let ledger = self.ledger();
                    let ending = stopped(&request, false, None);
                    self.end(plan.generation, &ledger, ending, effects);
                    return false;
                }
                let since = *self.seen.in_doubt_since.get_or_insert(now);
                let until = since + spec.wait_for_nodes();
                let reason = format!(
                    "nobody that is left has seen the training of {lost} end, so it may go on there; \
                     waiting for any of them to register again"
                );
                self.set(state, &reason);
                if now >= until {
                    let ledger = self.ledger();
                    let ending = out_of_sight(spec, &lost);
                    self.end(plan.generation, &ledger, ending, effects);
                } else {
                    self.wake(until);
                }
            }
        }
        false
    }

    /// No generation runs: begins the next one as soon as there are members for it. `ledger` is as it shall be
    /// written; it may be ahead of the store's.
    pub(super) fn gather(
        &mut self,
        now: Instant,
        spec: &JobSpec,
        mut ledger: Ledger,
        previous: Option<&Plan>,
        effects: &mut Vec<LeaderEffect>,
    ) {
        let last = previous.map(|plan| plan.generation).unwrap_or_default();
        if let Some(request) = self.stop_request().or_else(|| self.everybody_leaves()) {
            return self.end(last, &ledger, stopped(&request, false, None), effects);
        }
        self.note_arrivals(now);
        let witness_ms = previous.map_or(0, |plan| plan.witness_ms);
        let places = previous.map_or(&[][..], |plan| &plan.members);
        let candidates = self.candidates(now, spec, &ledger);
        let there = u32::try_from(candidates.len()).unwrap_or(u32::MAX);
        if let Some(until) = self.gathering.hold_until.filter(|until| now < *until) {
            self.wake(until);
            let reason =
                "waiting a moment before the restart: storage that failed seldom recovers at once"
                    .to_owned();
            return self.await_members((ledger, last, there), spec, reason, effects);
        }
        let choice = choose(
            &mut self.gathering,
            now,
            spec,
            &self.settings,
            there,
            places,
        );
        match choice {
            Choice::Begin(size) => {
                let why = ledger
                    .pending
                    .take()
                    .unwrap_or_else(|| "the job was started".to_owned());
                let mut available = self.usable(&ledger);
                available.retain(|node, _| candidates.contains(*node));
                let chosen = arrange(&available, places, size);
                if let Some(mut next) = make_plan(last.next(), &chosen, why) {
                    next.witness_ms = witness_ms;
                    let remark = self.choose_resume(last, &mut next);
                    self.publish(next, &ledger, remark, effects);
                }
            }
            Choice::Wait(until, reason) => {
                let release = self.next_release(now, &ledger);
                self.wake(release.map_or(until, |at| at.min(until)));
                self.await_members((ledger, last, there), spec, reason, effects);
            }
            Choice::GiveUp => self.end(last, &ledger, too_few(spec, there), effects),
        }
    }

    /// Too few members for now.
    fn await_members(
        &mut self,
        (ledger, last, there): (Ledger, Generation, u32),
        spec: &JobSpec,
        reason: String,
        effects: &mut Vec<LeaderEffect>,
    ) {
        let hopeless = !self.settings.shared && !ledger.excluded.is_empty();
        if hopeless && spec.size_with(there).is_none() {
            return self.end(last, &ledger, node_at_fault(&ledger), effects);
        }
        self.set(LeaderState::Gathering, &reason);
        // The incident is charged now, since nobody knows who will lead when the members are there.
        if self.ledger() != ledger {
            let mut transaction = self.guarded();
            transaction.then.push(self.put_ledger(&ledger));
            self.write(transaction, reason, effects);
        }
    }

    /// Members that can take part in a new generation.
    pub(super) fn usable(&self, ledger: &Ledger) -> BTreeMap<&NodeName, &MemberRecord> {
        self.view
            .members()
            .iter()
            .map(|(node, record)| (node, &*record.value))
            .filter(|(node, record)| {
                // One whose worker survived SIGKILL may have been away when its generation was judged.
                record.slots > 0
                    && record.unkillable.is_empty()
                    && !ledger.excluded.contains_key(*node)
                    && !is_leaving(record)
                    && matches!(record.phase, MemberPhase::Idle | MemberPhase::Stopped)
            })
            .collect()
    }

    /// Nodes for the next generation. Better one that comes and goes than none.
    fn candidates(&self, now: Instant, spec: &JobSpec, ledger: &Ledger) -> BTreeSet<NodeName> {
        let usable = self.usable(ledger);
        let free = |node: &NodeName| {
            self.quarantined_until(node, ledger)
                .is_none_or(|until| now >= until)
        };
        let all = usable.keys().copied().cloned();
        let steady: BTreeSet<NodeName> = all.clone().filter(free).collect();
        let enough =
            u32::try_from(steady.len()).map_or(true, |there| spec.size_with(there).is_some());
        if enough { steady } else { all.collect() }
    }

    /// Until when a node that was lost again and again gets no rank, if it must wait.
    pub(super) fn quarantined_until(&self, node: &NodeName, ledger: &Ledger) -> Option<Instant> {
        let losses = ledger.losses.get(node).copied().unwrap_or(0);
        let doublings = losses.checked_sub(2)?;
        let (_, since) = self.gathering.first_seen.get(node)?;
        let time =
            FIRST_QUARANTINE.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX));
        Some(*since + time.min(LONGEST_QUARANTINE))
    }

    /// When the next node comes out of quarantine.
    fn next_release(&self, now: Instant, ledger: &Ledger) -> Option<Instant> {
        let nodes = self.view.members().keys();
        nodes
            .filter_map(|node| self.quarantined_until(node, ledger))
            .filter(|at| *at > now)
            .min()
    }

    /// Notes who is there.
    pub(super) fn note_arrivals(&mut self, now: Instant) {
        let members = self.view.members();
        let first_seen = &mut self.gathering.first_seen;
        first_seen.retain(|node, (incarnation, _)| {
            members
                .get(node)
                .is_some_and(|record| record.value.incarnation == *incarnation)
        });
        for (node, record) in members {
            if !first_seen.contains_key(node) {
                first_seen.insert(node.clone(), (record.value.incarnation, now));
            }
        }
    }

    /// The wish of one of them, if all members that are there want to leave.
    fn everybody_leaves(&self) -> Option<Request> {
        let members = self.view.members();
        let all = members.values().all(|record| is_leaving(&record.value));
        let first = members.values().next()?;
        all.then(|| first.value.request.clone()).flatten()
    }
}

fn is_leaving(record: &MemberRecord) -> bool {
    let request = record.request.as_ref();
    request.is_some_and(|request| matches!(request.kind, RequestKind::Leave { .. }))
}

/// How many nodes to begin with, or how long to wait for more.
fn choose(
    gathering: &mut Gathering,
    now: Instant,
    spec: &JobSpec,
    settings: &super::LeaderSettings,
    there: u32,
    previous: &[PlanMember],
) -> Choice {
    let since = *gathering.since.get_or_insert(now);
    let Some(size) = spec.size_with(there) else {
        gathering.enough_since = None;
        let patience = spec.wait_for_nodes();
        if now >= since + patience {
            return Choice::GiveUp;
        }
        let reason = format!(
            "{there} of at least {} nodes are there; waiting for the others for up to {} s",
            spec.min_nodes,
            patience.as_secs()
        );
        return Choice::Wait(since + patience, reason);
    };
    let enough_since = *gathering.enough_since.get_or_insert(now);
    let before = u32::try_from(previous.len()).unwrap_or(u32::MAX);
    let (goal, since, patience) = if previous.is_empty() {
        (
            spec.size_with(spec.max_nodes),
            enough_since,
            settings.gather_window,
        )
    } else {
        (Some(before), since, spec.shrink_after())
    };
    let goal = goal.unwrap_or(spec.max_nodes).min(spec.max_nodes);
    if size >= goal {
        let keep = spec.grow == Grow::Never && !previous.is_empty();
        return Choice::Begin(if keep { goal } else { size });
    }
    let until = since + patience;
    let others_may_come = settings.shared || previous.is_empty();
    if now >= until || !others_may_come {
        return Choice::Begin(size);
    }
    let reason = format!(
        "{there} of {goal} nodes are there; waiting for up to {} s before going on with {size}",
        patience.as_secs()
    );
    Choice::Wait(until, reason)
}

/// Nobody can say whether the workers of lost nodes still train.
fn out_of_sight(spec: &JobSpec, lost: &str) -> Ending {
    let seconds = spec.wait_for_nodes().as_secs();
    Ending {
        message: format!(
            "nothing was heard of {lost} for {seconds} s, and no node that is left has seen the training end there, so no \
             other node could take over: see what became of {lost}, end what still runs there, then start the job again"
        ),
        ..too_few(spec, 0)
    }
}

fn too_few(spec: &JobSpec, there: u32) -> Ending {
    Ending {
        outcome: JobOutcome::Failed,
        rule: EndRule::NotEnoughNodes,
        exit: ExitReason::Infrastructure,
        message: format!(
            "only {there} of at least {} nodes were there after {} s: see why the others did not start or were lost, \
             or lower the number of nodes",
            spec.min_nodes,
            spec.wait_for_nodes().as_secs()
        ),
        verdict: None,
    }
}
