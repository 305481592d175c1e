// SPDX-License-Identifier: Apache-2.0
//! What comes after a generation: the next one, or the end.

use std::collections::BTreeMap;

use steadfast_proto::v1::{FaultClass, Finding};

use super::ending::{Ending, node_at_fault, stopped};
use super::standing::Standing;
use super::{LeaderEffect, LeaderState};
use crate::formation::{arrange, plan as make_plan};
use crate::judgement::{Incident, Ruling, judge, note_progress};
use crate::member::kinds;
use crate::verdict::{Verdict, find_root_cause};
use crate::{
    EndRule, Exclusion, ExitReason, Generation, Instant, JobOutcome, JobSpec, Leader, Ledger,
    MemberPhase, MemberRecord, NodeName, Plan, PlanPhase,
};

impl Leader {
    /// Publishes that the generation is to end.
    pub(super) fn drain(
        &mut self,
        mut plan: Plan,
        phase: PlanPhase,
        effects: &mut Vec<LeaderEffect>,
    ) {
        if let PlanPhase::Drain { why, .. } = &phase {
            self.set(LeaderState::Draining(plan.generation), why);
        }
        plan.phase = phase;
        let mut transaction = self.guarded();
        transaction.then.push(self.put_plan(&plan));
        self.write(transaction, String::new(), effects);
    }

    /// Every member of the plan has stopped: judges what happened, charges it, and goes on or ends.
    pub(super) fn decide(
        &mut self,
        now: Instant,
        spec: &JobSpec,
        plan: &Plan,
        standings: &[(NodeName, Standing)],
        effects: &mut Vec<LeaderEffect>,
    ) {
        let mut ledger = self.ledger();
        note_progress(&mut ledger, self.best_step(plan));
        ledger.judged = plan.generation;
        self.exclude_unkillable(plan, &mut ledger);
        let mut findings = self.view.findings_of(plan.generation);
        findings.extend(lost_findings(plan, standings));
        let verdict = find_root_cause(findings);
        let clean = self.all_clean(plan);
        if let Some(request) = self.stop_request() {
            let ending = stopped(&request, clean, verdict);
            return self.end(plan.generation, &ledger, ending, effects);
        }
        if let Some(request) = self.restart_request(plan) {
            ledger.pending = Some(format!(
                "restarted on request: {}; not charged to the restart budget",
                request.reason
            ));
            return self.gather(now, spec, ledger, Some(plan.clone()), effects);
        }
        if clean && verdict.is_none() {
            return self.succeed(plan, effects);
        }
        let verdict = verdict.unwrap_or_else(|| unexplained(plan));
        let incident = Incident {
            root: &verdict.root,
            made_step: self.step_of(plan).is_some(),
            max_restarts: spec.max_restarts,
        };
        match judge(&mut ledger, &incident) {
            Ruling::Restart(why) => {
                ledger.pending = Some(why);
                self.gather(now, spec, ledger, Some(plan.clone()), effects);
            }
            Ruling::End {
                rule,
                message,
                exit,
            } => {
                let ending = Ending {
                    outcome: JobOutcome::Failed,
                    rule,
                    exit,
                    message,
                    verdict: Some(verdict),
                };
                self.end(plan.generation, &ledger, ending, effects);
            }
        }
    }

    /// No generation runs: begins the next one as soon as there are members for it. `ledger` is as it shall be
    /// written; it may be ahead of the store's.
    pub(super) fn gather(
        &mut self,
        now: Instant,
        spec: &JobSpec,
        mut ledger: Ledger,
        previous: Option<Plan>,
        effects: &mut Vec<LeaderEffect>,
    ) {
        let last = previous
            .as_ref()
            .map(|plan| plan.generation)
            .unwrap_or_default();
        if let Some(request) = self.stop_request() {
            return self.end(last, &ledger, stopped(&request, false, None), effects);
        }
        let places = previous.map(|plan| plan.members).unwrap_or_default();
        let chosen: Vec<MemberRecord> = {
            let available = self.available(&ledger);
            let chosen = arrange(&available, &places, spec.max_nodes);
            chosen.into_iter().cloned().collect()
        };
        let count = u32::try_from(chosen.len()).unwrap_or(u32::MAX);
        if count < spec.min_nodes.max(1) {
            return self.await_members(now, spec, (ledger, last), count, effects);
        }
        if last == Generation(0) && count < spec.max_nodes {
            let since = *self.enough_since.get_or_insert(now);
            let until = since + self.settings.gather_window;
            if now < until {
                self.wake(until);
                let reason = format!(
                    "{count} of at most {} nodes have registered; waiting a little for the others",
                    spec.max_nodes
                );
                return self.set(LeaderState::Gathering, &reason);
            }
        }
        let why = ledger
            .pending
            .take()
            .unwrap_or_else(|| "the job was started".to_owned());
        let members: Vec<&MemberRecord> = chosen.iter().collect();
        if let Some(next) = make_plan(last.next(), &members, why) {
            self.publish(next, &ledger, effects);
        }
    }

