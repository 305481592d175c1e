// SPDX-License-Identifier: Apache-2.0
//! A simulated job: nodes, a store, messages that take their time. One queue of events, one source of chance.

mod agents;
mod answers;
mod calls;
mod faults;
mod fences;
mod keepers;
mod leading;
mod looking;
mod outages;
mod saving;
mod training;
mod watches;

use std::collections::BTreeMap;
use std::rc::Rc;

use steadfast_core::{ChangeBatch, Keys, NodeName};

use crate::checker::{Author, Checker, Limits, Violation};
use crate::clock::Clock;
use crate::etcd::Etcd;
use crate::event::Event;
use crate::node::{Keeper, Links, Node};
use crate::queue::Queue;
use crate::random::Random;
use crate::schedule::Schedule;
use saving::Saving;
use training::Training;

/// Virtual microseconds in a millisecond.
pub(crate) const MS: u64 = 1_000;
/// More events than any honest schedule needs, for each node.
const MOST_EVENTS_PER_NODE: u64 = 60_000;
/// How long after everything is well the job may take for what the product's own patience does not explain.
const CONVERGENCE: u64 = 120_000 * MS;

/// What came of a simulated job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ending {
    /// The result's outcome; "abandoned" when no node was left to give one.
    pub(crate) outcome: String,
    pub(crate) generations: u64,
    pub(crate) events: u64,
    /// Virtual microseconds until the end.
    pub(crate) took: u64,
    /// How many faults of each kind found something to hit.
    pub(crate) landed: BTreeMap<&'static str, u64>,
}

/// Messages that were sent, for the bill of a recovery.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Transactions, reads, and requests about leases.
    pub(crate) writes: u64,
    pub(crate) reads: u64,
    pub(crate) lease_calls: u64,
    /// Batches of changes that were sent to watchers.
    pub(crate) changes: u64,
    /// What agents send to the leader's agent.
    pub(crate) digests: u64,
}

impl Traffic {
    /// What was sent since then.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            writes: self.writes - before.writes,
            reads: self.reads - before.reads,
            lease_calls: self.lease_calls - before.lease_calls,
            changes: self.changes - before.changes,
            digests: self.digests - before.digests,
        }
    }
}

/// The world of one job.
#[derive(Debug)]
pub(crate) struct World {
    schedule: Schedule,
    random: Random,
    now: u64,
    queue: Queue<Event>,
    numbers: u64,
    serial: u64,
    keys: Keys,
    common: String,
    etcd: Etcd,
    /// What watchers of the common keys get, in order.
    common_log: Vec<Rc<ChangeBatch>>,
    outage: Outage,
    /// Pairs of nodes between which data get lost, and until when.
    cuts: Vec<(usize, usize, u64)>,
    healed: bool,
    nodes: Vec<Node>,
    training: Training,
    saving: Saving,
    checker: Checker,
    landed: BTreeMap<&'static str, u64>,
    traffic: Traffic,
    /// Restarts that have begun, for faults that wait for one.
    restarts: u32,
    events: u64,
    trace: Option<Vec<String>>,
}

/// What is wrong with the store.
#[derive(Debug, Default, Clone, Copy)]
struct Outage {
    down_until: u64,
    slow_until: u64,
    slow_way_ms: u64,
    stale_until: u64,
    stale_behind: i64,
}

type Checked = Result<(), Violation>;

impl World {
    pub(crate) fn new(schedule: Schedule, traced: bool) -> Self {
        let mut random = Random::new(schedule.seed ^ 0x5eed_0000_0000_0000);
        let drifts = schedule.pace.clocks_drift;
        let nodes = (0..schedule.all_nodes())
            .map(|index| new_node(index, Clock::draw(&mut random, drifts)))
            .collect();
        let checker = Checker::new(Limits::of(&schedule));
        let keys = Keys::new("simulated");
        Self {
            random,
            now: 0,
            queue: Queue::new(),
            numbers: 0,
            serial: 0,
            common: keys.common(),
            keys,
            etcd: Etcd::default(),
            common_log: Vec::new(),
            outage: Outage::default(),
            cuts: Vec::new(),
            healed: false,
            nodes,
            training: Training::default(),
            saving: Saving::default(),
            checker,
            landed: BTreeMap::new(),
            traffic: Traffic::default(),
            restarts: 0,
            events: 0,
            trace: traced.then(Vec::new),
            schedule,
        }
    }

    /// Runs the job to its end.
    pub(crate) fn run(mut self) -> (Result<Ending, Violation>, Vec<String>) {
        self.begin();
        let ending = self.run_to_end();
        if let Err(violation) = &ending {
            let line = format!("BROKEN {}: {}", violation.rule, violation.message);
            self.note(|| line);
        }
        (ending, self.trace.unwrap_or_default())
    }

