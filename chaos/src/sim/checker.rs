// SPDX-License-Identifier: Apache-2.0
//! What must never happen. Knows the truth of the simulated world and reads the store's JSON by
//! itself; it shares no code and no type with what it judges.

mod budget;
mod plans;
mod results;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use budget::Budget;
use plans::{PlanSeen, read_plan};
use results::exit_code;

/// Virtual microseconds within which the leader knows what is in the store.
const HEEDED_WITHIN: u64 = 5_000_000;

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Short name of the rule.
    pub(crate) rule: &'static str,
    /// What was seen.
    pub(crate) message: String,
    /// When, in virtual microseconds.
    pub(crate) at: u64,
}

/// What the job was told to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) min_nodes: u64,
    pub(crate) max_nodes: u64,
    pub(crate) max_restarts: u64,
    /// Exits are understood only after they were reported, maybe after the verdict: it may then
    /// blame a victim.
    pub(crate) late_evidence: bool,
}

/// Watches one simulated job.
#[derive(Debug)]
pub(crate) struct Checker {
    limits: Limits,
    now: u64,
    plan: Option<PlanSeen>,
    result: Option<Value>,
    /// The revision at which it was written; what else was written at that revision belongs to it.
    result_at: i64,
    budget: Budget,
    /// Living workers: serial number -> node, generation, rank.
    alive: BTreeMap<u64, (String, u64, u64)>,
    /// Workers of each generation that ended well.
    ended_well: BTreeMap<u64, BTreeSet<u64>>,
    /// Generations in which something was done that may end them; the ranks that were hit, if it
    /// was ranks.
    causes: BTreeMap<u64, BTreeSet<Option<u64>>>,
    /// Keepers that are no more: node and incarnation.
    dead_keepers: BTreeSet<(String, u64)>,
    restarts_asked: BTreeSet<u64>,
    end_asked: bool,
    /// Keepers with workers that SIGKILL did not end.
    stuck_keepers: BTreeSet<(String, u64)>,
    /// When each node's wish that the job end came into the store.
    stops_recorded: BTreeMap<String, u64>,
    /// Until when the leader may be behind, because of the store.
    lagging_until: u64,
    finished: BTreeMap<String, i64>,
}

type Checked = Result<(), Violation>;

