// SPDX-License-Identifier: Apache-2.0
//! What must never happen. Knows the truth of the simulated world and reads the store's JSON by itself; it shares no code
//! and no type with what it judges, save the store's own `KeyValue`.

mod budget;
mod causes;
mod plans;
mod records;
mod results;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::schedule::{Growth, Schedule};
use budget::Budget;
use causes::Causes;
use plans::PlanSeen;
use results::exit_code;

/// How long SIGKILL may take to work, and a little more, in virtual microseconds.
const TIME_TO_KILL: u64 = 600_000;
/// What the simulation writes as the reason of everything that an operator asks for.
const ASKED: &str = "asked in a simulation";

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

/// Who has written something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Author {
    Member,
    /// A leader that believes to be in the office that was won at this revision.
    Leader {
        node: usize,
        epoch: i64,
        /// When it decided to, in virtual microseconds; the write may have been long on its way.
        decided: u64,
    },
    /// A lease has run out.
    Expiry,
    /// Somebody with a client of the store's own.
    Hand,
}

/// What the job was told to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    min_nodes: u64,
    max_nodes: u64,
    node_multiple: u64,
    max_restarts: u64,
    grows: bool,
    alone: bool,
    /// Exits are understood only after they were reported, maybe after the verdict: it may then blame a victim.
    late_evidence: bool,
    /// Answers of the store get lost, or take so long, that a lease may be lost without any fault.
    shaky_store: bool,
}

impl Limits {
    pub(crate) fn of(schedule: &Schedule) -> Self {
        let (shape, pace) = (&schedule.shape, &schedule.pace);
        Self {
            min_nodes: shape.min_nodes.into(),
            max_nodes: shape.max_nodes.into(),
            node_multiple: shape.node_multiple.into(),
            max_restarts: shape.max_restarts.into(),
            grows: shape.grow != Growth::Never,
            alone: schedule.is_alone(),
            late_evidence: pace.late_findings,
            shaky_store: pace.lost_percent > 0 || pace.store_ms * 6 > pace.witness_lease_ms,
        }
    }
}

/// A living worker.
#[derive(Debug, Clone, Copy)]
struct Alive {
    node: usize,
    generation: u64,
    rank: u64,
}

/// Watches one simulated job.
#[derive(Debug)]
pub(crate) struct Checker {
    limits: Limits,
    now: u64,
    plan: Option<PlanSeen>,
    drains: u32,
    result: Option<Value>,
    /// The revision at which it was written; what else was written at that revision belongs to it.
    result_at: i64,
    /// Who leads, by the store's record, and since which revision.
    office: Option<(usize, i64)>,
    /// When the leader decided on what is being written.
    decided: u64,
    budget: Budget,
    /// A generation that was succeeded at that revision; free if that costs nothing.
    succeeded: Option<(i64, u64, bool)>,
    alive: BTreeMap<u64, Alive>,
    /// Serial numbers of the living workers of each generation.
    generations: BTreeMap<u64, BTreeSet<u64>>,
    ranks: BTreeSet<(u64, u64)>,
    newest_started: u64,
    paused: BTreeSet<usize>,
    /// Nodes that went on a moment ago, and when.
    woke_at: BTreeMap<usize, u64>,
    /// Workers of old generations that have woken up, and when they must be gone.
    woken: Vec<(u64, u64)>,
    /// Workers of each generation that ended well.
    ended_well: BTreeMap<u64, BTreeSet<u64>>,
    causes: Causes,
    /// Keepers with workers that SIGKILL did not end.
    stuck_keepers: BTreeSet<(String, u64)>,
    /// When each node's wish that the job end came into the store.
    stops_recorded: BTreeMap<String, u64>,
    /// Nodes that have a record.
    registered: BTreeSet<String>,
    /// Something that an operator asked for is in the store.
    asked_is_stored: bool,
    /// Step of the newest checkpoint that was committed.
    committed: Option<u64>,
    /// Nodes whose record says that they are unfit, and since when it does.
    unfit: BTreeMap<String, u64>,
    /// A look has shown that a node is unfit.
    ever_unfit: bool,
    finished: BTreeMap<usize, (i64, String)>,
    late: BTreeSet<usize>,
}

pub(crate) type Checked = Result<(), Violation>;

