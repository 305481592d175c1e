// SPDX-License-Identifier: Apache-2.0
//! Host lists that are to be expanded: one a line, or an array in JSON.

use std::fmt;

use serde_json::{Value, json};
use steadfast_diagnosis::EvidenceFile;

use crate::slurm::hostlist::{HostList, MAX_HOSTS};

/// A list, and what it comes to.
#[derive(Debug)]
pub(super) struct Expanded {
    input: String,
    hosts: Result<Vec<String>, String>,
}

/// Expands all lists of these files.
pub(super) fn expand(files: &[EvidenceFile]) -> Vec<Expanded> {
    let mut room = MAX_HOSTS;
    files
        .iter()
        .flat_map(inputs)
        .map(|input| {
            // A variable of the environment may come with blanks and a line end.
            let hosts = HostList::parse(input.trim().as_bytes(), room)
                .map(|list| {
                    room -= list.len();
                    list.hosts().collect()
                })
                .map_err(|error| error.to_string());
            Expanded { input, hosts }
        })
        .collect()
}

fn inputs(file: &EvidenceFile) -> Vec<String> {
    if let Ok(Value::Array(list)) = serde_json::from_str(&file.text) {
        let texts = list.iter().map(|value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        return texts.collect();
    }
    let lines = file.text.lines();
    lines
        .filter(|line| !line.trim_start().starts_with('#'))
        .map(str::to_owned)
        .collect()
}

impl Expanded {
    pub(super) fn json(&self) -> Value {
        match &self.hosts {
            Ok(hosts) => json!({ "input": self.input, "hosts": hosts }),
            Err(error) => json!({ "input": self.input, "error": true, "message": error }),
        }
    }
}

impl fmt::Display for Expanded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let input = self.input.escape_debug();
        match &self.hosts {
            Ok(hosts) => write!(formatter, "{input}: {}", hosts.join(" ")),
            Err(error) => write!(formatter, "{input}: refused: {error}"),
        }
    }
}
