// SPDX-License-Identifier: Apache-2.0
//! What is written into the store, as it is written.

use std::collections::BTreeSet;

use serde_json::Value;
use steadfast_core::KeyValue;

use super::budget::LedgerSeen;
use super::plans::{PlanSeen, read_course, read_plan};
use super::{ASKED, Author, Checked, Checker, TIME_TO_KILL};

/// How late the leader may hear of a step, in virtual microseconds.
const HEARD_WITHIN: u64 = 1_000_000;

impl Checker {
    /// The store has changed: `None` for a key that is gone.
    pub(crate) fn stored(
        &mut self,
        revision: i64,
        key: &str,
        entry: Option<&KeyValue>,
        author: &Author,
    ) -> Checked {
        let name = key.splitn(4, '/').nth(3).unwrap_or_default();
        self.restart_is_allowed(revision)?;
        if entry.is_some_and(|entry| entry.value.contains(ASKED)) {
            self.asked_is_stored = true;
        }
        let read =
            |entry: &KeyValue| serde_json::from_str::<Value>(&entry.value).unwrap_or_default();
        match (name, entry) {
            ("job/plan" | "job/course" | "job/ledger" | "job/result" | "job/spec", None) => {
                return self.violation("record lost", format!("{key} was deleted"));
            }
            ("job/leader", entry) => {
                self.office = entry.and_then(|entry| {
                    let record = read(entry);
                    Some((node_of(&record["node"])?, entry.create_revision.0))
                });
                return Ok(());
            }
            ("job/plan" | "job/course" | "places" | "job/ledger" | "job/result", Some(_)) => {
                self.is_in_office(key, author)?;
                if let Author::Leader { decided, .. } = author {
                    self.decided = *decided;
                }
            }
            _ => {}
        }
        match (name, entry) {
            ("job/plan", Some(entry)) => self.plan_stored(revision, &read(entry)),
            ("job/course", Some(entry)) => self.course_stored(revision, &read(entry)),
            ("job/ledger", Some(entry)) => self.ledger_stored(revision, &read(entry)),
            ("job/result", Some(entry)) => self.result_stored(revision, read(entry)),
            (checkpoint, Some(_)) if checkpoint.starts_with("checkpoints/") => {
                self.is_in_office(key, author)?;
                let step = checkpoint["checkpoints/".len()..].parse().ok();
                self.committed = self.committed.max(step);
                Ok(())
            }
            (member, entry) if member.starts_with("members/") => {
                self.member_stored(&member["members/".len()..], entry, author)
            }
            _ => Ok(()),
        }
    }

    /// Judges a restart once everything that was written with it is known.
    fn restart_is_allowed(&mut self, revision: i64) -> Checked {
        let over = self.succeeded.take_if(|(at, ..)| *at < revision);
        if let Some((_, generation, free)) = over
            && let Err(message) = self.budget.restart(generation, free)
        {
            return self.violation("restart budget", message);
        }
        Ok(())
    }

    /// Only who is in office at that moment decides.
    fn is_in_office(&self, key: &str, author: &Author) -> Checked {
        let holder = self.office;
        match author {
            Author::Leader { node, epoch, .. } if holder == Some((*node, *epoch)) => Ok(()),
            _ => {
                let message =
                    format!("{key} was written by {author:?}, but {holder:?} is in office");
                self.violation("one leader", message)
            }
        }
    }

    /// What was committed is never gone back behind.
    fn keeps_commits(&self, plan: &Value) -> Checked {
        let from = plan["resume"]["from"]["step"].as_u64();
        match (self.committed, from) {
            (Some(committed), Some(from)) if from < committed => {
                let message = format!(
                    "generation {} resumes from step {from}, but step {committed} was committed",
                    plan["generation"]
                );
                self.violation("no lost commit", message)
            }
            _ => Ok(()),
        }
    }

    fn plan_stored(&mut self, revision: i64, value: &Value) -> Checked {
        let Some(plan) = read_plan(value) else {
            return self.violation("plan", format!("this is no plan: {value}"));
        };
        if self.ended_before(revision) {
            let message = "a plan was written after the end of the job".to_owned();
            return self.violation("terminal", message);
        }
        if let Err(message) = plan.is_allowed(&self.limits) {
            return self.violation("ranks", message);
        }
        let before = self.plan.take();
        let generation = before.as_ref().map_or(0, |plan| plan.generation);
        if plan.generation != generation + 1 {
            let message = format!(
                "the plan of generation {generation} was followed by that of {}",
                plan.generation
            );
            return self.violation("generations grow by one", message);
        }
        self.begins(&plan)?;
        self.keeps_commits(value)?;
        if let Some(before) = before {
            if !before.drains {
                self.drains += 1;
            }
            self.must_have_cause(&before, "was succeeded by another")?;
            self.succeeded = Some((revision, generation, self.is_free(&before)));
        }
        self.plan = Some(plan);
        Ok(())
    }

    fn course_stored(&mut self, revision: i64, value: &Value) -> Checked {
        let Some(before) = self.plan.take() else {
            return self.violation("plan", format!("{value} has no plan"));
        };
        let Some(plan) = read_course(&before, value) else {
            let message = format!("{before:?} is the plan, and this is no course of it: {value}");
            return self.violation("plan", message);
        };
        if self.ended_before(revision) {
            let message = "a plan was ended after the end of the job".to_owned();
            return self.violation("terminal", message);
        }
        if let Err(message) = before.may_become(&plan) {
            return self.violation("one plan a generation", message);
        }
        if plan.drains && !before.drains {
            self.drains += 1;
            self.must_have_cause(&plan, "was drained")?;
            self.causes.add(plan.generation, None);
        }
        self.plan = Some(plan);
        Ok(())
    }