impl Checker {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            now: 0,
            plan: None,
            drains: 0,
            result: None,
            result_at: 0,
            office: None,
            decided: 0,
            budget: Budget::new(limits.max_restarts),
            succeeded: None,
            alive: BTreeMap::new(),
            generations: BTreeMap::new(),
            ranks: BTreeSet::new(),
            newest_started: 0,
            paused: BTreeSet::new(),
            woke_at: BTreeMap::new(),
            woken: Vec::new(),
            ended_well: BTreeMap::new(),
            causes: Causes::new(limits.shaky_store),
            stuck_keepers: BTreeSet::new(),
            stops_recorded: BTreeMap::new(),
            registered: BTreeSet::new(),
            asked_is_stored: false,
            committed: None,
            unfit: BTreeMap::new(),
            ever_unfit: false,
            finished: BTreeMap::new(),
            late: BTreeSet::new(),
        }
    }

    /// A look has shown that a node is unfit on which that generation runs, or ran.
    pub(crate) fn seen_unfit(&mut self, generation: u64) {
        self.ever_unfit = true;
        self.causes.add(generation, None);
    }

    /// Time goes on. What had to happen until now has happened.
    pub(crate) fn at(&mut self, now: u64) -> Checked {
        self.now = now;
        self.causes.at(now);
        if self.woken.is_empty() {
            return Ok(());
        }
        let alive = &self.alive;
        self.woken.retain(|(serial, _)| alive.contains_key(serial));
        let overdue = self.woken.iter().find(|(_, until)| *until < now);
        if let Some(worker) = overdue.and_then(|(serial, _)| self.alive.get(serial)) {
            let message = format!(
                "node-{} was paused while the job went on without it, and is back, but rank {} of generation {} lives on",
                worker.node, worker.rank, worker.generation
            );
            return self.violation("zombie", message);
        }
        Ok(())
    }

    pub(crate) fn violation<T>(&self, rule: &'static str, message: String) -> Result<T, Violation> {
        Err(Violation {
            rule,
            message,
            at: self.now,
        })
    }

    // --- workers ---

    /// A worker process has come into being.
    pub(crate) fn spawned(
        &mut self,
        serial: u64,
        node: usize,
        generation: u64,
        rank: u64,
    ) -> Checked {
        if self.result.is_some() {
            let message = format!(
                "rank {rank} of generation {generation} was started on node-{node} after the end of the job"
            );
            return self.violation("terminal", message);
        }
        if self.ranks.contains(&(generation, rank)) {
            let message = format!(
                "rank {rank} of generation {generation} was started on node-{node} and lives already"
            );
            return self.violation("twin ranks", message);
        }
        for (other, serials) in &self.generations {
            if *other == generation {
                continue;
            }
            // Who stands still does nothing; what becomes of it when it wakes up is looked at then.
            let running = serials
                .iter()
                .filter_map(|serial| self.alive.get(serial))
                .find(|worker| !self.has_stood_still(worker.node));
            if let Some(worker) = running {
                let message = format!(
                    "rank {rank} of generation {generation} was started on node-{node} while rank {} of generation {other} \
                     lives on node-{}",
                    worker.rank, worker.node
                );
                return self.violation("generations overlap", message);
            }
        }
        self.newest_started = self.newest_started.max(generation);
        let long_ago = self.now.saturating_sub(TIME_TO_KILL);
        self.woke_at.retain(|_, at| *at > long_ago);
        for (node, since) in self.woke_at.clone() {
            self.must_end_soon(node, since);
        }
        self.ranks.insert((generation, rank));
        self.generations
            .entry(generation)
            .or_default()
            .insert(serial);
        let worker = Alive {
            node,
            generation,
            rank,
        };
        self.alive.insert(serial, worker);
        Ok(())
    }

    /// A worker process runs no more instructions: it is dead, or SIGKILL is on it.
    pub(crate) fn ended(&mut self, serial: u64, well: bool) {
        let Some(worker) = self.alive.remove(&serial) else {
            return;
        };
        self.ranks.remove(&(worker.generation, worker.rank));
        if let Some(serials) = self.generations.get_mut(&worker.generation) {
            serials.remove(&serial);
            if serials.is_empty() {
                self.generations.remove(&worker.generation);
            }
        }
        if well {
            let ended = self.ended_well.entry(worker.generation).or_default();
            ended.insert(worker.rank);
        }
    }

    fn living_on(&self, node: usize) -> Option<&Alive> {
        self.alive.values().find(|worker| worker.node == node)
    }

    /// Everything on the node stands still.
    pub(crate) fn paused(&mut self, node: usize) {
        self.paused.insert(node);
    }

    /// And goes on. Workers that the job has gone on without must be gone soon.
    pub(crate) fn woke(&mut self, node: usize) {
        self.paused.remove(&node);
        let (now, long_ago) = (self.now, self.now.saturating_sub(TIME_TO_KILL));
        self.woke_at.retain(|_, at| *at > long_ago);
        self.woke_at.insert(node, now);
        self.must_end_soon(node, now);
    }

    /// Whether the node stands still, or did a moment ago.
    fn has_stood_still(&self, node: usize) -> bool {
        let woke = self.woke_at.get(&node);
        self.paused.contains(&node) || woke.is_some_and(|at| self.now < at + TIME_TO_KILL)
    }

    fn must_end_soon(&mut self, node: usize, since: u64) {
        let until = since + TIME_TO_KILL;
        for (serial, worker) in &self.alive {
            if worker.node == node && worker.generation < self.newest_started {
                self.woken.push((*serial, until));
            }
        }
    }

    /// A lease has run out, and with it the node's record: its workers must be dead, or steps vouch for them.
    fn lease_ran_out(&self, node: usize, vouched: bool) -> Checked {
        // A machine that stood still past its fence needs a moment for it when it wakes.
        if self.has_stood_still(node) || vouched {
            return Ok(());
        }
        if let Some(worker) = self.living_on(node) {
            let message = format!(
                "the lease of node-{node} has run out while rank {} of generation {} lives on it, and no step vouches for it",
                worker.rank, worker.generation
            );
            return self.violation("fence", message);
        }
        Ok(())
    }

    /// The keeper kills its workers, which made their last step then, and whose steps vouch for them for so long.
    pub(crate) fn fenced(
        &mut self,
        node: usize,
        generation: u64,
        stepped: Option<u64>,
        window: u64,
    ) -> Checked {
        // A step that is just being made may not have come to this node's own worker.
        let witnessed = stepped
            .is_some_and(|at| at + TIME_TO_KILL < self.now && self.now < at + window / 100 * 98);
        if witnessed {
            let message = format!(
                "the workers of generation {generation} on node-{node} were killed while they made steps"
            );
            return self.violation("killed in training", message);
        }
        if !self.causes.is_disturbed() {
            let message = format!("node-{node} was fenced, but nothing was wrong");
            return self.violation("false alarm", message);
        }
        self.causes.add(generation, None);
        Ok(())
    }

    /// The keeper has given up on a worker that survived SIGKILL.
    pub(crate) fn stuck(&mut self, node: usize, incarnation: u64) {
        self.stuck_keepers
            .insert((format!("node-{node}"), incarnation));
    }

    /// An agent stops workers because somebody asked for it.
    pub(crate) fn stops_on_request(&self, node: usize, reason: &str) -> Checked {
        if reason == ASKED && !self.asked_is_stored && !self.causes.was_signalled(node) {
            let message = format!(
                "node-{node} stops its workers as it was asked to, but nobody could know that if it died now"
            );
            return self.violation("not durable", message);
        }
        Ok(())
    }

    // --- what else the world tells ---

    pub(crate) fn causes(&mut self) -> &mut Causes {
        &mut self.causes
    }

    pub(crate) fn keeper_died(&mut self, node: usize, incarnation: u64) {
        // What only this node knew may be forgotten.
        self.stops_recorded.remove(&format!("node-{node}"));
        self.causes.keeper_died(node, incarnation);
        self.paused.remove(&node);
    }

    /// A generation makes a step; `heard` if somebody can tell the leader.
    pub(crate) fn step(&mut self, generation: u64, step: u64, heard: bool) {
        self.budget.step(step);
        self.causes.step(generation, heard);
    }

    /// A worker that is cut off makes, at that time, the step that was on its way.
    pub(crate) fn step_of_one(&mut self, generation: u64, step: u64, at: u64) {
        self.budget.step(step);
        self.causes.step_of_one(generation, at);
    }

    pub(crate) fn restart_asked(&mut self, generation: u64) {
        // The request may be about the generation that is on its way.
        let published = self.plan.as_ref().map_or(0, |plan| plan.generation);
        self.causes.restart_asked(&[generation, published]);
    }

    /// The node's supervisor came when the job had ended.
    pub(crate) fn came_too_late(&mut self, node: usize) {
        self.late.insert(node);
    }

    /// A supervisor has ended, with this exit code and for this reason.
    pub(crate) fn finished(&mut self, node: usize, exit_code: i64, rule: &str) -> Checked {
        if let Some(worker) = self.living_on(node) {
            let message = format!(
                "node-{node} left while rank {} of generation {} was alive on it",
                worker.rank, worker.generation
            );
            return self.violation("left too early", message);
        }
        if rule == "left" && !self.causes.was_asked_to_leave(node) {
            let message = format!("node-{node} has left, but nobody had asked it to");
            return self.violation("left too early", message);
        }
        if rule == "refused" && !self.causes.is_disturbed() {
            let message = format!("node-{node} was refused, but nothing was wrong");
            return self.violation("refused", message);
        }
        self.finished.insert(node, (exit_code, rule.to_owned()));
        Ok(())
    }

    /// The end of the simulation, with the nodes that have or had a supervisor.
    pub(crate) fn finally(&self, nodes: &[usize]) -> Checked {
        let went = |node: &usize| {
            let rule = self.finished.get(node).map(|(_, rule)| rule.as_str());
            self.late.contains(node) || rule == Some("left") || rule == Some("refused")
        };
        if nodes.iter().all(went) {
            return Ok(());
        }
        let Some(result) = &self.result else {
            return self.violation("liveness", "the job has not ended".to_owned());
        };
        for node in nodes {
            if went(node) {
                continue;
            }
            match self.finished.get(node) {
                None => {
                    let message = format!("node-{node} has not learnt that the job has ended");
                    return self.violation("liveness", message);
                }
                Some((code, _)) if *code != exit_code(result) => {
                    let message =
                        format!("node-{node} left with {code}, the job's result is {result}");
                    return self.violation("one result", message);
                }
                Some(_) => {}
            }
        }
        if let Some(worker) = self.alive.values().next() {
            let message = format!(
                "rank {} of generation {} is still alive on node-{}",
                worker.rank, worker.generation, worker.node
            );
            return self.violation("left behind", message);
        }
        Ok(())
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.result.is_some()
    }

    /// How many times a generation was told to end.
    pub(crate) fn drains(&self) -> u32 {
        self.drains
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
}
