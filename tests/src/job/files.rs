// SPDX-License-Identifier: Apache-2.0
//! What a job leaves in files: its logs, its journal, and the records that its workers keep of themselves.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Job;
use crate::leftovers::entries;

impl Job {
    /// The directory of this run's logs: with several nodes, the one of this node in that of the job.
    #[track_caller]
    pub fn run_dir(&self) -> PathBuf {
        let mut runs = self.run_dirs();
        assert_eq!(
            runs.len(),
            1,
            "the logs of one run were expected: {runs:?}; {}",
            self.describe()
        );
        runs.remove(0)
    }

    /// The directories of all runs: those that a keeper has begun a journal in.
    pub(super) fn run_dirs(&self) -> Vec<PathBuf> {
        let logs = self.directory().join("logs");
        let jobs: Vec<PathBuf> = inside(&logs);
        let nodes = jobs.iter().flat_map(|job| inside(job));
        let has_journal = |directory: &PathBuf| directory.join("journal.jsonl").exists();
        jobs.iter()
            .cloned()
            .chain(nodes)
            .filter(has_journal)
            .collect()
    }

    /// Content of a worker's log file; empty when there is none.
    pub fn log(&self, attempt: u32, local_rank: u32, stream: &str) -> String {
        let path = self
            .run_dir()
            .join(format!("attempt_{attempt}/{local_rank}/{stream}.log"));
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    }

    /// The lines of the journal.
    pub fn journal(&self) -> Vec<Value> {
        json_lines(&self.run_dir().join("journal.jsonl"))
    }

    /// The journal's lines of this kind.
    pub fn journal_of(&self, kind: &str) -> Vec<Value> {
        self.journal()
            .into_iter()
            .filter(|line| line["kind"] == kind)
            .collect()
    }

    /// What the workers wrote down about themselves.
    pub fn records(&self) -> Vec<Value> {
        json_lines(&self.directory().join("records.jsonl"))
    }

    /// The workers' records of this event.
    pub fn records_of(&self, event: &str) -> Vec<Value> {
        self.records()
            .into_iter()
            .filter(|record| record["event"] == event)
            .collect()
    }

    /// Waits until this many workers have got as far as to run the steps of this attempt. Returns their start records.
    #[track_caller]
    pub fn started(&self, attempt: u64, workers: usize) -> Vec<Value> {
        self.eventually(&format!("{workers} workers in attempt {attempt}"), |job| {
            let mut records = job.records_of("start");
            records.retain(|record| record["restart_count"] == attempt);
            (records.len() >= workers).then_some(records)
        })
    }

    /// Process id of the worker with this local rank, once it runs its steps.
    #[track_caller]
    pub fn worker(&self, attempt: u64, local_rank: u64) -> i32 {
        self.eventually(
            &format!("local rank {local_rank} in attempt {attempt}"),
            |job| {
                let records = job.records_of("start");
                let mine = |record: &&Value| {
                    record["restart_count"] == attempt && record["local_rank"] == local_rank
                };
                i32::try_from(records.iter().find(mine)?["pid"].as_i64()?).ok()
            },
        )
    }

    /// The signals that workers and their relatives have noted, in order.
    pub fn signals_seen(&self) -> Vec<String> {
        let seen = self.records_of("signal");
        seen.iter()
            .filter_map(|record| Some(record["signal"].as_str()?.to_owned()))
            .collect()
    }
}

fn inside(directory: &Path) -> Vec<PathBuf> {
    let names = entries(directory);
    names.into_iter().map(|name| directory.join(name)).collect()
}

/// The whole lines of a file of JSON lines; none when there is no such file.
pub fn json_lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line: &str| {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in `{line}`"))
    };
    whole.lines().map(parse).collect()
}
