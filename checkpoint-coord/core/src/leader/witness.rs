// SPDX-License-Identifier: Apache-2.0
//! For how long a step vouches for the workers of a generation, agreed through the plan.

use crate::{Instant, JobSpec, Leader, MemberRecord, Plan, WitnessMode, WitnessReport};

/// Members of a synchronous program report the same step at nearly the same time. So far may they be apart: their
/// reports are not written at once.
const STEPS_APART: u64 = 2;
/// What a report may be late by, in milliseconds.
const REPORT_DELAY_MS: u64 = 1_000;

impl Leader {
    /// The window that the running generation should have, if that is more than it has. It never shrinks, since a member
    /// that is cut off relies on what it last heard.
    pub(super) fn wider_witness(
        &mut self,
        now: Instant,
        spec: &JobSpec,
        plan: &Plan,
    ) -> Option<u64> {
        if spec.witness == WitnessMode::Off {
            return None;
        }
        let mut reports = Vec::new();
        for place in &plan.members {
            let record = self.view.member(&place.node);
            let report = record.and_then(|record| current_report(&record.value, plan));
            if let Some(report) = report {
                self.seen.note_report(&place.node, report.step, now);
                reports.push(report);
            }
        }
        if reports.len() < plan.members.len() {
            return None;
        }
        let trusted = spec.witness == WitnessMode::On || self.is_in_step(&reports);
        let wanted = reports.iter().map(|report| report.window_ms).max()?;
        (trusted && wanted > plan.witness_ms).then_some(wanted)
    }

    /// Whether all members are at the same step, as far as reports of different times can show it.
    fn is_in_step(&self, reports: &[WitnessReport]) -> bool {
        let step_ms = reports
            .iter()
            .map(|report| report.step_ms)
            .max()
            .unwrap_or(0)
            .max(1);
        let heard = self.seen.reported.values();
        let times = heard.clone().map(|(_, at)| *at);
        let (Some(first), Some(last)) = (times.clone().min(), times.max()) else {
            return false;
        };
        let (Some(least), Some(most)) = (
            heard.clone().map(|(step, _)| *step).min(),
            heard.map(|(step, _)| *step).max(),
        ) else {
            return false;
        };
        let apart_ms = u64::try_from((last - first).as_millis()).unwrap_or(u64::MAX);
        let tolerated = apart_ms.saturating_add(REPORT_DELAY_MS) / step_ms + STEPS_APART;
        most - least <= tolerated
    }
}

fn current_report(record: &MemberRecord, plan: &Plan) -> Option<WitnessReport> {
    record
        .witness
        .filter(|_| record.generation == plan.generation)
}
