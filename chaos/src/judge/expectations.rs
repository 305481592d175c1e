// SPDX-License-Identifier: Apache-2.0
//! What the scenario expects.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::figures::Figures;
use super::lives::Worker;
use super::load::History;
use super::{Check, Verdict};
use crate::history::{Ending, FaultEvent};
use crate::scenario::ExpectedCause;

/// Looks at all of it.
pub(super) fn checks(history: &History, workers: &[Worker], figures: &Figures) -> Vec<Check> {
    let expect = &history.scenario.expect;
    let mut checks = vec![ended(history), exit_codes(history)];
    if expect.finished.unwrap_or(expect.exit_code == 0) {
        checks.push(finished(history, workers));
    }
    let restarts = figures.generations.saturating_sub(1);
    let counted = |name: &str, right: bool, wanted: String| {
        let words = format!(
            "{restarts} restarts{}",
            if right { String::new() } else { wanted }
        );
        Check::new(
            name,
            if right { Verdict::Pass } else { Verdict::Fail },
            words,
        )
    };
    if let Some(wanted) = expect.restarts {
        checks.push(counted(
            "restarts",
            restarts == wanted,
            format!(", not {wanted}"),
        ));
    }
    if let Some(most) = expect.restarts_at_most {
        checks.push(counted(
            "restarts",
            restarts <= most,
            format!(", more than {most}"),
        ));
    }
    if let Some(within) = expect.recovery_within_seconds {
        let late = figures
            .outages
            .iter()
            .filter(|outage| outage.fault.is_some() && outage.to_step > within);
        let late: Vec<String> = late
            .map(|outage| {
                let fault = outage.fault.as_deref().unwrap_or_default();
                format!(
                    "{:.1} s from {fault} to the next step, more than {within} s",
                    outage.to_step
                )
            })
            .collect();
        checks.push(Check::of(
            "recovery",
            &late,
            format!("each within {within} s"),
        ));
    }
    if let Some(most) = expect.lost_steps_at_most {
        let lost = figures
            .outages
            .iter()
            .filter(|outage| outage.lost_steps > most);
        let lost: Vec<String> = lost
            .map(|outage| {
                format!(
                    "generation {} made {} steps again",
                    outage.after, outage.lost_steps
                )
            })
            .collect();
        checks.push(Check::of(
            "lost steps",
            &lost,
            format!("at most {most} each time"),
        ));
    }
    checks.extend(expect.cause.as_ref().map(|wanted| cause(history, wanted)));
    checks.extend(said(history));
    checks
}

fn ended(history: &History) -> Check {
    let (timed_out, limit) = (history.end.timed_out, history.scenario.limit_seconds);
    match (timed_out, history.scenario.expect.ends) {
        (true, true) => Check::new(
            "end",
            Verdict::Fail,
            format!("it had not ended after {limit} s"),
        ),
        (false, false) => Check::new("end", Verdict::Fail, "it has ended, which it should not"),
        (true, false) => Check::pass("end", "it went on until the harness ended it"),
        (false, true) => Check::pass("end", "it has ended by itself"),
    }
}

fn exit_codes(history: &History) -> Check {
    if history.end.timed_out {
        return Check::pass("exit code", "the harness ended it");
    }
    let expect = &history.scenario.expect;
    let mut last: BTreeMap<&str, &Ending> = BTreeMap::new();
    for ending in &history.end.endings {
        last.insert(&ending.node, ending);
    }
    let hit = |fault: &String| {
        let mut notes = history.faults.iter();
        let note = notes.find(|note| note.fault == *fault && note.what == FaultEvent::Injected);
        note.and_then(|note| note.node.as_deref())
    };
    let of_fault = expect.exit_code_of.iter();
    let of_fault: BTreeMap<&str, i32> = of_fault
        .filter_map(|(fault, code)| Some((hit(fault)?, *code)))
        .collect();
    let mut wrong = Vec::new();
    let mut right = BTreeSet::new();
    for (node, ending) in last {
        let wanted = expect
            .exit_codes
            .get(node)
            .or_else(|| of_fault.get(node))
            .copied();
        if ending.off && wanted.is_none() {
            continue;
        }
        let wanted = wanted.unwrap_or(expect.exit_code);
        match (ending.code, ending.signal) {
            (Some(code), _) if code == wanted => {
                right.insert(code);
            }
            (Some(code), _) => wrong.push(format!("{node} ended with {code}, not {wanted}")),
            (None, signal) => wrong.push(format!(
                "{node} was ended by signal {}",
                signal.unwrap_or(0)
            )),
        }
    }
    Check::of("exit code", &wrong, format!("{right:?}"))
}

