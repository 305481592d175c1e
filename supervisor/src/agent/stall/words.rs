// SPDX-License-Identifier: Apache-2.0
//! What is said of a stall: to people, to the journal, to the decision core.

use std::path::Path;

use serde_json::{Value, json};
use steadfast_core::{Confidence, Instant, Rank, RankSigns, Stall, StallVerdict};
use steadfast_proto::v1::{FaultClass, Finding};

use crate::clock;

pub(super) fn age(stall: &Stall, now: Instant) -> f64 {
    now.saturating_since(stall.since).as_secs_f64()
}

/// Who it is, and why.
pub(super) fn describe(verdict: &StallVerdict) -> String {
    match &verdict.culprit {
        Some(culprit) => format!(
            "rank {} on {} {}",
            culprit.rank, culprit.node, verdict.summary
        ),
        None => verdict.summary.clone(),
    }
}

pub(super) fn words(
    stall: &Stall,
    verdict: &StallVerdict,
    now: Instant,
    directory: &Path,
) -> String {
    let usual = stall.typical.map_or_else(String::new, |typical| {
        format!(" (one takes {:.1} s as a rule)", typical.as_secs_f64())
    });
    let sure = match verdict.confidence {
        Confidence::Strong => "the signs are clear",
        Confidence::Fair => "it may also be slow only, so it gets more time",
        Confidence::Thin => "the evidence is thin",
    };
    let step = stall
        .step
        .map_or_else(String::new, |step| format!(" after step {step}"));
    format!(
        "no step for {:.1} s{step}{usual}: {}; {sure}. To do: {}. Evidence: {}",
        age(stall, now),
        describe(verdict),
        verdict.advice,
        directory.display()
    )
}

pub(super) fn fields(stall: &Stall, verdict: &StallVerdict, now: Instant, acts: bool) -> Value {
    json!({
        "seconds": age(stall, now),
        "bound_seconds": stall.bound.as_secs_f64(),
        "typical_seconds": stall.typical.map(|typical| typical.as_secs_f64()),
        "activity": stall.activity,
        "step": stall.step,
        "class": verdict.class_name(),
        "culprit": verdict.culprit,
        "others": verdict.others,
        "confidence": verdict.confidence,
        "signs": verdict.signs,
        "summary": describe(verdict),
        "advice": verdict.advice,
        "restarts": acts,
    })
}

/// What the core is told: the fault is as old as the stall.
pub(super) fn finding(
    generation: u64,
    stall: &Stall,
    verdict: &StallVerdict,
    ranks: &[RankSigns],
) -> Finding {
    let rank_of = |rank: Rank| ranks.iter().find(|signs| signs.rank == rank);
    let culprit = verdict
        .culprit
        .as_ref()
        .and_then(|culprit| rank_of(culprit.rank));
    let place = culprit.and_then(|signs| signs.stack.first().cloned());
    let since_ns = stall.since.as_nanos();
    let class: FaultClass = verdict.class;
    Finding {
        kind: steadfast_core::kinds::WORKER_HUNG.to_owned(),
        class: class.into(),
        generation,
        node: culprit.map_or_else(String::new, |signs| signs.node.0.clone()),
        rank: culprit.map(|signs| signs.rank.0),
        local_rank: culprit.map(|signs| signs.local_rank.0),
        monotonic_ns: since_ns,
        wall_ms: clock::wall_ms_at(since_ns),
        step: stall.step,
        fingerprint: format!(
            "hung:{}:{}",
            class.as_str_name(),
            place.or_else(|| culprit?.wchan.clone()).unwrap_or_default()
        ),
        summary: verdict.summary.clone(),
        evidence: verdict
            .signs
            .iter()
            .cloned()
            .chain([format!("to do: {}", verdict.advice)])
            .collect(),
        pid: culprit.map_or(0, |signs| signs.pid),
        ..Finding::default()
    }
}