    /// Puts what will happen into the queue.
    pub(crate) fn begin(&mut self) {
        for index in 0..self.schedule.shape.nodes as usize {
            let delay = self.random.between(0, 2_000 * MS);
            self.after(delay, Event::NodeReturns(index));
        }
        for index in 0..self.schedule.faults.len() {
            let fault = self.schedule.faults[index];
            if fault.in_restart.is_none() {
                self.at(fault.at_ms * MS, Event::Fault(index));
            }
        }
        self.at(self.schedule.heal_ms * MS, Event::Heal);
    }

    fn run_to_end(&mut self) -> Result<Ending, Violation> {
        let shape = &self.schedule.shape;
        let patience = shape.wait_for_nodes_ms + shape.shrink_after_ms;
        let work = shape.steps * self.schedule.pace.step_ms + shape.steps * shape.evaluation_ms;
        let stops = 4 * self.schedule.pace.stop_grace_ms;
        let deadline =
            (self.schedule.heal_ms + 2 * patience + 4 * work + stops) * MS + 4 * CONVERGENCE;
        let most = MOST_EVENTS_PER_NODE * self.nodes.len() as u64;
        while self.now <= deadline && self.events < most && !self.is_over() {
            if !self.turn()? {
                break;
            }
        }
        let there = |index: &usize| self.nodes[*index].served || self.nodes[*index].left;
        let nodes: Vec<_> = (0..self.nodes.len()).filter(there).collect();
        if nodes.is_empty() {
            return Ok(self.ending("abandoned"));
        }
        if let Err(mut violation) = self.checker.finally(&nodes) {
            violation.message = format!("{}; {}", violation.message, self.states());
            return Err(violation);
        }
        let outcome = self.checker.outcome().to_owned();
        Ok(self.ending(&outcome))
    }

    /// One event. Says whether there was one.
    pub(crate) fn turn(&mut self) -> Result<bool, Violation> {
        let Some((at, event)) = self.queue.pop() else {
            return Ok(false);
        };
        self.now = at;
        let Some(event) = self.unless_asleep(event) else {
            return Ok(true);
        };
        self.events += 1;
        self.checker.at(at)?;
        self.handle(event)?;
        Ok(true)
    }

    fn handle(&mut self, event: Event) -> Checked {
        match event {
            Event::Fault(index) => self.fault(index),
            Event::Heal => self.heal(),
            Event::Mended => self.mended(),
            Event::StoreBack => self.store_back(),
            Event::NodeReturns(node) => self.node_returns(node),
            Event::NodeWakes(node) => self.node_wakes(node),
            Event::AgentWakes(address) => self.agent_wakes(address),
            Event::AgentStarts(node, incarnation) => self.agent_starts(node, incarnation),
            Event::Watchdog(address) => self.watchdog(address),
            Event::Arrives(call) => self.arrives(call),
            Event::LateWrite(call) => self.arrives_late(&call),
            Event::Answered(call, answer) => self.answered(*call, answer),
            Event::LeaseDue(lease) => self.lease_due(lease),
            Event::Changed(address, scope, number, batch) => {
                self.changed(address, scope, number, batch)
            }
            Event::Looks(address, number) => self.looks(address, number),
            Event::Revoked(lease) => self.end_lease(lease, &Author::Member),
            Event::Missed(address, scope, number) => self.missed(address, scope, number),
            Event::Timer(address, at) => self.timer(address, at),
            Event::Digests(address) => self.digests(address),
            Event::LooksAround(address) => self.looks_around(address),
            Event::LookEnds(address) => self.look_ends(address),
            Event::ToKeeper(address, command, tenure) => {
                self.command(address.node, *command, tenure)
            }
            Event::ToAgent(address, event) => self.heard(address, *event),
            Event::Stepped(address, generation, step) => self.stepped(address, generation, step),
            Event::Death(node, serial, exit, role) => self.death(node, serial, exit, role),
            Event::Reaped(node, serial, exit, died, role) => {
                self.reaped(node, serial, exit, died, role)
            }
            Event::Understood(node, event) => {
                self.say(node, *event);
                Ok(())
            }
            Event::Unhangs(node, serial) => self.unhangs(node, serial),
            Event::GraceOver(node, generation) => self.grace_over(node, generation),
            Event::GivesUp(node, generation) => self.gives_up(node, generation),
            Event::FenceDue(node, incarnation) => self.fence_due(node, incarnation),
            Event::Ready(node, generation) => self.ready(node, generation),
            Event::Step(generation, alone) => self.step(generation, alone),
        }
    }

