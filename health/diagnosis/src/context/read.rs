// SPDX-License-Identifier: Apache-2.0
//! From `context.toml` and `clocks.toml`.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::{Attempt, Context, Node};
use crate::evidence::{Evidence, FileKind};

/// Reads what the evidence holds of it.
pub(crate) fn read(evidence: &Evidence) -> Context {
    let mut context = Context::default();
    for file in evidence.of_kind(FileKind::Context) {
        match file.text.parse::<Table>() {
            Ok(table) => take(&mut context, &table),
            Err(error) => context.notes.push(note(&file.name, &error)),
        }
    }
    for file in evidence.of_kind(FileKind::Clocks) {
        match file.text.parse::<Table>() {
            Ok(table) => clocks(&mut context, &table),
            Err(error) => context.notes.push(note(&file.name, &error)),
        }
    }
    context
}

fn note(name: &str, error: &toml::de::Error) -> String {
    format!(
        "{name} is passed over: {}",
        error.message().replace('\n', ", ")
    )
}

fn take(context: &mut Context, table: &Table) {
    context.world_size = table.get("world_size").and_then(whole);
    context.steps_done = table.get("steps_done").and_then(whole);
    context.step_s = table.get("step_s").and_then(seconds);
    context.last_step_age_s = table.get("last_step_age_s").and_then(seconds);
    let text = |names: &[&str]| names.iter().find_map(|name| words(table.get(*name)?));
    context.window = (
        text(&["start", "started", "job_start", "start_time", "job_started"]),
        text(&["end", "ended", "job_end", "end_time", "job_ended"]),
    );
    for node in tables(table, &["node", "nodes"]) {
        context.nodes.extend(node_from(node));
    }
    for (rank, pid) in by_rank(table.get("pids")) {
        context.pids.extend(whole(pid).map(|pid| (rank, pid)));
    }
    for (rank, pids) in by_rank(table.get("children")) {
        let pids: BTreeSet<u32> = list(pids).filter_map(whole).collect();
        context.children.insert(rank, pids);
    }
    for attempt in tables(table, &["attempt", "attempts"]) {
        context.attempts.push(attempt_from(attempt));
    }
    clocks(context, table);
}

/// How far the clocks of nodes are ahead: `clock_ahead_s`, and whatever table of numbers has nodes for keys.
fn clocks(context: &mut Context, table: &Table) {
    let mut ahead: BTreeMap<String, f64> = BTreeMap::new();
    for (name, value) in table {
        if let Some(inner) = value.as_table() {
            let named = inner
                .iter()
                .filter_map(|(node, value)| Some((node.clone(), clock_of(value)?)));
            ahead.extend(named);
        } else if let Some(seconds) = clock_of(value) {
            ahead.insert(name.clone(), seconds);
        }
    }
    for node in tables(table, &["node", "nodes", "clock", "clocks"]) {
        let name = node.get("name").or_else(|| node.get("node"));
        let offset = ["clock_ahead_s", "ahead_s", "offset_s"]
            .iter()
            .find_map(|name| seconds(node.get(*name)?));
        if let (Some(name), Some(offset)) = (name.and_then(words), offset) {
            ahead.insert(name, offset);
        }
    }
    for node in &mut context.nodes {
        if let Some(&seconds) = ahead.get(&node.name) {
            node.clock_ahead_s = seconds;
        }
    }
}

fn clock_of(value: &Value) -> Option<f64> {
    match value {
        Value::Table(table) => ["clock_ahead_s", "ahead_s", "offset_s"]
            .iter()
            .find_map(|name| seconds(table.get(*name)?)),
        other => seconds(other),
    }
}

fn node_from(table: &Table) -> Option<Node> {
    let name = words(table.get("name").or_else(|| table.get("node"))?)?;
    let aliases = [
        "host",
        "hostname",
        "ip",
        "ips",
        "address",
        "addresses",
        "addr",
        "aliases",
    ]
    .iter()
    .filter_map(|key| table.get(*key))
    .flat_map(list)
    .filter_map(words)
    .collect();
    Some(Node {
        name,
        aliases,
        ranks: list_of(table, "ranks").filter_map(whole).collect(),
        gpus: list_of(table, "gpus").filter_map(words).collect(),
        clock_ahead_s: table
            .get("clock_ahead_s")
            .and_then(seconds)
            .unwrap_or_default(),
    })
}

fn attempt_from(table: &Table) -> Attempt {
    let find = |names: &[&str]| names.iter().find_map(|name| table.get(*name));
    let node = find(&["culprit_node", "failed_node", "node", "host", "nodes"])
        .and_then(|value| list(value).next().and_then(words));
    Attempt {
        rank: find(&["culprit_rank", "failed_rank", "rank"]).and_then(whole),
        node,
        step: find(&["step", "steps_done", "failed_step", "last_step"]).and_then(whole),
        failure: find(&[
            "fingerprint",
            "error",
            "message",
            "failure",
            "exception",
            "class",
            "cause",
            "what",
            "signal",
            "exit",
            "exit_code",
        ])
        .and_then(words),
    }
}

fn tables<'a>(table: &'a Table, names: &'a [&str]) -> impl Iterator<Item = &'a Table> {
    names
        .iter()
        .filter_map(|name| table.get(*name)?.as_array())
        .flatten()
        .filter_map(Value::as_table)
}

/// Values with ranks for keys, or in the order of ranks.
fn by_rank(value: Option<&Value>) -> Vec<(u32, &Value)> {
    match value {
        Some(Value::Table(table)) => table
            .iter()
            .filter_map(|(rank, value)| Some((rank.parse().ok()?, value)))
            .collect(),
        Some(Value::Array(array)) => (0..).zip(array).collect(),
        _ => Vec::new(),
    }
}

fn list_of<'a>(table: &'a Table, name: &str) -> impl Iterator<Item = &'a Value> {
    table.get(name).into_iter().flat_map(list)
}

/// The values of an array, or the one value.
fn list(value: &Value) -> impl Iterator<Item = &Value> {
    match value {
        Value::Array(array) => array.iter(),
        one => std::slice::from_ref(one).iter(),
    }
}

fn whole<T: TryFrom<i64> + std::str::FromStr>(value: &Value) -> Option<T> {
    match value {
        Value::Integer(number) => T::try_from(*number).ok(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds are small")]
fn seconds(value: &Value) -> Option<f64> {
    match value {
        Value::Float(number) if number.is_finite() => Some(*number),
        Value::Integer(number) => Some(*number as f64),
        _ => None,
    }
}

fn words(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => {
            Some(value.to_string())
        }
        Value::Array(_) | Value::Table(_) => None,
    }
}
