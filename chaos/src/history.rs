// SPDX-License-Identifier: Apache-2.0
//! What a run leaves for the judge: a directory of files, all of one monotonic clock.
//!
//! | file | what |
//! | --- | --- |
//! | `scenario.toml` | the scenario, as it was read |
//! | `run.json` | how it was run |
//! | `life.jsonl` | what the workers wrote down of themselves |
//! | `processes.jsonl` | what was seen of the job's processes from outside |
//! | `store.jsonl` | every change of the job's records in etcd |
//! | `faults.jsonl` | what was done to the job, and the evidence for it |
//! | `status.jsonl` | what `steadfast status` said after each restart |
//! | `NODE-journal.jsonl`, `NODE-stderr.txt`, `NODE-stdout.txt` | what the supervisor of a node wrote |
//! | `end.json` | how it ended |

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;

/// How a scenario was run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Name of the scenario.
    pub(crate) scenario: String,
    /// What the run was called, and its processes were marked with.
    pub(crate) mark: String,
    /// What its nodes were.
    pub(crate) mode: String,
    /// When it began.
    pub(crate) began_ns: u64,
    /// What was run on each node, if not the default job.
    pub(crate) command: Vec<String>,
}

/// Something about a fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FaultNote {
    /// Name of the fault.
    pub(crate) fault: String,
    /// Name of what it does.
    pub(crate) inject: String,
    /// The how manieth time this is, from 1.
    pub(crate) time: u32,
    /// When.
    pub(crate) monotonic_ns: u64,
    /// What happened to it.
    pub(crate) what: FaultEvent,
    /// The node that it hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// The rank that it hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rank: Option<u32>,
    /// The process that it hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<i32>,
    /// In words; of one that has landed, the evidence.
    pub(crate) words: String,
}

/// What happened to a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultEvent {
    /// It was done.
    Injected,
    /// There is evidence that it has had its effect.
    Landed,
    /// It was undone.
    Healed,
    /// It could not be done, or has left no evidence.
    Failed,
    /// Chance decided against it.
    LeftOut,
    /// Its moment never came.
    NeverDue,
}

/// A process with a rank, as it was seen from outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Its id.
    pub(crate) pid: i32,
    /// Its name.
    pub(crate) name: String,
    /// The rank in its environment.
    pub(crate) rank: u32,
    /// The generation in its environment.
    pub(crate) generation: u64,
    /// The node in its environment.
    pub(crate) node: String,
    /// When it was seen first.
    pub(crate) first_ns: u64,
    /// When it was last seen able to run.
    pub(crate) last_ns: u64,
}

/// A change in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoreChange {
    /// When it was seen.
    pub(crate) monotonic_ns: u64,
    /// The revision that made it.
    pub(crate) revision: i64,
    /// The key.
    pub(crate) key: String,
    /// Its new value; none when it was removed.
    pub(crate) value: Option<Value>,
}

/// A line of a node's journal.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JournalLine {
    /// The node.
    pub(crate) node: String,
    /// When it was read.
    pub(crate) at_ns: u64,
    /// The line.
    pub(crate) line: Value,
}

/// What a supervisor said of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StatusNote {
    /// When.
    pub(crate) monotonic_ns: u64,
    /// The node that was asked.
    pub(crate) node: String,
    /// The answer.
    pub(crate) status: Value,
}

/// The end of a supervisor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ending {
    /// Its node.
    pub(crate) node: String,
    /// When it was started.
    pub(crate) started_ns: u64,
    /// When its end was seen.
    pub(crate) ended_ns: u64,
    /// Its exit code.
    pub(crate) code: Option<i32>,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    /// Whether a fault had ended it on purpose.
    pub(crate) off: bool,
}

/// How a run ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct End {
    /// When.
    pub(crate) monotonic_ns: u64,
    /// The ends of the supervisors.
    pub(crate) endings: Vec<Ending>,
    /// Whether the harness had to end it.
    pub(crate) timed_out: bool,
    /// What was left when all supervisors had ended.
    pub(crate) leftovers: Vec<String>,
    /// The final loss of the same job that was left alone.
    pub(crate) right_loss: Option<String>,
    /// Steps of the default job.
    pub(crate) steps: Option<u64>,
}

/// Writes the files of a history that grow while the job runs.
#[derive(Debug)]
pub(crate) struct Recorder {
    faults: File,
    status: File,
}

impl Recorder {
    /// Begins the files.
    pub(crate) fn new(directory: &Path) -> Result<Self, Failure> {
        let create = |name: &str| {
            let path = directory.join(name);
            File::create(&path).map_err(|error| Failure::write(path.display(), error))
        };
        Ok(Self {
            faults: create("faults.jsonl")?,
            status: create("status.jsonl")?,
        })
    }

    /// Writes down what happened to a fault.
    pub(crate) fn fault(&mut self, note: &FaultNote) -> Result<(), Failure> {
        line(&mut self.faults, note)
    }

    /// Writes down what a supervisor said.
    pub(crate) fn status(&mut self, note: &StatusNote) -> Result<(), Failure> {
        line(&mut self.status, note)
    }
}

/// Writes a file of one JSON value.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::write(path.display(), error.into()))?;
    crate::bench::launch::write(path, &text)
}

fn line(file: &mut File, value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string(value)
        .map_err(|error| Failure::write("the history", error.into()))?;
    text.push('\n');
    file.write_all(text.as_bytes())
        .map_err(|error| Failure::write("the history", error))
}
