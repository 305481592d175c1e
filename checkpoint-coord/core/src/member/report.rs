// SPDX-License-Identifier: Apache-2.0
//! What a member writes about itself.

use std::collections::BTreeMap;

use steadfast_proto::v1::Finding;

use super::{Member, MemberEffect, Work};
use crate::records::encode;
use crate::{
    CheckpointReport, Condition, FindingsRecord, Fitness, MemberPhase, MemberRecord, Operation,
    RECORD_VERSION, Request, RequestKind, Revision, Transaction,
};

/// What a member writes about itself.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Report {
    pub(super) record: MemberRecord,
    pub(super) findings: Vec<Finding>,
}

impl Member {
    pub(super) fn write(&mut self, effects: &mut Vec<MemberEffect>) {
        if self.in_flight.is_some() || self.retry_at.is_some() || self.name_taken_since.is_some() {
            return;
        }
        let report = self.report();
        if self.written.as_ref().is_some_and(|written| {
            *written == report || self.says_what_the_plan_says(written, &report)
        }) {
            return;
        }
        let transaction = self.transaction(&report);
        self.registers = self.own_revision() == Revision(0);
        self.in_flight = Some(report);
        effects.push(MemberEffect::Write(transaction));
    }

    /// Whether all that is new is that workers are being started or stopped, as the plan has told everybody. In a large job
    /// all members would write that at once, and each would have to wait for that write before it can write what is news.
    fn says_what_the_plan_says(&self, written: &Report, report: &Report) -> bool {
        let plan = self.view.plan().map(|plan| &plan.value);
        let plan = plan.filter(|plan| plan.generation == report.record.generation);
        let is_known = plan.is_some_and(|plan| match report.record.phase {
            MemberPhase::Idle => plan.is_run(),
            MemberPhase::Draining => !plan.is_run(),
            _ => false,
        });
        if !is_known {
            return false;
        }
        let before = &written.record;
        let as_before = if report.record.phase == MemberPhase::Idle {
            // What it said of the generation before holds no more, and everybody knows.
            MemberRecord {
                generation: before.generation,
                phase: before.phase,
                step: before.step,
                stop_began: before.stop_began,
                unkillable: before.unkillable.clone(),
                clean: before.clean,
                witness: before.witness,
                last_step: before.last_step,
                checkpoint: before.checkpoint,
                durable: before.durable.clone(),
                can_save: before.can_save,
                saved: before.saved,
                told_late: before.told_late,
                ..report.record.clone()
            }
        } else {
            MemberRecord {
                phase: before.phase,
                step: before.step,
                stop_began: before.stop_began,
                ..report.record.clone()
            }
        };
        let has_news = !report.findings.is_empty() && report.findings != written.findings;
        as_before == *before && !has_news
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
        let to_keep = |report: &Report| {
            let record = &report.record;
            (
                record.generation,
                report.findings.clone(),
                lasting(record),
                has_stopped_to_leave(record),
            )
        };
        let generation = report.record.generation;
        let is_empty = report.findings.is_empty() && lasting(&report.record).is_none();
        if !is_empty && self.written.as_ref().map(to_keep) != Some(to_keep(report)) {
            transaction.then.push(Operation::Put {
                key: keys.findings(generation, &self.settings.node),
                value: encode(&FindingsRecord {
                    version: RECORD_VERSION,
                    findings: report.findings.clone(),
                    request: lasting(&report.record),
                    stopped: has_stopped_to_leave(&report.record),
                    extra: BTreeMap::new(),
                }),
                lease: None,
            });
        }
        transaction
    }

    /// The revision of our own record: nobody else writes it, unless another supervisor goes by our name.
    fn own_revision(&self) -> Revision {
        if self.own_known_at < self.last_write {
            return self.last_write;
        }
        self.view
            .member(&self.settings.node)
            .map_or(Revision(0), |record| record.mod_revision)
    }

    /// When our present record came into being. What is older speaks of a record that is gone.
    pub(super) fn registered_at(&self) -> Revision {
        let known = self.view.member(&self.settings.node);
        let own = known.filter(|record| record.value.incarnation == self.settings.incarnation);
        let seen = own.map_or(Revision(0), |record| record.create_revision);
        seen.max(self.registered_at)
    }

    /// What is said of the checkpoint directory. While the workers run and save, only that it is another directory is worth
    /// a write.
    fn checkpoints_to_report(&self) -> Option<CheckpointReport> {
        let written = self
            .written
            .as_ref()
            .and_then(|written| written.record.checkpoints.clone());
        let runs = self.work.as_ref().is_some_and(|work| {
            !matches!(
                work.phase(),
                Some(MemberPhase::Stopped | MemberPhase::Completed)
            )
        });
        let directory = |report: &Option<CheckpointReport>| {
            report.as_ref().map(|report| report.directory.clone())
        };
        if runs && directory(&written) == directory(&self.checkpoints) {
            written
        } else {
            self.checkpoints.clone()
        }
    }

    /// How fit the node is. While it has ranks, that somebody has looked and has found nothing new is not worth a write.
    fn fitness_to_report(&self) -> Option<Fitness> {
        let fitness = self.looks.fitness()?;
        let written = self.written.as_ref();
        let before = written.and_then(|written| written.record.fitness.as_ref());
        let as_before = before.filter(|before| {
            self.work.is_some() && before.look > 0 && before.faults == fitness.faults
        });
        Some(as_before.cloned().unwrap_or(fitness))
    }

    fn report(&self) -> Report {
        let work = self.work.as_ref();
        let exact = work.is_some_and(|work| !work.is_active());
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
            unkillable: self.unkillable.iter().copied().collect(),
            clean: work.is_some_and(Work::is_clean),
            request: self.request.clone(),
            boot: self.settings.boot.clone(),
            machine: self.settings.machine.clone(),
            location: self.settings.location.clone(),
            witness: work.and_then(|work| work.witness),
            last_step: work.and_then(|work| work.last_step),
            checkpoint: work.and_then(|work| work.checkpoint),
            durable: work.map(|work| work.durable.clone()).unwrap_or_default(),
            checkpoints: self.checkpoints_to_report(),
            can_save: work.and_then(|work| work.saving.means),
            saved: work.and_then(|work| work.saving.saved),
            told_late: work.and_then(|work| work.saving.told_late),
            agent: self.settings.agent.clone(),
            fitness: self.fitness_to_report(),
            past_faults: self.past_faults,
            extra: self.extra.clone(),
        };
        Report {
            record,
            findings: work.map(|work| work.findings.clone()).unwrap_or_default(),
        }
    }
}

/// A request that outlives the member's record. A checkpoint is of use only as long as somebody waits for it.
fn lasting(record: &MemberRecord) -> Option<Request> {
    let request = record.request.as_ref();
    let lasts = |request: &&Request| !matches!(request.kind, RequestKind::Checkpoint { .. });
    request.filter(lasts).cloned()
}

/// Whether the member can go, as far as its workers are concerned.
fn has_stopped_to_leave(record: &MemberRecord) -> bool {
    let request = record.request.as_ref();
    let leaves = request.is_some_and(|request| matches!(request.kind, RequestKind::Leave { .. }));
    leaves && record.phase == MemberPhase::Stopped
}
