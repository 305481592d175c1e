// SPDX-License-Identifier: Apache-2.0
//! The smallest schedule that still breaks the same rule.

use crate::checker::Violation;
use crate::schedule::{Fault, Schedule};
use crate::world::World;

/// Takes faults away, one after the other, makes the job smaller and calms the world down, as long as the same rule is
/// broken.
pub(crate) fn shrink(schedule: Schedule, violation: &Violation) -> Schedule {
    let mut shrinking = Shrinking {
        smallest: schedule,
        rule: violation.rule,
    };
    loop {
        let before = shrinking.smallest.clone();
        shrinking.fewer_faults();
        shrinking.fewer_nodes();
        shrinking.calmer();
        shrinking.shorter_faults();
        if shrinking.smallest == before {
            return before;
        }
    }
}

struct Shrinking {
    smallest: Schedule,
    rule: &'static str,
}

impl Shrinking {
    /// Takes the change over if the rule is still broken with it.
    fn attempt(&mut self, change: impl FnOnce(&mut Schedule)) -> bool {
        let mut candidate = self.smallest.clone();
        change(&mut candidate);
        if candidate == self.smallest {
            return false;
        }
        let (ending, _) = World::new(candidate.clone(), false).run();
        let breaks = ending.is_err_and(|found| found.rule == self.rule);
        if breaks {
            self.smallest = candidate;
        }
        breaks
    }

    fn fewer_faults(&mut self) {
        // Halves first: large schedules are mostly noise.
        let mut size = self.smallest.faults.len() / 2;
        while size > 0 {
            let mut begin = 0;
            while begin < self.smallest.faults.len() {
                let end = (begin + size).min(self.smallest.faults.len());
                let gone = self.attempt(|schedule| drop(schedule.faults.drain(begin..end)));
                if !gone {
                    begin = end;
                }
            }
            size /= 2;
        }
    }

    /// Leaves out the last node as long as that is possible.
    fn fewer_nodes(&mut self) {
        let fewer = |schedule: &mut Schedule| {
            let shape = &mut schedule.shape;
            if shape.late_nodes > 0 {
                shape.late_nodes -= 1;
            } else if shape.nodes > 1 && shape.node_multiple == 1 {
                shape.nodes -= 1;
                shape.max_nodes = shape.max_nodes.min(shape.nodes);
                shape.min_nodes = shape.min_nodes.min(shape.max_nodes);
            }
            let nodes = schedule.all_nodes();
            schedule.faults.retain(|fault| fault.node < nodes);
        };
        while self.attempt(fewer) {}
    }

    fn calmer(&mut self) {
        let calmer: [fn(&mut Schedule); 11] = [
            |schedule| schedule.program_fails_at = None,
            |schedule| schedule.pace.lost_percent = 0,
            |schedule| schedule.pace.late_findings = false,
            |schedule| schedule.pace.survivors_fail = false,
            |schedule| schedule.pace.clocks_drift = false,
            |schedule| schedule.pace.store_ms = 1,
            |schedule| schedule.pace.link_ms = 1,
            |schedule| schedule.pace.reap_ms = 1,
            |schedule| schedule.pace.obey_ms = 1,
            |schedule| schedule.shape.evaluate_every = 0,
            |schedule| schedule.shape.slots = 1,
        ];
        for calm in calmer {
            self.attempt(calm);
        }
        while self.attempt(|schedule| schedule.shape.steps = (schedule.shape.steps / 2).max(1)) {}
    }

    fn shorter_faults(&mut self) {
        for index in 0..self.smallest.faults.len() {
            self.attempt(|schedule| {
                let fault: &mut Fault = &mut schedule.faults[index];
                fault.at_ms = fault.at_ms / 1_000 * 1_000;
            });
        }
    }
}
