// SPDX-License-Identifier: Apache-2.0
//! Why a generation may end: what was really done to it, or asked of it.

use std::collections::{BTreeMap, BTreeSet};

/// For how long after it is over a disturbance explains what happens, in virtual microseconds: leases must run out, others
/// must be elected.
const AFTERMATH: u64 = 45_000_000;
/// Virtual microseconds within which the leader knows what is in the store.
const HEEDED_WITHIN: u64 = 5_000_000;

/// How late the leader may hear of a step, in virtual microseconds.
const HEARD_WITHIN: u64 = 1_000_000;

/// What has happened.
#[derive(Debug)]
pub(crate) struct Causes {
    now: u64,
    shaky_store: bool,
    /// Generations in which something was done that may end them; the ranks that were hit, if it was ranks.
    done: BTreeMap<u64, BTreeSet<Option<u64>>>,
    /// Keepers that are no more: node and incarnation.
    dead_keepers: BTreeSet<(usize, u64)>,
    restarts_asked: BTreeSet<u64>,
    end_asked: bool,
    leaves_asked: BTreeSet<usize>,
    /// Nodes whose supervisor got a signal: its keeper remembers it, whatever becomes of the agent.
    signalled: BTreeSet<usize>,
    disturbed_until: u64,
    ever_disturbed: bool,
    /// Until when the leader may be behind.
    lagging_until: u64,
    /// When each generation made those steps as a whole that somebody could tell the leader of.
    steps: BTreeMap<u64, Vec<u64>>,
    /// When something began that can keep news from the leader.
    disturbances: Vec<u64>,
    /// When any of its workers did.
    latest: BTreeMap<u64, u64>,
}

impl Causes {
    pub(super) fn new(shaky_store: bool) -> Self {
        Self {
            now: 0,
            shaky_store,
            done: BTreeMap::new(),
            dead_keepers: BTreeSet::new(),
            restarts_asked: BTreeSet::new(),
            end_asked: false,
            leaves_asked: BTreeSet::new(),
            signalled: BTreeSet::new(),
            disturbed_until: 0,
            ever_disturbed: false,
            lagging_until: 0,
            steps: BTreeMap::new(),
            disturbances: Vec::new(),
            latest: BTreeMap::new(),
        }
    }

    pub(super) fn at(&mut self, now: u64) {
        self.now = now;
    }

    /// Something was done to the generation that may end it.
    pub(crate) fn add(&mut self, generation: u64, rank: Option<u64>) {
        self.done.entry(generation).or_default().insert(rank);
    }

    /// A link, a clock, an agent or the store is not well for so long.
    pub(crate) fn disturbed(&mut self, micros: u64) {
        self.disturbances.push(self.now);
        let until = self.now + micros;
        self.ever_disturbed = true;
        self.disturbed_until = self.disturbed_until.max(until + AFTERMATH);
        self.lagging_until = self.lagging_until.max(until + AFTERMATH);
    }

    pub(super) fn keeper_died(&mut self, node: usize, incarnation: u64) {
        self.dead_keepers.insert((node, incarnation));
        self.disturbed(0);
    }

    pub(super) fn restart_asked(&mut self, generations: &[u64]) {
        self.restarts_asked.extend(generations);
    }

    pub(crate) fn end_asked(&mut self) {
        self.end_asked = true;
    }

    pub(crate) fn leave_asked(&mut self, node: usize) {
        self.leaves_asked.insert(node);
    }

    /// All workers of the generation make a step.
    pub(super) fn step(&mut self, generation: u64, heard: bool) {
        if heard {
            self.steps.entry(generation).or_default().push(self.now);
        }
        self.step_of_one(generation, self.now);
    }

    /// A worker that was cut off makes, at that time, the step that was on its way.
    pub(super) fn step_of_one(&mut self, generation: u64, at: u64) {
        let last = self.latest.entry(generation).or_default();
        *last = at.max(*last);
    }

    pub(super) fn is_disturbed(&self) -> bool {
        self.shaky_store || self.now < self.disturbed_until
    }

    pub(super) fn was_ever_disturbed(&self) -> bool {
        self.shaky_store || self.ever_disturbed
    }

    /// The supervisor of the node got a signal that asks it to end.
    pub(crate) fn signalled(&mut self, node: usize) {
        self.signalled.insert(node);
    }

    pub(super) fn was_signalled(&self, node: usize) -> bool {
        self.signalled.contains(&node)
    }

    pub(super) fn was_asked_to_end(&self) -> bool {
        self.end_asked
    }

    pub(super) fn was_asked_to_restart(&self, generation: u64) -> bool {
        self.restarts_asked.contains(&generation)
    }

    pub(super) fn was_asked_to_leave(&self, node: usize) -> bool {
        self.leaves_asked.contains(&node)
    }

    pub(super) fn anybody_leaves(&self) -> bool {
        !self.leaves_asked.is_empty()
    }

    pub(super) fn is_dead(&self, node: usize, incarnation: u64) -> bool {
        self.dead_keepers.contains(&(node, incarnation))
    }

    pub(super) fn hit(&self, generation: u64) -> Option<&BTreeSet<Option<u64>>> {
        self.done.get(&generation)
    }

    /// When a worker of the generation made its last step.
    pub(super) fn last_step(&self, generation: u64) -> Option<u64> {
        self.latest.get(&generation).copied()
    }

    /// Whether the leader should know by now what came into the store at that time.
    pub(super) fn is_known(&self, at: u64) -> bool {
        at + HEEDED_WITHIN < self.now && self.lagging_until < self.now
    }

    /// Whether steps of the generation that the leader must have heard of at that time were so young then that its workers
    /// were known to live.
    pub(super) fn is_vouched_for(&self, generation: u64, window: u64, decided: u64) -> bool {
        let steps = self.steps.get(&generation).map_or(&[][..], Vec::as_slice);
        let heard = steps.partition_point(|at| at + HEARD_WITHIN <= decided);
        // News may have been on its way still when the leader became deaf, or the node mute.
        let came_through = |at: &&u64| {
            let under_way = **at..=**at + HEARD_WITHIN;
            !self
                .disturbances
                .iter()
                .any(|began| under_way.contains(began))
        };
        let last = steps[..heard].iter().rev().find(came_through);
        last.is_some_and(|at| decided < at + window)
    }
}
