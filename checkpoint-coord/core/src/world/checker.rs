// SPDX-License-Identifier: Apache-2.0
//! Watches every change of the store and every start of workers, and knows nothing of how the machines work.

use std::collections::BTreeSet;
use std::ops::Range;

use super::keeper::Keeper;
use crate::records::decode;
use crate::{
    Change, ChangeBatch, Course, Generation, Keys, Ledger, MemberRecord, Plan, RequestKind,
};

#[derive(Debug)]
pub(super) struct Checker {
    max_restarts: u32,
    plan: Option<Plan>,
    ledger: Ledger,
    result: Option<String>,
    /// Generations in which a worker failed.
    faults: BTreeSet<Generation>,
    /// Generations that somebody asked to leave.
    restarts_asked: BTreeSet<Generation>,
    /// Generations during which a member's record was lost, and with it perhaps a request.
    uncertain: BTreeSet<Generation>,
    masters: BTreeSet<(String, u16)>,
}

impl Checker {
    pub(super) fn new(max_restarts: u32) -> Self {
        Self {
            max_restarts,
            plan: None,
            ledger: Ledger::default(),
            result: None,
            faults: BTreeSet::new(),
            restarts_asked: BTreeSet::new(),
            uncertain: BTreeSet::new(),
            masters: BTreeSet::new(),
        }
    }

    pub(super) fn fault(&mut self, generation: Generation) {
        self.faults.insert(generation);
    }

    pub(super) fn generation(&self) -> Generation {
        self.plan
            .as_ref()
            .map(|plan| plan.generation)
            .unwrap_or_default()
    }

    pub(super) fn observe(&mut self, keys: &Keys, batch: &ChangeBatch) -> Result<(), String> {
        let charged_before = self.ledger.restarts_charged;
        let judged_before = self.ledger.judged;
        let mut plan_moved = None;
        for change in &batch.changes {
            let key = change.key();
            let Change::Put(entry) = change else {
                if [keys.plan(), keys.course(), keys.ledger(), keys.result()]
                    .iter()
                    .any(|kept| kept == key)
                {
                    return Err(format!("{key} was deleted"));
                }
                if key.starts_with(&keys.members()) {
                    self.uncertain.insert(self.generation());
                    // The next plan may be on its way, and name a record that is gone.
                    self.uncertain.insert(self.generation().next());
                }
                continue;
            };
            let broken = |error: crate::RecordError| error.to_string();
            if key == keys.plan() {
                let plan: Plan = decode(key, &entry.value).map_err(broken)?;
                plan_moved = self.check_plan(&plan)?;
            } else if key == keys.course() {
                let course: Course = decode(key, &entry.value).map_err(broken)?;
                let mut plan = self.plan.clone().ok_or("CORE-1: a course of no plan")?;
                if course.generation != plan.generation {
                    return Err(format!("CORE-1: a course of another plan: {course:?}"));
                }
                plan.phase = course.phase;
                plan.witness_ms = course.witness_ms;
                plan_moved = self.check_plan(&plan)?;
            } else if key == keys.ledger() {
                let ledger = decode(key, &entry.value).map_err(broken)?;
                self.check_ledger(ledger)?;
            } else if key == keys.result() {
                if self.result.replace(entry.value.to_string()).is_some() {
                    return Err("CORE-4: the result was written twice".to_owned());
                }
            } else if key.starts_with(&keys.members()) {
                let member: MemberRecord = decode(key, &entry.value).map_err(broken)?;
                if let Some(request) = member.request
                    && request.kind == RequestKind::Restart
                {
                    self.restarts_asked.insert(request.generation);
                }
            }
        }
        if let Some(left) = plan_moved {
            let charged_here = self.ledger.restarts_charged - charged_before;
            self.check_charge(left, charged_here, judged_before)?;
        }
        Ok(())
    }

    /// CORE-1. Says which generation was left, if one was.
    fn check_plan(&mut self, plan: &Plan) -> Result<Option<Generation>, String> {
        if self.result.is_some() {
            return Err("CORE-4: a plan was written after the result".to_owned());
        }
        let before = self.plan.replace(plan.clone());
        let Some(before) = before else {
            self.check_master(plan)?;
            return match plan.generation {
                Generation(1) => Ok(None),
                other => Err(format!("CORE-1: the first generation is {other}")),
            };
        };
        if plan.generation == before.generation {
            let same = plan.members == before.members
                && plan.world_size == before.world_size
                && plan.master == before.master;
            return if same && before.is_run() && !plan.is_run() {
                Ok(None)
            } else {
                Err(format!(
                    "CORE-1: generation {} has two plans",
                    plan.generation
                ))
            };
        }
        if plan.generation != before.generation.next() {
            return Err(format!(
                "CORE-1: generation {} follows {}",
                plan.generation, before.generation
            ));
        }
        self.check_master(plan)?;
        Ok(Some(before.generation))
    }

    fn check_master(&mut self, plan: &Plan) -> Result<(), String> {
        let master = (plan.master.address.clone(), plan.master.port);
        if self.masters.insert(master) {
            Ok(())
        } else {
            Err("a generation has the master port of an older one".to_owned())
        }
    }

    /// CORE-3: the numbers themselves.
    fn check_ledger(&mut self, ledger: Ledger) -> Result<(), String> {
        let before = std::mem::replace(&mut self.ledger, ledger);
        let after = &self.ledger;
        let charged = after.restarts_charged.checked_sub(before.restarts_charged);
        let base = if after.best_step > before.best_step {
            0
        } else {
            u64::from(before.restarts_used)
        };
        let consistent = charged.is_some_and(|charged| {
            charged <= 1 && u64::from(after.restarts_used) == base + charged
        });
        if !consistent || after.restarts_used > self.max_restarts {
            return Err(format!(
                "CORE-3: the budget went from {before:?} to {after:?}"
            ));
        }
        Ok(())
    }

    /// CORE-3: a generation is left either because somebody asked, or for an incident, which is charged once.
    fn check_charge(
        &self,
        left: Generation,
        charged: u64,
        judged_before: Generation,
    ) -> Result<(), String> {
        let expected = u64::from(!self.restarts_asked.contains(&left) && judged_before != left);
        if self.uncertain.contains(&left) && charged <= 1 {
            return Ok(());
        }
        if charged != expected {
            return Err(format!(
                "CORE-3: leaving generation {left} was charged {charged} times instead of {expected}"
            ));
        }
        if expected == 1 && !self.faults.contains(&left) {
            return Err(format!(
                "CORE-3: generation {left} was charged without any fault"
            ));
        }
        Ok(())
    }

    /// CORE-2 and CORE-4, at the moment when a keeper is about to start workers.
    pub(super) fn starting<'a>(
        generation: Generation,
        ranks: &Range<u32>,
        keepers: impl Iterator<Item = &'a Keeper>,
        ended: bool,
    ) -> Result<(), String> {
        if ended {
            return Err(format!(
                "CORE-4: generation {generation} starts after the end"
            ));
        }
        for keeper in keepers {
            let twin = keeper
                .alive()
                .find(|(older, rank)| *older < generation && ranks.contains(rank));
            if let Some((older, rank)) = twin {
                return Err(format!(
                    "CORE-2: rank {rank} starts in generation {generation} while it is alive in {older}"
                ));
            }
        }
        Ok(())
    }
}