    /// Too few members: waits, or ends the job.
    fn await_members(
        &mut self,
        now: Instant,
        spec: &JobSpec,
        (ledger, last): (Ledger, Generation),
        count: u32,
        effects: &mut Vec<LeaderEffect>,
    ) {
        self.enough_since = None;
        if !ledger.excluded.is_empty() {
            return self.end(last, &ledger, node_at_fault(&ledger), effects);
        }
        let since = *self.gathering_since.get_or_insert(now);
        let until = since + self.settings.gather_timeout;
        let reason = format!(
            "{count} of at least {} nodes are there; waiting for the others for up to {} s",
            spec.min_nodes,
            self.settings.gather_timeout.as_secs()
        );
        if now >= until {
            let ending = Ending {
                outcome: JobOutcome::Failed,
                rule: EndRule::NotEnoughNodes,
                exit: ExitReason::Infrastructure,
                message: format!(
                    "only {count} of at least {} nodes were there after {} s: \
                     see why the others did not start, or lower the number of nodes",
                    spec.min_nodes,
                    self.settings.gather_timeout.as_secs()
                ),
                verdict: None,
            };
            return self.end(last, &ledger, ending, effects);
        }
        self.wake(until);
        self.set(LeaderState::Gathering, &reason);
        // The incident is charged now, since nobody knows who will lead when the members are there.
        if self.ledger() != ledger {
            let mut transaction = self.guarded();
            transaction.then.push(self.put_ledger(&ledger));
            self.write(transaction, reason, effects);
        }
    }

    fn publish(&mut self, mut plan: Plan, ledger: &Ledger, effects: &mut Vec<LeaderEffect>) {
        if let Some(before) = self.view.plan() {
            plan.extra.clone_from(&before.value.extra);
        }
        let before = Generation(plan.generation.0.saturating_sub(1));
        self.set(
            LeaderState::Deciding(before),
            &format!("publishing the plan of generation {}", plan.generation),
        );
        let mut transaction = self.guarded();
        transaction.then.push(self.put_plan(&plan));
        if self.ledger() != *ledger {
            transaction.then.push(self.put_ledger(ledger));
        }
        transaction.then.extend(self.old_findings(before));
        let say = if plan.restart_count == 0 {
            String::new()
        } else {
            format!("generation {} starts: {}", plan.generation, plan.why)
        };
        self.write(transaction, say, effects);
    }

    /// Members that can take part in a new generation.
    fn available(&self, ledger: &Ledger) -> BTreeMap<&NodeName, &MemberRecord> {
        self.view
            .members()
            .iter()
            .map(|(node, record)| (node, &record.value))
            .filter(|(node, record)| {
                record.slots > 0
                    && !ledger.excluded.contains_key(*node)
                    && matches!(record.phase, MemberPhase::Idle | MemberPhase::Stopped)
            })
            .collect()
    }

    fn exclude_unkillable(&self, plan: &Plan, ledger: &mut Ledger) {
        for record in self.records_of(plan) {
            if record.unkillable.is_empty() {
                continue;
            }
            let ranks: Vec<_> = record.unkillable.iter().map(ToString::to_string).collect();
            ledger.excluded.insert(
                record.node.clone(),
                Exclusion {
                    generation: plan.generation,
                    reason: format!(
                        "local rank {} could not be killed (uninterruptible sleep in the kernel)",
                        ranks.join(", ")
                    ),
                },
            );
        }
    }

    fn all_clean(&self, plan: &Plan) -> bool {
        let clean = self.records_of(plan).filter(|record| record.clean).count();
        clean == plan.members.len()
    }

    /// Highest step that the generation is known to have made.
    fn step_of(&self, plan: &Plan) -> Option<u64> {
        let reported = self.records_of(plan).filter_map(|record| record.step);
        let found = self.view.findings_of(plan.generation);
        reported
            .chain(found.iter().filter_map(|finding| finding.step))
            .max()
    }

    pub(super) fn best_step(&self, plan: &Plan) -> Option<u64> {
        self.step_of(plan).max(self.ledger().best_step)
    }

    /// The records of the plan's members, as far as they speak of its generation.
    fn records_of<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = &'a MemberRecord> {
        plan.members
            .iter()
            .filter_map(|place| {
                let record = &self.view.member(&place.node)?.value;
                (record.incarnation == place.incarnation).then_some(record)
            })
            .filter(|record| record.generation == plan.generation)
    }
}

/// Members stopped without saying why, which only a fault of ours can bring about; it is charged like any other.
fn unexplained(plan: &Plan) -> Verdict {
    Verdict {
        root: Finding {
            kind: "generation.ended".to_owned(),
            generation: plan.generation.0,
            fingerprint: "unexplained".to_owned(),
            summary: "the workers were stopped and nobody has said why".to_owned(),
            ..Finding::default()
        },
        others: Vec::new(),
    }
}

fn lost_findings(plan: &Plan, standings: &[(NodeName, Standing)]) -> Vec<Finding> {
    standings
        .iter()
        .filter_map(|(node, standing)| match standing {
            Standing::Lost(why) => Some(Finding {
                kind: kinds::MEMBER_LOST.to_owned(),
                class: FaultClass::NodeLost.into(),
                generation: plan.generation.0,
                node: node.to_string(),
                fingerprint: format!("lost:{node}"),
                summary: why.clone(),
                // Nobody knows when it happened: any finding with a time goes before.
                monotonic_ns: u64::MAX,
                wall_ms: i64::MAX,
                ..Finding::default()
            }),
            _ => None,
        })
        .collect()
}
