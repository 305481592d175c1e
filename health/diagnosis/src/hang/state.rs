// SPDX-License-Identifier: Apache-2.0
//! The states of the ranks at one moment, from `state.toml`.

use std::collections::BTreeSet;

use toml::{Table, Value};

use crate::context::Context;

/// All ranks.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) file: String,
    pub(super) step_s: Option<f64>,
    /// How long phases take as a rule, by their names.
    pub(super) usual_s: Vec<(String, f64)>,
    pub(super) ranks: Vec<Rank>,
}

/// One rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rank {
    pub(super) number: u32,
    pub(super) node: Option<String>,
    pub(super) step: Option<u64>,
    pub(super) phase: Option<String>,
    pub(super) age_s: Option<f64>,
    /// The process group that its sequence numbers count in.
    pub(super) process_group: String,
    pub(super) enqueued: Option<u64>,
    pub(super) completed: Option<u64>,
    pub(super) operation: Option<String>,
    pub(super) size: Option<String>,
    /// The innermost first.
    pub(super) stack: Vec<String>,
    /// The letter of the kernel: R, S, D, T, Z.
    pub(super) task_state: Option<char>,
    pub(super) wchan: Option<String>,
    pub(super) is_dead: bool,
}

impl State {
    /// The ranks of the job that are not there: one, or all those of one node.
    pub(super) fn missing(&self, context: &Context) -> BTreeSet<u32> {
        let there: BTreeSet<u32> = self.ranks.iter().map(|rank| rank.number).collect();
        let missing: BTreeSet<u32> = (0..context.world().unwrap_or_default())
            .filter(|rank| !there.contains(rank))
            .collect();
        let node = missing.first().and_then(|rank| context.node_of(*rank));
        let is_a_node = node.is_some_and(|node| {
            missing.len() == node.ranks.len()
                && node.ranks.iter().all(|rank| missing.contains(rank))
        });
        let counts = there.len() > 1 && (missing.len() == 1 || is_a_node);
        if counts { missing } else { BTreeSet::new() }
    }
}

/// Reads the file.
pub(super) fn parse(text: &str) -> Result<State, String> {
    let table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| error.message().replace('\n', ", "))?;
    let usual_s = table
        .iter()
        .filter_map(|(name, value)| Some((name.strip_suffix("_s")?.to_owned(), seconds(value)?)))
        .collect();
    let ranks = ["rank", "ranks"]
        .iter()
        .filter_map(|name| table.get(*name)?.as_array())
        .flatten()
        .filter_map(|value| rank(value.as_table()?))
        .collect();
    Ok(State {
        file: String::new(),
        step_s: table.get("step_s").and_then(seconds),
        usual_s,
        ranks,
    })
}

fn rank(table: &Table) -> Option<Rank> {
    let find = |names: &[&str]| names.iter().find_map(|name| table.get(*name));
    let number = |names: &[&str]| find(names).and_then(whole);
    let text = |names: &[&str]| find(names).and_then(words);
    let task_state = text(&[
        "task_state",
        "kernel_state",
        "process_state",
        "proc_state",
        "state",
    ]);
    let letter = task_state.as_deref().and_then(|state| {
        let mut letters = state.chars();
        let first = letters
            .next()
            .filter(|letter| "RSDTtZXI".contains(*letter))?;
        // `D (disk sleep)`, but not `Idle`.
        letters
            .next()
            .is_none_or(|next| !next.is_alphanumeric())
            .then_some(first)
    });
    let dead = ["dead", "exited", "gone", "killed", "lost"];
    Some(Rank {
        number: u32::try_from(number(&["rank", "global_rank"])?).ok()?,
        node: text(&["node", "host"]),
        step: number(&["step", "iteration"]),
        phase: text(&["phase"]).map(|phase| phase.to_ascii_lowercase()),
        age_s: find(&["progress_age_s", "age_s", "last_progress_age_s"]).and_then(seconds),
        process_group: text(&["group", "pg", "process_group", "communicator", "comm"])
            .unwrap_or_default(),
        enqueued: number(&["seq_enqueued", "enqueued", "last_enqueued", "seq"]),
        completed: number(&["seq_completed", "completed", "last_completed"]),
        operation: text(&["op", "operation", "collective"]).map(|name| name.to_ascii_uppercase()),
        size: text(&["numel", "size", "sizes", "input_sizes", "bytes"]),
        stack: find(&["stack", "frames"])
            .and_then(Value::as_array)
            .map(|frames| frames.iter().filter_map(words).collect())
            .unwrap_or_default(),
        task_state: letter,
        wchan: text(&["wchan", "kernel_function"]),
        is_dead: find(&["alive"]).and_then(Value::as_bool) == Some(false)
            || matches!(letter, Some('Z' | 'X'))
            || task_state.is_some_and(|state| dead.contains(&state.to_ascii_lowercase().as_str()))
            || find(&["dead", "exited"]).and_then(Value::as_bool) == Some(true),
    })
}

fn whole(value: &Value) -> Option<u64> {
    value
        .as_integer()
        .and_then(|number| u64::try_from(number).ok())
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
        Value::Integer(_) | Value::Float(_) | Value::Array(_) => Some(value.to_string()),
        _ => None,
    }
}