/// The last generation has made all steps, and each of its ranks has ended with the right loss.
fn finished(history: &History, workers: &[Worker]) -> Check {
    let Some(steps) = history.end.steps else {
        // Of another program than the default one only the exit code is known.
        return Check::pass("finished", "by the exit code");
    };
    let Some(loss) = &history.end.right_loss else {
        return Check::new(
            "finished",
            Verdict::Fail,
            "no rank came to the end of the training",
        );
    };
    let last = workers
        .iter()
        .map(|worker| worker.generation)
        .max()
        .unwrap_or(0);
    let of_last = history.signs.iter().filter(|sign| sign.generation == last);
    let ends = of_last.clone().filter(|sign| sign.event == "end");
    let finished: BTreeSet<u32> = ends
        .filter(|sign| sign.loss.as_ref() == Some(loss))
        .map(|sign| sign.rank)
        .collect();
    let size = of_last
        .clone()
        .filter_map(|sign| sign.world_size)
        .max()
        .unwrap_or(0);
    let wanted = history.scenario.expect.finished_ranks.unwrap_or(size);
    let mut wrong = Vec::new();
    if finished != (0..wanted).collect() || wanted == 0 {
        wrong.push(format!(
            "of {wanted} ranks of generation {last}, those that finished with the right loss {loss} are {finished:?}"
        ));
    }
    let best = history.signs.iter().filter(|sign| sign.event == "step");
    let best = best.filter_map(|sign| sign.step).max().unwrap_or(0);
    if best != steps {
        wrong.push(format!("the last step was {best}, not {steps}"));
    }
    Check::of(
        "finished",
        &wrong,
        format!("{wanted} ranks, step {steps}, loss {loss}"),
    )
}

/// What the supervisor holds for the root cause of each incident, in their order. Each says its generation.
pub(crate) fn causes(history: &History) -> Vec<Value> {
    let ledgers = history
        .store
        .iter()
        .filter(|change| change.key.ends_with("/job/ledger"));
    let in_store = ledgers.filter_map(|change| Some(change.value.as_ref()?["last_fault"].clone()));
    let in_status = history
        .statuses
        .iter()
        .map(|note| note.status["jobs"][0]["last_fault"].clone());
    let ends = history
        .journals
        .values()
        .flatten()
        .filter(|line| line["kind"] == "job.ended");
    let at_end = ends.map(|line| line["result"]["root_cause"].clone());
    let mut causes: Vec<Value> = Vec::new();
    for cause in in_store.chain(in_status).chain(at_end) {
        let is_new = causes
            .iter()
            .all(|known| known["generation"] != cause["generation"]);
        if cause.is_object() && is_new {
            causes.push(cause);
        }
    }
    causes.sort_by_key(|cause| cause["generation"].as_u64());
    causes
}

fn cause(history: &History, wanted: &ExpectedCause) -> Check {
    let Some(found) = causes(history).into_iter().next() else {
        return Check::new("cause", Verdict::Fail, "the supervisor has named no cause");
    };
    let victim = |fault: &str| {
        let mut notes = history.faults.iter();
        notes.find(|note| note.fault == fault && note.what == FaultEvent::Injected)
    };
    let rank_of = wanted
        .rank_of
        .as_deref()
        .and_then(victim)
        .and_then(|note| note.rank);
    let node_of = wanted
        .node_of
        .as_deref()
        .and_then(victim)
        .and_then(|note| note.node.clone());
    let mut wrong = Vec::new();
    let class = class_name(&found["class"]);
    if wanted.class.as_ref().is_some_and(|wanted| *wanted != class) {
        wrong.push(format!(
            "the class is {class}, not {}",
            wanted.class.as_deref().unwrap_or_default()
        ));
    }
    if let Some(rank) = wanted.rank.or(rank_of)
        && found["rank"].as_u64() != Some(rank.into())
    {
        wrong.push(format!("the rank is {}, not {rank}", found["rank"]));
    }
    if let Some(node) = wanted.node.clone().or(node_of)
        && found["node"] != node.as_str()
    {
        wrong.push(format!("the node is {}, not {node}", found["node"]));
    }
    let summary = found["summary"].as_str().unwrap_or_default();
    Check::of("cause", &wrong, format!("{class}: {summary}"))
}

/// The name of a class, which may be written as its number.
fn class_name(class: &Value) -> String {
    const NAMES: [&str; 14] = [
        "unknown",
        "program",
        "host_memory",
        "gpu_memory",
        "gpu_hardware",
        "link",
        "network",
        "storage",
        "hang",
        "straggler",
        "node_lost",
        "preempted",
        "numeric",
        "killed",
    ];
    let by_number = class
        .as_u64()
        .and_then(|number| NAMES.get(usize::try_from(number).ok()?));
    match (by_number, class.as_str()) {
        (Some(name), _) => (*name).to_owned(),
        (None, Some(name)) => name
            .to_lowercase()
            .trim_start_matches("fault_class_")
            .to_owned(),
        (None, None) => "unknown".to_owned(),
    }
}

fn said(history: &History) -> Vec<Check> {
    let expect = &history.scenario.expect;
    let anybody = |text: &str| history.said.values().any(|words| words.contains(text));
    let missing: Vec<String> = expect
        .says
        .iter()
        .filter(|text| !anybody(text))
        .map(|text| format!("nobody said `{text}`"))
        .collect();
    let unwanted: Vec<String> = expect
        .never_says
        .iter()
        .filter(|text| anybody(text))
        .map(|text| format!("somebody said `{text}`"))
        .collect();
    let wrong = [missing, unwanted].concat();
    if expect.says.is_empty() && expect.never_says.is_empty() {
        return Vec::new();
    }
    vec![Check::of("words", &wrong, "what had to be said was said")]
}
