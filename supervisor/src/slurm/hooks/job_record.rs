// SPDX-License-Identifier: Apache-2.0
//! What the prolog leaves for the epilog and the node service: which jobs are on the node, whose they are, and which GPUs
//! they have.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use steadfast_process::tree::Process;

use super::memory::{boot_id, make_directory, read_json, write_json};
use super::surroundings::HookJob;
use crate::clock;

/// A job on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    /// Its number.
    pub(crate) job: String,
    /// Whose it is.
    pub(crate) uid: Option<u32>,
    /// Its GPUs, by the numbers of the driver's device files; `None` when Slurm does not say.
    pub(crate) gpus: Option<Vec<u32>>,
    /// When its prolog ran, on the monotonic clock.
    pub(crate) began_ns: u64,
    /// The same moment, in clock ticks since the start of the machine, as processes count.
    pub(crate) began_ticks: u64,
    boot_id: String,
}

/// The directory of a node's records.
fn directory(state_dir: &Path, node: &str) -> PathBuf {
    state_dir.join("jobs").join(node)
}

impl JobRecord {
    /// A job that begins now.
    pub(crate) fn beginning(job: &HookJob) -> JobRecord {
        let me = i32::try_from(std::process::id())
            .ok()
            .and_then(Process::read);
        JobRecord {
            job: job.id.clone(),
            uid: job.uid,
            gpus: job.gpus.clone(),
            began_ns: clock::monotonic_ns(),
            began_ticks: me.map_or(0, |me| me.start_ticks),
            boot_id: boot_id(),
        }
    }

    /// Leaves the record. A job that begins once more gets a new one.
    pub(crate) fn write(&self, state_dir: &Path, node: &str) -> io::Result<()> {
        let directory = directory(state_dir, node);
        make_directory(&directory)?;
        write_json(&directory.join(format!("{}.json", self.job)), self)
    }

    /// The record of one job, if its prolog has left one since the machine started.
    pub(crate) fn read(state_dir: &Path, node: &str, job: &str) -> Option<JobRecord> {
        let file = directory(state_dir, node).join(format!("{job}.json"));
        read_json::<JobRecord>(&file).filter(|record| record.boot_id == boot_id())
    }

    /// Takes the record away.
    pub(crate) fn remove(state_dir: &Path, node: &str, job: &str) -> io::Result<()> {
        match fs::remove_file(directory(state_dir, node).join(format!("{job}.json"))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The jobs on this node, as far as their prologs have said so.
    pub(crate) fn all(state_dir: &Path, node: &str) -> Vec<JobRecord> {
        Self::in_directory(&directory(state_dir, node))
    }

    /// The jobs of every node that this machine is to Slurm. That is one, but for tests.
    pub(crate) fn of_all_nodes(state_dir: &Path) -> Vec<JobRecord> {
        let nodes = fs::read_dir(state_dir.join("jobs")).into_iter().flatten();
        nodes
            .flatten()
            .flat_map(|node| Self::in_directory(&node.path()))
            .collect()
    }

    fn in_directory(directory: &Path) -> Vec<JobRecord> {
        let boot = boot_id();
        let files = fs::read_dir(directory).into_iter().flatten().flatten();
        files
            .filter(|file| file.path().extension().is_some_and(|end| end == "json"))
            .filter_map(|file| read_json::<JobRecord>(&file.path()))
            .filter(|record| record.boot_id == boot)
            .collect()
    }
}

#[cfg(test)]
impl JobRecord {
    /// A job with these GPUs.
    pub(crate) fn for_test(uid: u32, gpus: Option<Vec<u32>>) -> JobRecord {
        JobRecord {
            job: "1".to_owned(),
            uid: Some(uid),
            gpus,
            began_ns: 0,
            began_ticks: 0,
            boot_id: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_and_go_by_node_and_job() {
        let state = tempfile::tempdir().unwrap();
        let job = |id: &str| HookJob {
            id: id.to_owned(),
            uid: Some(1000),
            gpus: Some(vec![0]),
            nodes: None,
            start_time: None,
        };
        let record = JobRecord::beginning(&job("71"));
        record.write(state.path(), "n1").unwrap();
        record.write(state.path(), "n1").unwrap();
        JobRecord::beginning(&job("72"))
            .write(state.path(), "n2")
            .unwrap();
        assert_eq!(JobRecord::read(state.path(), "n1", "71"), Some(record));
        assert_eq!(JobRecord::read(state.path(), "n1", "72"), None);
        assert_eq!(JobRecord::all(state.path(), "n1").len(), 1);
        assert_eq!(JobRecord::of_all_nodes(state.path()).len(), 2);
        JobRecord::remove(state.path(), "n1", "71").unwrap();
        JobRecord::remove(state.path(), "n1", "71").unwrap();
        assert!(JobRecord::all(state.path(), "n1").is_empty());
    }
}