    fn begins(&self, plan: &PlanSeen) -> Checked {
        let stuck = plan
            .keepers()
            .find(|keeper| self.stuck_keepers.contains(keeper));
        if let Some((node, _)) = stuck {
            let message = format!("{node} got ranks again though a worker on it cannot be killed");
            return self.violation("bad node", message);
        }
        // The job begins on whatever is there.
        let known = |node: &&String| {
            let since = self.unfit.get(*node);
            since.is_some_and(|since| self.causes.is_known(*since))
        };
        let unfit = plan.keepers().map(|(node, _)| node).find(known);
        if let Some(node) = unfit.filter(|_| plan.generation > 1) {
            let message = format!("{node} got ranks though it has said that it is unfit");
            return self.violation("unfit node", message);
        }
        self.stops_are_heeded(&format!("generation {} was begun", plan.generation))
    }

    /// Whether the end of that generation costs nothing: somebody asked for it, or more nodes are taken in.
    fn is_free(&self, plan: &PlanSeen) -> bool {
        self.causes.was_asked_to_restart(plan.generation)
            || plan.grows
            || self.causes.anybody_leaves()
    }

    pub(super) fn must_have_cause(&self, plan: &PlanSeen, what: &str) -> Checked {
        let generation = plan.generation;
        let died = plan.keepers().any(|(node, incarnation)| {
            number(node).is_some_and(|node| self.causes.is_dead(node, *incarnation))
        });
        let asked = self.causes.was_asked_to_end()
            || self.causes.anybody_leaves()
            || self.causes.was_asked_to_restart(generation);
        if died || asked || self.causes.hit(generation).is_some() {
            return Ok(());
        }
        let planned: BTreeSet<&String> = plan.keepers().map(|(node, _)| node).collect();
        let spares = self.registered.iter().any(|node| !planned.contains(node));
        if plan.grows && self.limits.grows && spares {
            return Ok(());
        }
        // A lost lease ends it where steps do not vouch for the workers, as far as the leader has heard of them.
        let window = (plan.window / 100 * 98).saturating_sub(HEARD_WITHIN);
        let vouched = self.causes.is_vouched_for(generation, window, self.decided);
        if self.causes.is_disturbed() && !vouched {
            return Ok(());
        }
        let message = format!(
            "generation {generation} {what}, but nothing had happened to it{}",
            if vouched { ": it makes steps" } else { "" }
        );
        self.violation("false alarm", message)
    }

    /// A wish to stop that was once in the store holds, even when the record that held it dies with its lease.
    fn member_stored(&mut self, node: &str, entry: Option<&KeyValue>, author: &Author) -> Checked {
        let Some(entry) = entry else {
            self.registered.remove(node);
            self.unfit.remove(node);
            return self.record_gone(node, author);
        };
        if !self.registered.contains(node) {
            self.registered.insert(node.to_owned());
        }
        let record: Value = if entry.value.contains("\"fitness\":") {
            serde_json::from_str(&entry.value).unwrap_or_default()
        } else {
            Value::Null
        };
        let faults = record["fitness"]["faults"].as_array();
        if faults.is_some_and(|faults| !faults.is_empty()) {
            let since = self.unfit.entry(node.to_owned());
            since.or_insert(self.now);
        } else {
            self.unfit.remove(node);
        }
        // Cheaper than to read every record.
        if entry.value.contains("\"stop\":") {
            let record: Value = serde_json::from_str(&entry.value).unwrap_or_default();
            if record["request"]["kind"]["stop"].is_object() {
                let recorded = self.stops_recorded.entry(node.to_owned());
                recorded.or_insert(self.now);
            }
        }
        Ok(())
    }

    fn record_gone(&mut self, node: &str, author: &Author) -> Checked {
        if *author != Author::Expiry || self.limits.alone {
            return Ok(());
        }
        let Some(index) = number(node) else {
            return Ok(());
        };
        let vouched = self.plan.as_ref().is_some_and(|plan| {
            let slack = plan.window / 100 + TIME_TO_KILL;
            plan.window > 0
                && self
                    .causes
                    .last_step(plan.generation)
                    .is_some_and(|at| self.now < at + plan.window + slack)
        });
        self.lease_ran_out(index, vouched)
    }

    /// What is in the store has been seen by the leader, soon.
    pub(super) fn stops_are_heeded(&self, what: &str) -> Checked {
        let ignored = self
            .stops_recorded
            .iter()
            .find(|(_, at)| self.causes.is_known(**at));
        match ignored {
            None => Ok(()),
            Some((node, _)) => {
                let message = format!("{node} had asked for the end, but {what}");
                self.violation("stop forgotten", message)
            }
        }
    }

    fn ledger_stored(&mut self, revision: i64, value: &Value) -> Checked {
        if self.ended_before(revision) {
            let message = "the ledger was written after the end of the job".to_owned();
            return self.violation("terminal", message);
        }
        let number = |name: &str| value[name].as_u64();
        let seen = LedgerSeen {
            charged: number("restarts_charged").unwrap_or(u64::MAX),
            used: number("restarts_used").unwrap_or(u64::MAX),
            judged: number("judged").unwrap_or(u64::MAX),
            best: number("best_step"),
        };
        match self.budget.ledger(seen) {
            Ok(()) => Ok(()),
            Err(message) => self.violation("charged once", message),
        }
    }
}

/// The number in a node's name.
pub(super) fn number(name: &str) -> Option<usize> {
    name.strip_prefix("node-")?.parse().ok()
}

fn node_of(value: &Value) -> Option<usize> {
    number(value.as_str()?)
}
