// SPDX-License-Identifier: Apache-2.0
//! The bill of one recovery in a large job: who asks the store for how much.

use std::io::{self, Write};

use crate::checker::Violation;
use crate::schedule::Schedule;
use crate::world::{Traffic, World};

/// One worker is killed, and the job restarts: what that took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recovery {
    nodes: u32,
    /// Virtual microseconds from the kill to the first step after it.
    took: u64,
    traffic: Traffic,
    events: u64,
}

impl Recovery {
    /// Runs a job of so many nodes until it has recovered from one fault.
    pub(crate) fn run(nodes: u32, seed: u64) -> Result<Self, Violation> {
        let schedule = Schedule::one_recovery(seed, nodes);
        let killed_at = schedule.faults.first().map_or(0, |fault| fault.at_ms) * 1_000;
        let mut world = World::new(schedule, false);
        world.begin();
        while world.now() < killed_at && world.turn()? {}
        let before = world.traffic();
        while !world.has_stepped_in(2) && world.turn()? {}
        let after = world.traffic();
        if !world.has_stepped_in(2) {
            return world.lost("liveness", "the job has not recovered");
        }
        Ok(Self {
            nodes,
            took: world.now() - killed_at,
            traffic: after.since(before),
            events: world.events(),
        })
    }

    pub(crate) fn report(&self, out: &mut impl Write) -> io::Result<()> {
        let Traffic {
            writes,
            reads,
            lease_calls,
            changes,
            digests,
        } = self.traffic;
        let each = |count: u64| {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            f64::from(count) / f64::from(self.nodes)
        };
        let millis = self.took / 1_000;
        writeln!(
            out,
            "{} nodes: one worker was killed, and {}.{:03} s of virtual time later the job made its next step",
            self.nodes,
            millis / 1_000,
            millis % 1_000
        )?;
        writeln!(out, "for each node in that time:")?;
        writeln!(out, "  {:>7.2} transactions", each(writes))?;
        writeln!(out, "  {:>7.2} reads", each(reads))?;
        writeln!(out, "  {:>7.2} requests about leases", each(lease_calls))?;
        writeln!(
            out,
            "  {:>7.2} batches of changes from the store's watches",
            each(changes)
        )?;
        writeln!(
            out,
            "  {:>7.2} messages to the leader's agent",
            each(digests)
        )
    }

    /// Operations and messages for each node, the digests and leases that go on anyway left out.
    #[cfg(test)]
    pub(crate) fn for_each_node(&self) -> f64 {
        let sum = self.traffic.writes + self.traffic.reads + self.traffic.changes;
        f64::from(u32::try_from(sum).unwrap_or(u32::MAX)) / f64::from(self.nodes)
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }
}
