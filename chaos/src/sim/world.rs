// SPDX-License-Identifier: Apache-2.0
//! A simulated job: nodes, a store, messages that take their time. One queue of events, one source
//! of chance.

mod agents;
mod faults;
mod keepers;
mod store_calls;
mod training;

use std::collections::BTreeMap;

use steadfast_core::{Keys, LeaseId, NodeName};

use super::checker::{Checker, Limits, Violation};
use super::event::Event;
use super::node::{Keeper, Node};
use super::plant::Plant;
use super::schedule::Schedule;
use super::store::Store;
use crate::random::Random;
use training::Training;

/// Virtual microseconds in a millisecond.
pub(super) const MS: u64 = 1_000;
/// How long after the last fault the job may take to end. Longer than every time-out of the leader
/// together.
const QUIET_BOUND: u64 = 3_600_000 * MS;
/// More events than any honest schedule needs.
const MOST_EVENTS: u64 = 400_000;

/// What came of a simulated job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ending {
    /// The result's outcome; "abandoned" when no node was left to give one.
    pub(crate) outcome: String,
    pub(crate) generations: u64,
    pub(crate) events: u64,
    /// How many faults of each kind found something to hit.
    pub(crate) landed: BTreeMap<&'static str, u64>,
}

/// The world of one job.
#[derive(Debug)]
pub(crate) struct World {
    schedule: Schedule,
    plant: Option<Plant>,
    random: Random,
    now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    serial: u64,
    next_lease: i64,
    keys: Keys,
    store: Store,
    store_down_until: u64,
    nodes: Vec<Node>,
    training: Training,
    checker: Checker,
    landed: BTreeMap<&'static str, u64>,
    planted: bool,
    trace: Option<Vec<String>>,
}

type Checked = Result<(), Violation>;

impl World {
    pub(crate) fn new(schedule: Schedule, plant: Option<Plant>, traced: bool) -> Self {
        let mut random = Random::new(schedule.seed ^ 0x5eed_0000_0000_0000);
        let nodes = (0..schedule.shape.nodes)
            .map(|index| new_node(index, &mut random))
            .collect();
        let limits = Limits {
            min_nodes: schedule.shape.min_nodes.into(),
            max_nodes: schedule.shape.max_nodes.into(),
            max_restarts: schedule.shape.max_restarts.into(),
            late_evidence: schedule.pace.late_findings,
        };
        Self {
            plant,
            random,
            now: 0,
            queue: BTreeMap::new(),
            sequence: 0,
            serial: 0,
            next_lease: 1_000,
            keys: Keys::new("simulated"),
            store: Store::new(plant),
            store_down_until: 0,
            nodes,
            training: Training::default(),
            checker: Checker::new(limits),
            landed: BTreeMap::new(),
            planted: false,
            trace: traced.then(Vec::new),
            schedule,
        }
    }

    /// Runs the job to its end.
    pub(crate) fn run(mut self) -> (Result<Ending, Violation>, Vec<String>) {
        let ending = self.run_to_end();
        if let Err(violation) = &ending {
            let line = format!("BROKEN {}: {}", violation.rule, violation.message);
            self.note(|| line);
        }
        (ending, self.trace.unwrap_or_default())
    }

    fn run_to_end(&mut self) -> Result<Ending, Violation> {
        for index in 0..self.nodes.len() {
            let delay = self.random.between(0, 2_000 * MS);
            self.after(delay, Event::AgentStarts(index));
        }
        for index in 0..self.schedule.faults.len() {
            let at = self.schedule.faults[index].at_ms * MS;
            self.at(at, Event::Fault(index));
        }
        let deadline = self.last_fault() + QUIET_BOUND;
        let mut events = 0;
        while let Some(((at, _), event)) = self.queue.pop_first() {
            if at > deadline || events > MOST_EVENTS || self.everybody_left() {
                break;
            }
            events += 1;
            self.now = at;
            self.checker.at(at);
            self.handle(event)?;
        }
        let up: Vec<_> = self.nodes.iter().filter(|node| node.up).collect();
        if up.is_empty() {
            return Ok(self.ending("abandoned", events));
        }
        let names: Vec<_> = up.iter().map(|node| node.name.0.clone()).collect();
        if let Err(mut violation) = self.checker.finally(&names) {
            violation.message = format!("{}; {}", violation.message, self.states());
            return Err(violation);
        }
        let outcome = self.checker.outcome().to_owned();
        Ok(self.ending(&outcome, events))
    }

