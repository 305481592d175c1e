// SPDX-License-Identifier: Apache-2.0
//! Reading a history.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::failure::Failure;
use crate::history::{End, FaultNote, Run, Sample, StatusNote, StoreChange};
use crate::scenario::{Scenario, read_file};
use crate::world::life::Sign;

/// A history.
#[derive(Debug, Clone)]
pub(crate) struct History {
    pub(crate) run: Run,
    pub(crate) scenario: Scenario,
    pub(crate) signs: Vec<Sign>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) store: Vec<StoreChange>,
    pub(crate) faults: Vec<FaultNote>,
    pub(crate) statuses: Vec<StatusNote>,
    pub(crate) end: End,
    /// What the journal of each node says.
    pub(crate) journals: BTreeMap<String, Vec<Value>>,
    /// What the supervisor of each node said.
    pub(crate) said: BTreeMap<String, String>,
}

/// Reads the history in a directory.
pub(crate) fn load(directory: &Path) -> Result<History, Failure> {
    let scenario = read_file(&directory.join("scenario.toml"))?.scenario;
    let (mut journals, mut said) = (BTreeMap::new(), BTreeMap::new());
    for number in 1..=scenario.nodes.all() {
        let node = format!("n{number}");
        journals.insert(
            node.clone(),
            journal(&directory.join(format!("{node}-journal.jsonl"))),
        );
        let words = fs::read(directory.join(format!("{node}-stderr.txt"))).unwrap_or_default();
        said.insert(node, String::from_utf8_lossy(&words).into_owned());
    }
    Ok(History {
        run: json(&directory.join("run.json"))?,
        signs: lines(&directory.join("life.jsonl"))?,
        samples: lines(&directory.join("processes.jsonl"))?,
        store: lines(&directory.join("store.jsonl"))?,
        faults: lines(&directory.join("faults.jsonl"))?,
        statuses: lines(&directory.join("status.jsonl"))?,
        end: json(&directory.join("end.json"))?,
        scenario,
        journals,
        said,
    })
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let text = fs::read_to_string(path).map_err(|error| Failure::read(path.display(), error))?;
    serde_json::from_str(&text)
        .map_err(|error| Failure::Unexpected(format!("{}: {error}", path.display())))
}

/// The lines of a file; one that is not there has none.
fn lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, Failure> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::read(path.display(), error)),
    };
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.is_empty());
    lines
        .map(|(index, line)| {
            serde_json::from_str(line).map_err(|error| {
                Failure::Unexpected(format!("{}:{}: {error}", path.display(), index + 1))
            })
        })
        .collect()
}

/// The lines of a supervisor's journal. One that was killed, or whose disk was full, may have left half a line.
fn journal(path: &Path) -> Vec<Value> {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}
