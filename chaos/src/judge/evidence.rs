// SPDX-License-Identifier: Apache-2.0
//! J-9: whether the faults have landed.

use serde::{Deserialize, Serialize};

use super::{Check, Verdict};
use crate::history::{FaultEvent, FaultNote};

/// What became of one fault, one time, at one victim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FaultSummary {
    /// Name of the fault.
    pub(crate) fault: String,
    /// What it does.
    pub(crate) inject: String,
    /// The how manieth time.
    pub(crate) time: u32,
    /// The node that it hit.
    pub(crate) node: Option<String>,
    /// The rank that it hit.
    pub(crate) rank: Option<u32>,
    /// When it was injected.
    pub(crate) injected_ns: u64,
    /// When it was healed.
    pub(crate) healed_ns: Option<u64>,
    /// The evidence that it has landed.
    pub(crate) evidence: Option<String>,
    /// What went wrong with it.
    pub(crate) trouble: Option<String>,
    /// Whether it never was to be, by chance.
    pub(crate) left_out: bool,
    /// Whether its moment never came.
    pub(crate) never_due: bool,
}

/// What became of each fault.
pub(super) fn summaries(notes: &[FaultNote]) -> Vec<FaultSummary> {
    let mut summaries: Vec<FaultSummary> = Vec::new();
    for note in notes {
        let is_same = |summary: &&mut FaultSummary| {
            summary.fault == note.fault
                && summary.time == note.time
                && summary.node == note.node
                && summary.rank == note.rank
        };
        if !summaries.iter_mut().any(|summary| is_same(&summary)) {
            summaries.push(FaultSummary {
                fault: note.fault.clone(),
                inject: note.inject.clone(),
                time: note.time,
                node: note.node.clone(),
                rank: note.rank,
                injected_ns: note.monotonic_ns,
                healed_ns: None,
                evidence: None,
                trouble: None,
                left_out: false,
                never_due: false,
            });
        }
        let Some(summary) = summaries.iter_mut().find(is_same) else {
            continue;
        };
        match note.what {
            FaultEvent::Injected => summary.injected_ns = note.monotonic_ns,
            FaultEvent::Landed => summary.evidence = Some(note.words.clone()),
            FaultEvent::Healed => summary.healed_ns = Some(note.monotonic_ns),
            FaultEvent::Failed => summary.trouble = Some(note.words.clone()),
            FaultEvent::NeverDue => {
                summary.never_due = true;
                summary.trouble = Some(note.words.clone());
            }
            FaultEvent::LeftOut => summary.left_out = true,
        }
    }
    summaries
}

/// J-9.
pub(super) fn all_landed(faults: &[FaultSummary], may_come_late: bool) -> Check {
    let (due, late): (Vec<_>, Vec<_>) = faults
        .iter()
        .filter(|fault| !fault.left_out)
        .partition(|fault| !fault.never_due || !may_come_late);
    let missing: Vec<String> = due
        .iter()
        .filter(|fault| fault.evidence.is_none() || fault.trouble.is_some())
        .map(|fault| {
            let trouble = fault
                .trouble
                .as_deref()
                .unwrap_or("it has left no evidence");
            format!("{}: {trouble}", fault.fault)
        })
        .collect();
    let landed = due.len() - missing.len();
    // Where they come by the clock, their victim may just have ended; one in five may come to nothing.
    if missing.is_empty() || may_come_late && landed * 5 >= due.len() * 4 {
        let words = match late.len() {
            0 => format!("{landed} of {} faults have landed", due.len()),
            late => format!(
                "{landed} of {} faults have landed; the job had ended before {late} more",
                due.len()
            ),
        };
        return Check::pass("J-9", words);
    }
    Check::new("J-9", Verdict::Invalid, missing.join("; "))
}