    /// The event, unless that to which it happens stands still; then it is kept until that goes on.
    fn unless_asleep(&mut self, event: Event) -> Option<Event> {
        let (index, life) = match &event {
            Event::Answered(call, _) => (call.from.node, Some(call.from.life)),
            Event::Changed(address, ..)
            | Event::Missed(address, ..)
            | Event::Looks(address, _)
            | Event::Timer(address, _)
            | Event::Digests(address)
            | Event::LooksAround(address)
            | Event::LookEnds(address)
            | Event::ToAgent(address, _)
            | Event::Stepped(address, ..) => (address.node, Some(address.life)),
            Event::ToKeeper(address, ..) | Event::Watchdog(address) => (address.node, None),
            Event::AgentStarts(node, _)
            | Event::Death(node, ..)
            | Event::Reaped(node, ..)
            | Event::Understood(node, _)
            | Event::GraceOver(node, _)
            | Event::GivesUp(node, _)
            | Event::FenceDue(node, _)
            | Event::Ready(node, _) => (*node, None),
            _ => return Some(event),
        };
        let now = self.now;
        let node = &mut self.nodes[index];
        if node.is_paused(now) {
            node.kept.push(event);
            return None;
        }
        let current = life == Some(node.life);
        let agent = node.agent.as_mut().filter(|_| current);
        match agent.filter(|agent| now < agent.paused_until) {
            Some(agent) => {
                agent.kept.push(event);
                None
            }
            None => Some(event),
        }
    }

    // --- the queue ---

    fn at(&mut self, at: u64, event: Event) {
        self.queue.push(at.max(self.now), event);
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.queue.push(self.now + delay, event);
    }

    /// A delay of up to so many milliseconds; now and then it is much shorter than usual.
    fn delay(&mut self, most_ms: u64) -> u64 {
        if self.random.chance(20) {
            return self.random.between(1, 200);
        }
        self.random.between(100, most_ms.max(1) * MS)
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let (seconds, micros) = (self.now / 1_000_000, self.now % 1_000_000);
            trace.push(format!("{seconds:>5}.{micros:06} {}", line()));
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.landed.entry(what).or_default() += 1;
    }

    // --- the end ---

    /// Whether nothing can change any more: everybody has left, or nobody is there and nobody will come.
    fn is_over(&self) -> bool {
        self.healed && self.nodes.iter().all(|node| !node.served)
            || self.checker.has_ended() && self.nodes.iter().all(|node| node.left || !node.served)
    }

    fn ending(&self, outcome: &str) -> Ending {
        Ending {
            outcome: outcome.to_owned(),
            generations: self.checker.generations(),
            events: self.events,
            took: self.now,
            landed: self.landed.clone(),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// Whether a generation of at least that number has made a step.
    pub(crate) fn has_stepped_in(&self, generation: u64) -> bool {
        self.training.has_stepped_in(generation)
    }

    /// A rule is broken, for a reason that only the caller knows.
    pub(crate) fn lost<T>(&self, rule: &'static str, message: &str) -> Result<T, Violation> {
        let message = format!("{message}; {}", self.states());
        self.checker.violation(rule, message)
    }

    /// What every machine says that it waits for; the first few of them.
    fn states(&self) -> String {
        let mut parts = Vec::new();
        for node in self.nodes.iter().take(12) {
            let agent = node.agent.as_ref();
            let session = agent.and_then(|agent| agent.session.as_ref());
            let text = match session {
                Some(session) => {
                    format!("{:?}, {}", session.member.state(), session.member.reason())
                }
                None if !node.up => "down".to_owned(),
                None if node.left => "left".to_owned(),
                None => "no member".to_owned(),
            };
            parts.push(format!("{}: {text}", node.name));
            if let Some(leader) = session.and_then(|session| session.leader.as_ref()) {
                let (state, reason) = (leader.state(), leader.reason());
                parts.push(format!("leader on {}: {state:?}, {reason}", node.name));
            }
        }
        parts.join("; ")
    }
}

fn new_node(index: u32, clock: Clock) -> Node {
    Node {
        name: NodeName(format!("node-{index}")),
        clock,
        up: true,
        boot: 1,
        paused_until: 0,
        kept: Vec::new(),
        incarnation: 0,
        served: false,
        keeper: Keeper {
            next_port: 20_000 + u16::try_from(index % 40_000).unwrap_or(0),
            ..Keeper::default()
        },
        agent: None,
        life: 0,
        returning: false,
        left: false,
        link_busy: [0; 2],
        links: Links::default(),
        unfit_until: 0,
        seen_unfit: false,
        looked_at: false,
    }
}