    fn handle(&mut self, event: Event) -> Checked {
        match event {
            Event::Fault(index) => self.fault(index)?,
            Event::NodeReturns(node) => self.node_returns(node),
            Event::AgentStarts(node) => self.agent_starts(node),
            Event::ReadArrives(address) => self.read_arrives(address),
            Event::ReadAnswered(address, listing) => self.read_answered(address, listing)?,
            Event::WriteArrives(address, call, transaction) => {
                self.write_arrives(address, call, transaction)?;
            }
            Event::LateWrite(transaction) => {
                self.transact(&transaction)?;
            }
            Event::WriteAnswered(address, call, outcome) => {
                self.write_answered(address, call, outcome)?;
            }
            Event::ElectionArrives(address, transaction) => {
                self.election_arrives(address, &transaction)?;
            }
            Event::ElectionAnswered(address, won) => self.election_answered(address, won)?,
            Event::Candidacy(node, life) => self.candidacy(node, life),
            Event::Changed(address, watch, batch) => self.changed(address, watch, &batch)?,
            Event::Timer(address, at) => self.timer(address, at)?,
            Event::LeaseEnds(node, lease) => self.lease_ends(node, lease)?,
            Event::ToKeeper(node, _, command) => self.command(node, command)?,
            Event::ToAgent(node, life, event) => self.heard(node, life, event)?,
            Event::Death(node, serial, exit, role) => self.death(node, serial, exit, role),
            Event::Reaped(node, serial, exit, died, role) => {
                self.reaped(node, serial, exit, died, role);
            }
            Event::Understood(node, event) => self.say(node, event),
            Event::GraceOver(node, generation) => self.grace_over(node, generation),
            Event::GivesUp(node, generation) => self.gives_up(node, generation),
            Event::Step(generation) => self.step(generation),
        }
        Ok(())
    }

    // --- the queue ---

    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((at.max(self.now), self.sequence), event);
    }

    pub(super) fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    /// A delay of up to so many milliseconds; now and then it is much shorter than usual.
    pub(super) fn delay(&mut self, most_ms: u64) -> u64 {
        if self.random.chance(20) {
            return self.random.between(1, 200);
        }
        self.random.between(100, most_ms.max(1) * MS)
    }

    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let (seconds, micros) = (self.now / 1_000_000, self.now % 1_000_000);
            trace.push(format!("{seconds:>5}.{micros:06} {}", line()));
        }
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.landed.entry(what).or_default() += 1;
    }

    // --- the end ---

    fn everybody_left(&self) -> bool {
        let returns = self
            .queue
            .values()
            .any(|event| matches!(event, Event::NodeReturns(_)));
        let finished = self.nodes.iter().all(|node| node.left || !node.up);
        finished && !returns
    }

    fn last_fault(&self) -> u64 {
        self.schedule.faults.last().map_or(0, |fault| fault.at_ms) * MS
    }

    fn ending(&self, outcome: &str, events: u64) -> Ending {
        Ending {
            outcome: outcome.to_owned(),
            generations: self.checker.generations(),
            events,
            landed: self.landed.clone(),
        }
    }

    /// What every machine says that it waits for.
    fn states(&self) -> String {
        let mut parts = Vec::new();
        for node in &self.nodes {
            let agent = node.agent.as_ref();
            let member = agent.and_then(|agent| agent.member.as_ref());
            let text = match member {
                Some(member) => format!("{:?}, {}", member.state(), member.reason()),
                None if !node.up => "down".to_owned(),
                None if node.left => "left".to_owned(),
                None => "no member".to_owned(),
            };
            parts.push(format!("{}: {text}", node.name));
            if let Some(leader) = agent.and_then(|agent| agent.leader.as_ref()) {
                parts.push(format!(
                    "leader on {}: {:?}, {}",
                    node.name,
                    leader.state(),
                    leader.reason()
                ));
            }
        }
        parts.join("; ")
    }
}

fn new_node(index: u32, random: &mut Random) -> Node {
    Node {
        name: NodeName(format!("node-{index}")),
        clock_ahead: random.between(1_000 * MS, 10_000_000 * MS),
        up: true,
        incarnation: 1,
        lease: LeaseId(i64::from(index) + 1),
        lease_held: true,
        keeper: Keeper {
            next_port: 20_000 + u16::try_from(index % 40_000).unwrap_or(0),
            ..Keeper::default()
        },
        agent: None,
        life: 0,
        left: false,
        link_busy: [0; 2],
    }
}