impl Checker {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            now: 0,
            plan: None,
            result: None,
            result_at: 0,
            budget: Budget::new(limits.max_restarts),
            alive: BTreeMap::new(),
            ended_well: BTreeMap::new(),
            causes: BTreeMap::new(),
            dead_keepers: BTreeSet::new(),
            restarts_asked: BTreeSet::new(),
            end_asked: false,
            stuck_keepers: BTreeSet::new(),
            stops_recorded: BTreeMap::new(),
            lagging_until: 0,
            finished: BTreeMap::new(),
        }
    }

    pub(crate) fn at(&mut self, now: u64) {
        self.now = now;
    }

    pub(crate) fn violation<T>(&self, rule: &'static str, message: String) -> Result<T, Violation> {
        Err(Violation {
            rule,
            message,
            at: self.now,
        })
    }

    // --- what the world tells ---

    /// A worker process has come into being.
    pub(crate) fn spawned(
        &mut self,
        serial: u64,
        node: &str,
        generation: u64,
        rank: u64,
    ) -> Checked {
        if self.result.is_some() {
            let message = format!(
                "rank {rank} of generation {generation} was started on {node} after the end of the job"
            );
            return self.violation("terminal", message);
        }
        for (other_node, other_generation, other_rank) in self.alive.values() {
            if *other_generation == generation && *other_rank == rank {
                let message = format!(
                    "rank {rank} of generation {generation} was started on {node} and lives on {other_node}"
                );
                return self.violation("twin ranks", message);
            }
            if *other_generation != generation {
                let message = format!(
                    "rank {rank} of generation {generation} was started on {node} while rank {other_rank} of generation \
                     {other_generation} lives on {other_node}"
                );
                return self.violation("generations overlap", message);
            }
        }
        self.alive
            .insert(serial, (node.to_owned(), generation, rank));
        Ok(())
    }

    /// A worker process runs no more instructions: it is dead, or SIGKILL is on it.
    pub(crate) fn ended(&mut self, serial: u64, well: bool) {
        if let Some((_, generation, rank)) = self.alive.remove(&serial)
            && well
        {
            self.ended_well.entry(generation).or_default().insert(rank);
        }
    }

    /// Something was done to the generation that may end it.
    pub(crate) fn cause(&mut self, generation: u64, rank: Option<u64>) {
        self.causes.entry(generation).or_default().insert(rank);
    }

    pub(crate) fn keeper_died(&mut self, node: &str, incarnation: u64) {
        self.dead_keepers.insert((node.to_owned(), incarnation));
        // What only this node knew may be forgotten.
        self.stops_recorded.remove(node);
    }

    pub(crate) fn restart_asked(&mut self, generation: u64) {
        self.restarts_asked.insert(generation);
        // The request may be about the generation that is on its way.
        let published = self.plan.as_ref().map_or(0, |plan| plan.generation);
        self.restarts_asked.insert(published);
    }

    pub(crate) fn end_asked(&mut self) {
        self.end_asked = true;
    }

    /// The keeper has given up on a worker that survived SIGKILL.
    pub(crate) fn stuck(&mut self, node: &str, incarnation: u64) {
        self.stuck_keepers.insert((node.to_owned(), incarnation));
    }

    /// Nobody hears from the store for so long.
    pub(crate) fn store_silent(&mut self, micros: u64) {
        self.lagging_until = self.lagging_until.max(self.now + micros + HEEDED_WITHIN);
    }

    pub(crate) fn agent_died(&mut self) {
        self.budget.agent_died();
    }

    pub(crate) fn step(&mut self, generation: u64, step: u64) {
        self.budget.step(generation, step);
    }

    /// A member has left, with this exit code.
    pub(crate) fn finished(&mut self, node: &str, exit_code: i64) -> Checked {
        let alive = self.alive.values().find(|(of, ..)| of == node);
        if let Some((_, generation, rank)) = alive {
            let message =
                format!("{node} left while rank {rank} of generation {generation} was alive on it");
            return self.violation("left too early", message);
        }
        self.finished.insert(node.to_owned(), exit_code);
        Ok(())
    }

    /// The store has changed: `None` for a key that is gone.
    pub(crate) fn stored(&mut self, revision: i64, key: &str, value: Option<&str>) -> Checked {
        let name = key.splitn(4, '/').nth(3).unwrap_or_default();
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
        match (name, value.map(read)) {
            ("job/plan", Some(plan)) => self.plan_stored(revision, &plan),
            ("job/ledger", Some(ledger)) => self.ledger_stored(revision, &ledger),
            ("job/result", Some(result)) => self.result_stored(revision, result),
            ("job/plan" | "job/ledger" | "job/result" | "job/spec", None) => {
                self.violation("record lost", format!("{key} was deleted"))
            }
            (member, record) if member.starts_with("members/") => {
                self.member_stored(&member["members/".len()..], record.as_ref());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The end of the simulation, with the nodes that are up.
    pub(crate) fn finally(&self, up: &[String]) -> Checked {
        let Some(result) = &self.result else {
            return self.violation("liveness", "the job has not ended".to_owned());
        };
        for node in up {
            match self.finished.get(node) {
                None => {
                    let message = format!("{node} has not learnt that the job has ended");
                    return self.violation("liveness", message);
                }
                Some(code) if *code != exit_code(result) => {
                    let message = format!("{node} left with {code}, the job's result is {result}");
                    return self.violation("one result", message);
                }
                Some(_) => {}
            }
        }
        if let Some((node, generation, rank)) = self.alive.values().next() {
            let message =
                format!("rank {rank} of generation {generation} is still alive on {node}");
            return self.violation("left behind", message);
        }
        Ok(())
    }

    /// How the job ended: its outcome in the store's words.
    pub(crate) fn outcome(&self) -> &str {
        let result = self.result.as_ref();
        result
            .and_then(|result| result["outcome"].as_str())
            .unwrap_or("none")
    }

    pub(crate) fn generations(&self) -> u64 {
        self.plan.as_ref().map_or(0, |plan| plan.generation)
    }

    // --- rules about the records ---

    fn plan_stored(&mut self, revision: i64, value: &Value) -> Checked {
        let Some(plan) = read_plan(value) else {
            return self.violation("plan", format!("this is no plan: {value}"));
        };
        if self.ended_before(revision) {
            return self.violation(
                "terminal",
                "a plan was written after the end of the job".to_owned(),
            );
        }
        if let Err(message) = plan.ranks_are_whole(self.limits.min_nodes, self.limits.max_nodes) {
            return self.violation("ranks", message);
        }
        let before = self.plan.take();
        let generation = before.as_ref().map_or(0, |plan| plan.generation);
        match before {
            Some(before) if plan.generation == generation => {
                if let Err(message) = before.may_become(&plan) {
                    return self.violation("one plan a generation", message);
                }
                if plan.drains && !before.drains {
                    self.must_have_cause(generation, &before, "was drained")?;
                }
            }
            before if plan.generation == generation + 1 => {
                let stuck = plan
                    .keepers()
                    .find(|keeper| self.stuck_keepers.contains(keeper));
                if let Some((node, _)) = stuck {
                    let message =
                        format!("{node} got ranks again though a worker on it cannot be killed");
                    return self.violation("bad node", message);
                }
                self.stops_are_heeded(&format!("generation {} was begun", plan.generation))?;
                if let Some(before) = before {
                    self.must_have_cause(generation, &before, "was succeeded by another")?;
                    let asked = self.restarts_asked.contains(&generation);
                    if let Err(message) = self.budget.restart(generation, asked) {
                        return self.violation("restart budget", message);
                    }
                }
            }
            _ => {
                let message = format!(
                    "the plan of generation {generation} was followed by that of {}",
                    plan.generation
                );
                return self.violation("generations grow by one", message);
            }
        }
        self.plan = Some(plan);
        Ok(())
    }

    /// A wish to stop that was once in the store holds, even when the record that held it dies with its lease.
    fn member_stored(&mut self, node: &str, record: Option<&Value>) {
        if record.is_some_and(|record| record["request"]["kind"]["stop"].is_object()) {
            self.stops_recorded
                .entry(node.to_owned())
                .or_insert(self.now);
        }
    }

    /// What is in the store has been seen by the leader, soon.
    fn stops_are_heeded(&self, what: &str) -> Checked {
        let old = |at: u64| at + HEEDED_WITHIN < self.now && self.lagging_until < self.now;
        match self.stops_recorded.iter().find(|(_, at)| old(**at)) {
            None => Ok(()),
            Some((node, _)) => {
                let message = format!("{node} had asked for the end, but {what}");
                self.violation("stop forgotten", message)
            }
        }
    }

    fn must_have_cause(&self, generation: u64, plan: &PlanSeen, what: &str) -> Checked {
        let died = plan
            .keepers()
            .any(|keeper| self.dead_keepers.contains(keeper));
        let asked = self.end_asked || self.restarts_asked.contains(&generation);
        if died || asked || self.causes.contains_key(&generation) {
            return Ok(());
        }
        self.violation(
            "false alarm",
            format!("generation {generation} {what}, but nothing had happened to it"),
        )
    }

    fn ledger_stored(&mut self, revision: i64, value: &Value) -> Checked {
        if self.ended_before(revision) {
            let message = "the ledger was written after the end of the job".to_owned();
            return self.violation("terminal", message);
        }
        let charged = value["restarts_charged"].as_u64().unwrap_or(u64::MAX);
        let used = value["restarts_used"].as_u64().unwrap_or(u64::MAX);
        let judged = value["judged"].as_u64().unwrap_or(u64::MAX);
        match self.budget.ledger(charged, used, judged) {
            Ok(()) => Ok(()),
            Err(message) => self.violation("charged once", message),
        }
    }
}
