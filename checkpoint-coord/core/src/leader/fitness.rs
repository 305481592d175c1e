// SPDX-License-Identifier: Apache-2.0
//! Which nodes are fit to take part, by what they say of themselves and by what their hardware has done before.
//!
//! The job begins on the nodes that are there, such as they are. From then on a node gets ranks only while its last look at
//! itself has shown nothing wrong, and a newcomer only if that look is a fresh one.

use std::collections::BTreeMap;
use std::time::Duration;

use steadfast_proto::v1::{FaultClass, Finding};

use super::Leader;
use crate::member::kinds;
use crate::{
    Exclusion, FaultScore, Fitness, Generation, Incarnation, Instant, Ledger, MemberRecord,
    NodeName, Plan, PlanMember,
};

/// A look is fresh for so many of the times between two looks.
const FRESH_FOR: u32 = 3;
/// The most GPUs whose faults are remembered.
const MOST_SCORES: usize = 1_024;

/// When each look of each node was heard of.
#[derive(Debug, Default)]
pub(super) struct Looks {
    heard: BTreeMap<NodeName, (Incarnation, u64, Instant)>,
}

impl Looks {
    /// Takes note of the looks that the records tell of.
    fn note<'a>(&mut self, now: Instant, records: impl Iterator<Item = &'a MemberRecord>) {
        for record in records {
            let Some(fitness) = &record.fitness else {
                continue;
            };
            let this = (record.incarnation, fitness.look);
            let known = self.heard.get(&record.node);
            if known.is_none_or(|(incarnation, look, _)| (*incarnation, *look) != this) {
                let heard = (this.0, this.1, now);
                self.heard.insert(record.node.clone(), heard);
            }
        }
    }

    /// Whether the last look was not so long ago that it says nothing any more.
    fn is_fresh(&self, now: Instant, node: &NodeName, fitness: &Fitness) -> bool {
        let every = Duration::from_millis(fitness.every_ms);
        let heard = self.heard.get(node);
        let in_time = |at: Instant| now <= at + every.saturating_mul(FRESH_FOR);
        fitness.look > 0 && heard.is_some_and(|(.., at)| in_time(*at))
    }
}

impl Leader {
    /// Takes note of what the members say of themselves.
    pub(super) fn note_looks(&mut self, now: Instant) {
        let records = self.view.members().values().map(|record| &*record.value);
        self.looks.note(now, records);
    }

    /// Whether a member may be given ranks beside, or instead of, those of the last plan.
    pub(super) fn is_fit(&self, now: Instant, record: &MemberRecord, last: &[PlanMember]) -> bool {
        let Some(fitness) = &record.fitness else {
            return true;
        };
        let stays = |place: &PlanMember| {
            place.node == record.node && place.incarnation == record.incarnation
        };
        let begins = last.is_empty();
        let looked_at =
            begins || last.iter().any(stays) || self.looks.is_fresh(now, &record.node, fitness);
        fitness.faults.is_empty() && looked_at
    }

    /// Whether a GPU of that member has failed again and again.
    pub(super) fn is_repeat_offender(record: &MemberRecord, ledger: &Ledger) -> bool {
        let scores = ledger.faults.values();
        // The time of the last fault has to do for the present: there is no other clock that all of them share.
        let latest = scores.clone().map(|score| score.at_ms).max();
        let in_this_job = scores
            .filter(|score| score.node == record.node.0)
            .map(|score| score.weight_at(latest.unwrap_or_default()))
            .max();
        FaultScore::is_repeated(record.past_faults.max(in_this_job.unwrap_or_default()))
    }

    /// Why nodes that are there are not used, for a sentence that goes on; empty when there is nothing to say.
    pub(super) fn unfit_remark(&self, ledger: &Ledger) -> String {
        let members = self.view.members().values();
        members.fold(String::new(), |text, record| {
            let record = &record.value;
            let domain = record.location.nvlink_domain();
            let shared = domain.and_then(|domain| ledger.excluded_domains.get(&domain));
            let faults = record
                .fitness
                .as_ref()
                .map(|fitness| fitness.faults.join("; "));
            let why = match (shared, faults) {
                (Some(exclusion), _) => exclusion.reason.clone(),
                (None, Some(faults)) if !faults.is_empty() => faults,
                _ => return text,
            };
            text + "; " + &record.node.0 + " is not used: " + &why
        })
    }

    /// Nobody else can take over from nodes that are unfit: they count as excluded, with their reasons.
    pub(super) fn exclude_for_good(&self, last: Generation, ledger: &mut Ledger) {
        for (node, record) in self.view.members() {
            let fitness = record.value.fitness.as_ref();
            if let Some(fitness) = fitness.filter(|fitness| !fitness.faults.is_empty()) {
                let exclusion = Exclusion {
                    generation: last,
                    reason: fitness.faults.join("; "),
                };
                ledger.excluded.entry(node.clone()).or_insert(exclusion);
            }
        }
    }
}

/// Excludes the nodes of which a detector says that they must not be used any more, with all that hang on the same
/// switches where it is these.
pub(super) fn exclude_broken(plan: &Plan, findings: &[Finding], ledger: &mut Ledger) {
    for finding in findings {
        let kind = finding.kind.as_str();
        if !matches!(
            kind,
            kinds::NODE_UNFIT | kinds::GPU_FAULT | kinds::SWITCH_FAULT
        ) {
            continue;
        }
        let node = NodeName(finding.node.clone());
        let exclusion = Exclusion {
            generation: Generation(finding.generation),
            reason: finding.summary.clone(),
        };
        if kind == kinds::SWITCH_FAULT
            && let Some(domain) = plan
                .member(&node)
                .and_then(|place| place.location.nvlink_domain())
        {
            let reason = format!(
                "it shares NVLink switches ({domain}) with {node}: {}",
                finding.summary
            );
            let shared = Exclusion {
                reason,
                ..exclusion.clone()
            };
            ledger.excluded_domains.insert(domain, shared);
        }
        ledger.excluded.insert(node, exclusion);
    }
}

/// Charges each GPU for what it did in a generation: once, whatever was found of it.
pub(super) fn charge_hardware(findings: &[Finding], ledger: &mut Ledger) {
    let mut charged: BTreeMap<&str, &Finding> = BTreeMap::new();
    for finding in findings {
        let is_hardware = matches!(
            finding.class(),
            FaultClass::GpuHardware | FaultClass::GpuMemory | FaultClass::Link
        );
        if is_hardware && !finding.device.is_empty() {
            charged.entry(&finding.device).or_insert(finding);
        }
    }
    for (device, finding) in charged {
        if ledger.faults.len() >= MOST_SCORES && !ledger.faults.contains_key(device) {
            forget_one(ledger, finding.wall_ms);
        }
        let score = ledger.faults.entry(device.to_owned()).or_default();
        score.add(finding.wall_ms, &finding.node, &finding.summary);
    }
}

/// Forgets what weighs least.
fn forget_one(ledger: &mut Ledger, now_ms: i64) {
    let scores = ledger.faults.iter();
    let least = scores.min_by_key(|(_, score)| score.weight_at(now_ms));
    if let Some(device) = least.map(|(device, _)| device.clone()) {
        ledger.faults.remove(&device);
    }
}
