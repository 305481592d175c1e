// SPDX-License-Identifier: Apache-2.0
//! The keeper as a dead man's switch. Written after the rule, not after the product's keeper, with which it shares nothing.

use std::time::Duration;

use steadfast_core::{Generation, Instant, MemberEvent};

use super::{Checked, World};
use crate::event::{Address, Event};
use crate::node::Stop;

impl World {
    /// What the agent tells the keeper, whenever it has changed. It is there at once: nothing overtakes it that rests on it.
    pub(super) fn tell_fence(&mut self, address: Address) {
        let index = address.node;
        let Some(session) = self.session_mut(address) else {
            return;
        };
        let Some(lease) = &session.lease else {
            return;
        };
        let plan = session.member.view().plan().map(|plan| &plan.value);
        let generation = plan.map(|plan| plan.generation).unwrap_or_default();
        let window = plan.map(|plan| plan.witness()).unwrap_or_default();
        let tenure = lease.tenure();
        let fence = (lease.until(), tenure, generation, window);
        if session.fence == Some(fence) {
            return;
        }
        session.fence = Some(fence);
        let all = lease.all();
        let clock = self.nodes[index].clock;
        self.note(|| {
            let micros = clock.time_of(fence.0);
            format!(
                "node-{index}: lease surely holds until {micros} us ({all:?}), window {window:?}"
            )
        });
        let keeper = &mut self.nodes[index].keeper;
        let shorter = fence.0 < keeper.fence.lease_until;
        keeper.fence.lease_until = fence.0;
        keeper.fence.tenure = tenure;
        if generation.0 == keeper.generation {
            keeper.fence.window = keeper.fence.window.max(window);
        }
        if shorter {
            self.watch_fence(index);
        }
    }

    /// Until when the workers may live, on the node's clock.
    fn fence_until(&self, index: usize) -> Instant {
        let fence = &self.nodes[index].keeper.fence;
        let witnessed = fence
            .stepped
            .filter(|_| fence.window > Duration::ZERO)
            .map(|at| at + fence.window);
        witnessed.map_or(fence.lease_until, |at| at.max(fence.lease_until))
    }

    /// Whether no generation may be started now: steps of an older one are no witness for it.
    pub(super) fn is_fenced(&self, index: usize) -> bool {
        let node = &self.nodes[index];
        !self.schedule.is_alone() && node.clock.show(self.now) >= node.keeper.fence.lease_until
    }

    /// Sees to it that the keeper looks when the time is over.
    pub(super) fn watch_fence(&mut self, index: usize) {
        if self.schedule.is_alone() {
            return;
        }
        let until = self.fence_until(index);
        let node = &mut self.nodes[index];
        let at = node.clock.time_of(until).max(self.now);
        if node.keeper.fence.look_at.is_none_or(|set| at < set) {
            node.keeper.fence.look_at = Some(at);
            let incarnation = node.incarnation;
            self.at(at, Event::FenceDue(index, incarnation));
        }
    }

    pub(super) fn fence_due(&mut self, index: usize, incarnation: u64) -> Checked {
        let node = &mut self.nodes[index];
        if node.incarnation != incarnation {
            return Ok(());
        }
        if node.keeper.fence.look_at.is_some_and(|at| at <= self.now) {
            node.keeper.fence.look_at = None;
        }
        if node.keeper.alive().next().is_none() {
            return Ok(());
        }
        let until = self.fence_until(index);
        let node = &self.nodes[index];
        if node.clock.show(self.now) < until {
            self.watch_fence(index);
            return Ok(());
        }
        let generation = node.keeper.generation;
        if node.keeper.fence.fenced == generation {
            return Ok(());
        }
        self.note(|| format!("node-{index}: the keeper fences generation {generation}"));
        self.count_fence(index, generation)?;
        let now = self.now;
        let keeper = &mut self.nodes[index].keeper;
        keeper.fence.fenced = generation;
        keeper.stop.get_or_insert(Stop {
            began: now,
            reported: false,
        });
        self.say_fenced(index, generation);
        self.kill_workers(index, generation);
        self.look_whether_stopped(index);
        Ok(())
    }

    /// A generation that nothing vouches for is not begun.
    pub(super) fn refuse_start(&mut self, index: usize, generation: u64) -> Checked {
        self.note(|| format!("node-{index}: the keeper does not start generation {generation}"));
        self.checker.causes().add(generation, None);
        let now = self.now;
        let keeper = &mut self.nodes[index].keeper;
        keeper.generation = generation;
        keeper.workers.clear();
        keeper.fence.fenced = generation;
        keeper.fence.stepped = None;
        keeper.stop = Some(Stop {
            began: now,
            reported: true,
        });
        self.say_fenced(index, generation);
        self.say_stopped(index, generation, Vec::new());
        Ok(())
    }

    fn say_fenced(&mut self, index: usize, generation: u64) {
        let at = self.nodes[index].clock.show(self.now);
        let generation = Generation(generation);
        self.say(index, MemberEvent::Fenced { generation, at });
    }

    /// Tells the checker, with what is really the case: how long ago the generation made a step.
    fn count_fence(&mut self, index: usize, generation: u64) -> Checked {
        self.count("(fences)");
        let stepped = self.training.last_step(generation);
        let window = self.nodes[index].keeper.fence.window;
        let window = u64::try_from(window.as_micros()).unwrap_or(u64::MAX);
        self.checker.fenced(index, generation, stepped, window)
    }
}
