// SPDX-License-Identifier: Apache-2.0
//! Random lives of a world, and what must be true at their end.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Answer, Plant, World};
use crate::{
    EndRule, LeaderEvent, LeaderState, MemberEvent, MemberState, OperatorRequest, WorkerExit,
};

/// Rounds within which a world must come to rest once faults have ceased.
const SETTLE_ROUNDS: u32 = 300;

impl World {
    /// Does something; what, is read from a number.
    fn act(&mut self, number: u32) -> Result<(), String> {
        let index = (number / 64) as usize % self.nodes.len();
        let pick = number / 1024;
        let leader = pick as usize % self.leaders.len().max(1);
        match number % 64 {
            0..=9 => self.deliver_to_member(index).map(drop),
            10..=17 => self.deliver_to_leader(leader).map(drop),
            18..=23 => self.write_member(index, Answer::Told),
            24..=29 => self.write_leader(leader, Answer::Told),
            30 => self.write_member(index, Answer::DoneButLost),
            31 => self.write_member(index, Answer::Lost),
            32 => self.write_leader(leader, Answer::DoneButLost),
            33 => self.write_leader(leader, Answer::Lost),
            34..=40 => self.keeper_step(index).map(drop),
            41..=46 => self.deliver_from_keeper(index, false).map(drop),
            47 => self.deliver_from_keeper(index, true).map(drop),
            48..=50 => self.start_agent(index),
            51 => {
                self.crash_agent(index, pick as usize % 3);
                Ok(())
            }
            52 => self.elect(index),
            _ => self.act_rarely(number, index, pick),
        }
    }

    fn act_rarely(&mut self, number: u32, index: usize, pick: u32) -> Result<(), String> {
        match number % 64 {
            53 | 54 => self.exit_worker(index, pick, WorkerExit::Code(1), pick.is_multiple_of(2)),
            55 => self.exit_worker(index, pick, WorkerExit::Signal(9), false),
            56 => self.exit_worker(index, pick, WorkerExit::Code(0), false),
            57 => {
                let now = self.instant();
                self.nodes[index].keeper.kill_all(now);
                self.nodes[index].collect();
            }
            58 => {
                let generation = self.nodes[index].keeper.generation;
                let step = u64::from(pick % 16);
                return self.tell_member(index, MemberEvent::Step { generation, step });
            }
            59 => {
                let reason = "because".to_owned();
                let restart = OperatorRequest::Restart { reason };
                return self.tell_member(index, MemberEvent::Operator(restart));
            }
            60 if pick.is_multiple_of(64) => return self.interrupt(index),
            60 if pick % 32 == 1 => self.nodes[index].keeper.make_unkillable(pick / 8),
            61 if pick % 8 == 1 => return self.lose_record(index),
            61 if pick.is_multiple_of(8) => self.nodes[index].keeper.fail_next_spawn = true,
            62 => self.now += 50_000_000 * u64::from(pick % 16),
            63 => return self.tick(),
            _ => {}
        }
        Ok(())
    }

    fn interrupt(&mut self, index: usize) -> Result<(), String> {
        let node = &mut self.nodes[index];
        node.interrupts += 1;
        let count = node.interrupts;
        self.tell_member(index, MemberEvent::Interrupt { signal: 2, count })
    }

    fn tick(&mut self) -> Result<(), String> {
        for index in 0..self.nodes.len() {
            self.tell_member(index, MemberEvent::Tick)?;
        }
        for index in 0..self.leaders.len() {
            self.tell_leader(index, LeaderEvent::Tick)?;
        }
        Ok(())
    }

    fn deliver_from_keeper(&mut self, index: usize, twice: bool) -> Result<bool, String> {
        let Some(event) = self.nodes[index].inbox.pop_front() else {
            return Ok(false);
        };
        if twice {
            self.tell_member(index, event.clone())?;
        }
        self.tell_member(index, event)?;
        Ok(true)
    }

    /// CORE-5: faults cease, everything is delivered; within a bound the world must be at rest.
    fn settle(&mut self) -> Result<(), String> {
        if self.leaders.is_empty() {
            self.elect(0)?;
        }
        let newest = self.leaders.split_off(self.leaders.len() - 1);
        self.leaders = newest;
        for node in &mut self.nodes {
            node.keeper.fail_next_spawn = false;
        }
        let mut quiet = 0;
        for _ in 0..SETTLE_ROUNDS {
            quiet = if self.round()? { 0 } else { quiet + 1 };
            if quiet > 2 {
                return self.at_rest();
            }
            if quiet > 0 {
                self.now += 61_000_000_000;
                self.tick()?;
            }
        }
        Err(format!(
            "CORE-5: not at rest after {SETTLE_ROUNDS} rounds: {}",
            self.describe()
        ))
    }

    fn round(&mut self) -> Result<bool, String> {
        let mut busy = false;
        self.now += 1_000_000;
        for index in 0..self.nodes.len() {
            self.start_agent(index)?;
            busy |= self.nodes[index].write.is_some();
            self.write_member(index, Answer::Told)?;
            while self.deliver_to_member(index)? {
                busy = true;
            }
            while self.keeper_step(index)? {
                busy = true;
            }
            let now = self.instant();
            self.nodes[index].keeper.kill_all(now);
            self.nodes[index].collect();
            while self.deliver_from_keeper(index, false)? {
                busy = true;
            }
        }
        busy |= self.leaders[0].write.is_some();
        self.write_leader(0, Answer::Told)?;
        while self.deliver_to_leader(0)? {
            busy = true;
        }
        Ok(busy)
    }

