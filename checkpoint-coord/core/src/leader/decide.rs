// SPDX-License-Identifier: Apache-2.0
//! What comes after a generation: the next one, or the end.

use steadfast_proto::v1::{FaultClass, Finding};

use super::ending::{Ending, stopped};
use super::fitness::{charge_hardware, exclude_broken};
use super::standing::Standing;
use super::{LeaderEffect, LeaderState, saving};
use crate::judgement::{Incident, Ruling, judge, note_progress};
use crate::member::kinds;
use crate::verdict::{Verdict, find_root_cause};
use crate::{
    Course, Exclusion, Generation, Instant, JobOutcome, JobSpec, Leader, Ledger, MemberRecord,
    NodeName, Plan, PlanPhase, SaveOutcome,
};

impl Leader {
    /// Publishes that the generation is to end; `saved` is what became of the checkpoint that was asked for before, or why none
    /// was, in words.
    pub(super) fn drain(
        &mut self,
        plan: &Plan,
        phase: PlanPhase,
        saved: Result<SaveOutcome, String>,
        effects: &mut Vec<LeaderEffect>,
    ) {
        if let PlanPhase::Drain { why, .. } = &phase {
            self.set(LeaderState::Draining(plan.generation), why);
        }
        let (saved, say) = match saved {
            Ok(outcome) => {
                let say = saving::in_words(&outcome);
                (Some(outcome), say)
            }
            Err(say) => (None, say),
        };
        let made = saved.as_ref().and_then(|saved| saved.made);
        let course = Course {
            phase,
            save: None,
            last_save: saved.or_else(|| plan.last_save.clone()),
            committed: made.or(plan.committed),
            ..self.course(plan)
        };
        let mut transaction = self.guarded();
        transaction.then.push(self.put_course(&course));
        let commit = made.map(|step| self.commit(plan, step));
        transaction.then.extend(commit.into_iter().flatten());
        let verdict = self.verdict_on(plan.generation);
        transaction
            .then
            .extend(verdict.map(|verdict| self.put_verdict(verdict)));
        self.write(transaction, say, effects);
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
        exclude_broken(plan, &findings, &mut ledger);
        charge_hardware(&findings, &mut ledger);
        count_losses(standings, &mut ledger);
        findings.extend(lost_findings(plan, standings));
        let verdict = find_root_cause(findings, &self.clocks, |findings| {
            let jury = self.jury.as_ref()?;
            jury.judge(plan, findings, &self.clocks)
        });
        let clean = self.all_clean(plan);
        if let Some(request) = self.stop_request() {
            let ending = stopped(&request, clean, verdict);
            return self.end(plan.generation, &ledger, ending, effects);
        }
        if let Some(request) = self.departure(plan) {
            ledger.pending = Some(format!(
                "a node has left: {}; not charged to the restart budget",
                request.reason
            ));
            return self.gather(now, spec, ledger, Some(plan), effects);
        }
        if let Some(request) = self.restart_request(plan) {
            ledger.pending = Some(format!(
                "restarted on request: {}; not charged to the restart budget",
                request.reason
            ));
            return self.gather(now, spec, ledger, Some(plan), effects);
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
                self.gather(now, spec, ledger, Some(plan), effects);
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

    pub(super) fn publish(
        &mut self,
        mut plan: Plan,
        ledger: &Ledger,
        remark: Option<String>,
        effects: &mut Vec<LeaderEffect>,
    ) {
        if let Some(before) = self.view.plan() {
            plan.extra.clone_from(&before.value.extra);
        }
        let before = Generation(plan.generation.0.saturating_sub(1));
        self.set(
            LeaderState::Deciding(before),
            &format!("publishing the plan of generation {}", plan.generation),
        );
        let mut transaction = self.guarded();
        transaction.when.extend(self.still_absent());
        transaction.then.extend(self.put_plan(&plan));
        if self.ledger() != *ledger {
            transaction.then.push(self.put_ledger(ledger));
        }
        transaction.then.extend(self.old_findings(before));
        let starts = (plan.restart_count > 0)
            .then(|| format!("generation {} starts: {}", plan.generation, plan.why));
        let say: Vec<String> = starts.into_iter().chain(remark).collect();
        let say = say.join("; ");
        self.write(transaction, say, effects);
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
    pub(super) fn step_of(&self, plan: &Plan) -> Option<u64> {
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
    pub(super) fn records_of<'a>(
        &'a self,
        plan: &'a Plan,
    ) -> impl Iterator<Item = &'a MemberRecord> {
        plan.members
            .iter()
            .filter_map(|place| {
                let record: &MemberRecord = &self.view.member(&place.node)?.value;
                (record.incarnation == place.incarnation).then_some(record)
            })
            .filter(|record| record.generation == plan.generation)
    }
}

fn count_losses(standings: &[(NodeName, Standing)], ledger: &mut Ledger) {
    for (node, standing) in standings {
        if matches!(standing, Standing::Lost { .. }) {
            let losses = ledger.losses.entry(node.clone()).or_default();
            *losses = losses.saturating_add(1);
        }
    }
}

/// Members stopped without saying why, which only a fault of ours can bring about; it is charged like any other.
fn unexplained(plan: &Plan) -> Verdict {
    let (class, summary) = match &plan.phase {
        // A node that was silent, or gone, for a while.
        PlanPhase::Drain {
            why, request: None, ..
        } if !why.is_empty() => (FaultClass::Network, why.clone()),
        _ => (
            FaultClass::Unknown,
            "the workers were stopped and nobody has said why".to_owned(),
        ),
    };
    Verdict {
        root: Finding {
            kind: "generation.ended".to_owned(),
            class: class.into(),
            generation: plan.generation.0,
            fingerprint: "unexplained".to_owned(),
            summary,
            ..Finding::default()
        },
        others: Vec::new(),
    }
}

fn lost_findings(plan: &Plan, standings: &[(NodeName, Standing)]) -> Vec<Finding> {
    standings
        .iter()
        .filter_map(|(node, standing)| match standing {
            Standing::Lost { why, .. } => Some(Finding {
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
