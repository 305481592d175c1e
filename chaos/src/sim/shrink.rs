// SPDX-License-Identifier: Apache-2.0
//! The smallest schedule that still breaks the same rule.

use super::checker::Violation;
use super::plant::Plant;
use super::schedule::Schedule;
use super::world::World;

/// Takes faults away, one after the other, and calms the world down, as long as the same rule is
/// broken.
pub(super) fn shrink(schedule: Schedule, violation: &Violation, plant: Option<Plant>) -> Schedule {
    let breaks = |candidate: &Schedule| {
        let (ending, _) = World::new(candidate.clone(), plant, false).run();
        ending.is_err_and(|found| found.rule == violation.rule)
    };
    let mut smallest = schedule;
    let mut index = 0;
    while index < smallest.faults.len() {
        let mut candidate = smallest.clone();
        candidate.faults.remove(index);
        if breaks(&candidate) {
            smallest = candidate;
            index = 0;
        } else {
            index += 1;
        }
    }
    let calmer: [fn(&mut Schedule); 5] = [
        |schedule| schedule.program_fails_at = None,
        |schedule| schedule.pace.lost_percent = 0,
        |schedule| schedule.pace.late_findings = false,
        |schedule| schedule.pace.survivors_fail = false,
        |schedule| schedule.shape.slots = 1,
    ];
    for calm in calmer {
        let mut candidate = smallest.clone();
        calm(&mut candidate);
        if candidate != smallest && breaks(&candidate) {
            smallest = candidate;
        }
    }
    smallest
}