    fn at_rest(&mut self) -> Result<(), String> {
        let ended = self.store.get(&self.keys.result()).is_some();
        let alive: usize = self
            .nodes
            .iter()
            .map(|node| node.keeper.alive().count())
            .sum();
        if ended {
            let all_left = self.nodes.iter().all(|node| node.left);
            return if all_left && alive == 0 {
                Ok(())
            } else {
                Err(format!(
                    "CORE-5: ended, but somebody stays: {}",
                    self.describe()
                ))
            };
        }
        let generation = self.checker.generation();
        let running = self.leaders[0].leader.state() == LeaderState::Running(generation)
            && self
                .nodes
                .iter()
                .filter_map(|node| node.member.as_ref())
                .all(|member| {
                    matches!(
                        member.state(),
                        MemberState::Running(of) | MemberState::Completed(of) if of == generation
                    ) || member.state() == MemberState::Spare
                });
        let stuck = self.nodes.iter().any(|node| node.keeper.is_stuck());
        if running && (alive > 0 || stuck) {
            Ok(())
        } else {
            Err(format!(
                "CORE-5: neither running nor ended: {}",
                self.describe()
            ))
        }
    }

    /// Lets every worker finish; the job must then end well.
    fn finish(&mut self) -> Result<(), String> {
        for index in 0..self.nodes.len() {
            while self.nodes[index].keeper.alive().next().is_some() {
                self.exit_worker(index, 0, WorkerExit::Code(0), false);
            }
        }
        for index in 0..self.nodes.len() {
            // A worker that can neither finish nor be killed: somebody loses patience.
            if self.nodes[index].keeper.is_stuck() {
                self.interrupt(index)?;
            }
        }
        self.settle()?;
        if self.store.get(&self.keys.result()).is_some() {
            Ok(())
        } else {
            Err(format!(
                "CORE-5: all workers finished, no result: {}",
                self.describe()
            ))
        }
    }

    fn describe(&self) -> String {
        let members: Vec<_> = self
            .nodes
            .iter()
            .map(|node| {
                let member = node.member.as_ref();
                member.map(|member| (member.state(), member.reason()))
            })
            .collect();
        let leaders: Vec<_> = self
            .leaders
            .iter()
            .map(|host| (host.leader.state(), host.leader.reason()))
            .collect();
        format!("members {members:?}, leaders {leaders:?}")
    }

    pub(super) fn live(&mut self, numbers: &[u32]) -> Result<(), String> {
        for index in 0..self.nodes.len() {
            self.start_agent(index)?;
        }
        for number in numbers {
            self.now += 1_000_000;
            self.act(*number)?;
        }
        self.settle()?;
        self.finish()
    }
}

/// A plain generator of numbers (Numerical Recipes), so that a seed is a life.
fn numbers(seed: u64, count: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 33).unwrap_or(0)
    };
    (0..count).map(|_| next()).collect()
}

/// How the job ended, if it did.
fn end_of(world: &World) -> Option<(EndRule, u64)> {
    let result = world.view().result().cloned()?;
    Some((result.rule, result.restarts))
}

fn caught(plant: Plant) -> Option<String> {
    (0..2_000).find_map(|seed| {
        let nodes = 1 + u32::try_from(seed % 3).unwrap_or(0);
        World::new(nodes, nodes, 4, plant)
            .live(&numbers(seed, 400))
            .err()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_in_any_life(
        nodes in 1_u32..=5,
        spare in 0_u32..=2,
        max_restarts in 0_u32..=4,
        life in prop::collection::vec(0_u32..1 << 20, 0..600),
    ) {
        let min_nodes = nodes.saturating_sub(spare).max(1);
        let result = World::new(nodes, min_nodes, max_restarts, Plant::None).live(&life);
        prop_assert_eq!(result, Ok(()));
    }
}

#[test]
fn many_long_lives() {
    let mut ends = BTreeMap::new();
    let mut most_restarts = 0;
    for seed in 0..300 {
        let nodes = 1 + u32::try_from(seed % 4).unwrap_or(0);
        let mut world = World::new(nodes, nodes.min(2), 5, Plant::None);
        let result = world.live(&numbers(seed, 3_000));
        assert_eq!(result, Ok(()), "seed {seed}");
        if let Some((rule, restarts)) = end_of(&world) {
            *ends.entry(format!("{rule:?}")).or_insert(0) += 1;
            most_restarts = most_restarts.max(restarts);
        }
    }
    // A world in which nothing happens proves nothing.
    for rule in [
        "Completed",
        "Requested",
        "RepeatedFailure",
        "BudgetExhausted",
        "NodeAtFault",
    ] {
        assert!(
            ends.get(rule).is_some_and(|count| *count > 5),
            "{rule}: {ends:?}"
        );
    }
    assert!(most_restarts >= 6, "{most_restarts}");
}

#[test]
fn checker_finds_planted_bugs() {
    let table = [
        (Plant::StoppedBeforeReaped, "CORE-2"),
        (Plant::LedgerLost, "CORE-3"),
        (Plant::Unguarded, "CORE-"),
    ];
    for (plant, rule) in table {
        let found = caught(plant);
        assert!(
            found.as_ref().is_some_and(|found| found.starts_with(rule)),
            "{plant:?} was not caught by {rule}: {found:?}"
        );
    }
}
