// SPDX-License-Identifier: Apache-2.0
//! J-3 and J-7: what the store was told.

use std::collections::BTreeMap;

use serde_json::Value;

use super::lives::Worker;
use super::load::History;
use super::{Check, Verdict};
use crate::history::StoreChange;

/// What of a plan must not change while its generation lasts.
const FIXED: [&str; 4] = ["members", "world_size", "master", "restart_count"];

/// J-3.
pub(super) fn generations_grow(history: &History, workers: &[Worker]) -> Check {
    let mut wrong = births_in_order(workers);
    let mut newest = 0;
    let mut plans: BTreeMap<u64, Value> = BTreeMap::new();
    for change in values(&history.store, "/job/plan") {
        let Some(plan) = &change.value else {
            wrong.push(format!(
                "the plan was removed in revision {}",
                change.revision
            ));
            continue;
        };
        let generation = plan["generation"].as_u64().unwrap_or(0);
        if generation < newest {
            wrong.push(format!(
                "generation {generation} was planned after generation {newest}"
            ));
        }
        if generation > newest + 1 && newest > 0 {
            wrong.push(format!(
                "generation {generation} follows generation {newest}"
            ));
        }
        newest = newest.max(generation);
        let first = plans.entry(generation).or_insert_with(|| plan.clone());
        let other = FIXED.iter().find(|field| first[**field] != plan[**field]);
        if let Some(field) = other {
            wrong.push(format!(
                "generation {generation} has two plans: `{field}` was {} and became {}",
                first[*field], plan[*field]
            ));
        }
    }
    if let Some(unknown) = blind(history) {
        return unknown;
    }
    Check::of(
        "J-3",
        &wrong,
        "generations grow one by one, and each has one plan",
    )
}

/// J-7.
pub(super) fn result_stays(history: &History, workers: &[Worker]) -> Check {
    let results: Vec<&StoreChange> = values(&history.store, "/job/result").collect();
    let Some(first) = results.first() else {
        return Check::pass("J-7", "there was no result in the store");
    };
    let mut wrong = Vec::new();
    if let Some(other) = results
        .iter()
        .find(|change| change.value.is_some() && change.value != first.value)
    {
        wrong.push(format!(
            "the result was changed in revision {}",
            other.revision
        ));
    }
    let late = workers
        .iter()
        .filter(|worker| worker.first_ns > first.monotonic_ns);
    wrong.extend(late.map(|worker| {
        format!(
            "rank {} of generation {} was started after the result",
            worker.rank, worker.generation
        )
    }));
    Check::of(
        "J-7",
        &wrong,
        "the result stayed, and nothing was started after it",
    )
}

/// The changes of the one key of the job that ends so.
fn values<'a>(store: &'a [StoreChange], ending: &'a str) -> impl Iterator<Item = &'a StoreChange> {
    store
        .iter()
        .filter(move |change| change.key.ends_with(ending))
}

fn births_in_order(workers: &[Worker]) -> Vec<String> {
    let mut first: BTreeMap<u64, u64> = BTreeMap::new();
    for worker in workers {
        let birth = first.entry(worker.generation).or_insert(worker.first_ns);
        *birth = (*birth).min(worker.first_ns);
    }
    let births: Vec<(u64, u64)> = first.into_iter().collect();
    let pairs = births.iter().zip(births.iter().skip(1));
    pairs
        .filter(|((_, earlier), (_, later))| later < earlier)
        .map(|((older, _), (newer, _))| {
            format!("generation {newer} was born before generation {older}")
        })
        .collect()
}

/// A store that was not watched to the end says nothing about what it held.
fn blind(history: &History) -> Option<Check> {
    let lost = history.store.iter().find(|change| {
        let ended = change.value.as_ref().and_then(Value::as_str);
        change.key == "witness" && ended.is_some_and(|words| words.starts_with("ended"))
    })?;
    let words = lost
        .value
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    Some(Check::new(
        "J-3",
        Verdict::Unknown,
        format!("the store was not watched: {words}"),
    ))
}
