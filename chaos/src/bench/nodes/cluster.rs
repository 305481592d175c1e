// SPDX-License-Identifier: Apache-2.0
//! A training job on several nodes that are all this machine: a launcher for each, with workers that train with gloo.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use serde::Deserialize;

use super::{Case, Peer};
use crate::bench::etcd::Etcd;
use crate::bench::launch::{Out, Program, pid_of, temporary_directory, words, write};
use crate::bench::lines::Lines;
use crate::bench::processes;
use crate::bench::waiting::wait_for;
use crate::failure::Failure;

const WORKER: &str = include_str!("worker.py");
const TRAINING: &str = include_str!("../../../../examples/train_ddp.py");
/// More steps than any bench lets a job make.
const STEPS: &str = "100000000";
/// Restarts that are allowed: more than any bench needs.
const MAX_RESTARTS: &str = "1000";
/// How long a job may take until it trains.
const TRAIN_WITHIN: Duration = Duration::from_mins(3);
/// Steps that a generation makes before it counts as training.
const SETTLED_STEPS: usize = 5;

/// What a bench needs for each of its clusters.
#[derive(Debug, Clone)]
pub(super) struct Tools {
    pub(super) peer: Peer,
    pub(super) python: PathBuf,
    pub(super) workers_per_node: u32,
    pub(super) etcd_program: Option<PathBuf>,
}

/// One line that a worker wrote about itself.
#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) event: String,
    pub(super) rank: u32,
    pub(super) pid: u32,
    pub(super) monotonic_ns: u64,
}

/// A node: a launcher and everything below it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) program: Program,
    /// Its logs, and its journal.
    pub(super) directory: PathBuf,
}

/// A job, and the etcd that it may need. Dropping it ends all of it.
#[derive(Debug)]
pub(super) struct Cluster {
    tools: Tools,
    case: Case,
    pub(super) nodes: Vec<Node>,
    /// Nodes that no longer count.
    pub(super) leaving: Vec<Node>,
    started: u32,
    pub(super) etcd: Option<Etcd>,
    port: u16,
    lines: Lines<Record>,
    pub(super) records: Vec<Record>,
    directory: tempfile::TempDir,
}

impl Cluster {
    /// Starts as many nodes as the case needs, and waits until they train.
    pub(super) fn start(tools: &Tools, case: Case) -> Result<Self, Failure> {
        let directory = temporary_directory()?;
        write(&directory.path().join("worker.py"), WORKER)?;
        write(&directory.path().join("train_ddp.py"), TRAINING)?;
        let etcd = match tools.peer {
            Peer::Steadfast(_) => Some(Etcd::at_or_own(None, tools.etcd_program.as_deref())?),
            Peer::Torchrun(_) => None,
        };
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .map_err(|error| Failure::read("a free port", error))?
            .port();
        let mut cluster = Self {
            tools: tools.clone(),
            case,
            nodes: Vec::new(),
            leaving: Vec::new(),
            started: 0,
            etcd,
            port,
            lines: Lines::of(directory.path().join("records.jsonl")),
            records: Vec::new(),
            directory,
        };
        for _ in 0..case.nodes() {
            cluster.add_node()?;
        }
        cluster.wait_until_training(0, 2)?;
        Ok(cluster)
    }

    /// Starts one more node.
    pub(super) fn add_node(&mut self) -> Result<(), Failure> {
        self.started += 1;
        let name = format!("node{}", self.started);
        let directory = self.directory.path().join(&name);
        fs::create_dir(&directory).map_err(|error| Failure::write(directory.display(), error))?;
        let mut command = match &self.tools.peer {
            Peer::Steadfast(path) => self.steadfast(path, &name, &directory),
            Peer::Torchrun(path) => self.torchrun(path, &directory),
        };
        command.extend(self.worker());
        let program = Program::start(&command, &directory, Out::Nowhere)?;
        self.nodes.push(Node { program, directory });
        Ok(())
    }

    fn steadfast(&self, path: &Path, name: &str, directory: &Path) -> Vec<OsString> {
        let coord = self.etcd.as_ref().map_or("", |etcd| etcd.uri.as_str());
        let workers = self.tools.workers_per_node.to_string();
        let mut command = words([
            &path,
            &"run",
            &"--coord",
            &coord,
            &"--job",
            &"bench",
            &"--node-name",
            &name,
            &"--address",
            &"127.0.0.1",
            &"--nproc-per-node",
            &workers,
            &"--max-restarts",
            &MAX_RESTARTS,
            &"--log-dir",
            &directory.join("logs"),
            &"--journal",
            &directory.join("journal.jsonl"),
            &"--runtime-dir",
            &directory.join("run"),
        ]);
        let shape = match self.case {
            Case::Shrink => words([
                &"--nnodes",
                &"1:2",
                &"--shrink-after",
                &"0s",
                &"--grow",
                &"immediately",
            ]),
            _ => words([&"--nnodes", &"2"]),
        };
        command.extend(shape);
        command.extend(words([&"--", &self.tools.python]));
        command
    }

    fn torchrun(&self, path: &Path, directory: &Path) -> Vec<OsString> {
        let (workers, endpoint) = (
            self.tools.workers_per_node.to_string(),
            format!("127.0.0.1:{}", self.port),
        );
        words([
            &path,
            &"--nnodes",
            &"2",
            &"--nproc_per_node",
            &workers,
            &"--max_restarts",
            &MAX_RESTARTS,
            &"--rdzv_backend",
            &"c10d",
            &"--rdzv_endpoint",
            &endpoint,
            &"--rdzv_id",
            &"bench",
            &"--log_dir",
            &directory.join("logs"),
        ])
    }

    fn worker(&self) -> Vec<OsString> {
        let directory = self.directory.path();
        let records = directory.join("records.jsonl");
        words([
            &directory.join("worker.py"),
            &records,
            &directory.join("train_ddp.py"),
            &"--steps",
            &STEPS,
            &"--log-every",
            &"1",
            &"--checkpoint-dir",
            &directory.join("checkpoints"),
            &"--json-log",
            &records,
        ])
    }

    /// Waits until so many nodes train with workers that were born after that time.
    pub(super) fn wait_until_training(&mut self, after_ns: u64, nodes: u32) -> Result<(), Failure> {
        let ranks = nodes * self.tools.workers_per_node;
        wait_for("the workers to train", TRAIN_WITHIN, || {
            self.look()?;
            Ok(is_training(&self.records, after_ns, ranks).then_some(()))
        })
    }

    /// When the first new worker was born after that time.
    pub(super) fn wait_for_birth(&mut self, after_ns: u64) -> Result<u64, Failure> {
        wait_for("the first new worker", TRAIN_WITHIN, || {
            self.look()?;
            Ok(births(&self.records, after_ns).min())
        })
    }

    /// The worker of a rank that was born last.
    pub(super) fn worker_of(&self, rank: u32) -> Option<u32> {
        let births = self.records.iter().rev();
        let mut of_rank = births.filter(|record| record.event == "start" && record.rank == rank);
        of_rank.next().map(|record| record.pid)
    }

    /// The node whose launcher has this worker, by its place in the list.
    pub(super) fn node_of(&self, worker: u32) -> Option<usize> {
        self.nodes
            .iter()
            .position(|node| processes::tree(node.program.pid()).contains(&worker))
    }

    fn look(&mut self) -> Result<(), Failure> {
        self.records.extend(self.lines.fresh()?);
        if let Some(etcd) = &mut self.etcd {
            etcd.must_run()?;
        }
        for node in &mut self.nodes {
            node.program.must_run()?;
        }
        Ok(())
    }
}

impl Node {
    /// Sends a signal to the launcher and to all that is below it, as near to at once as it goes.
    pub(super) fn signal_all(&self, signal: Signal) {
        if !self.program.may_run() {
            return;
        }
        for process in processes::tree(self.program.pid()) {
            if let Some(process) = pid_of(process) {
                let _already_gone = kill_process(process, signal);
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in self.nodes.iter().chain(&self.leaving) {
            node.signal_all(Signal::KILL);
        }
        self.nodes.clear();
        self.leaving.clear();
        for process in processes::mentioning(self.directory.path()) {
            if let Some(process) = pid_of(process) {
                let _already_gone = kill_process(process, Signal::KILL);
            }
        }
    }
}

fn births(records: &[Record], after_ns: u64) -> impl Iterator<Item = u64> {
    records
        .iter()
        // The training script writes such a line, too, once it has imported its framework.
        .filter(move |record| record.event == "start" && record.monotonic_ns > after_ns)
        .map(|record| record.monotonic_ns)
}

fn is_training(records: &[Record], after_ns: u64, ranks: u32) -> bool {
    let born = records
        .iter()
        .filter(|record| record.event == "start" && record.monotonic_ns > after_ns);
    let newest: std::collections::BTreeMap<u32, u32> =
        born.map(|record| (record.rank, record.pid)).collect();
    let steps = |pid: u32| {
        let own = |record: &&Record| record.pid == pid && record.event == "step";
        records.iter().filter(own).count()
    };
    newest.len() as u64 == u64::from(ranks)
        && newest.values().all(|pid| steps(*pid) >= SETTLED_STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(event: &str, rank: u32, pid: u32, monotonic_ns: u64) -> Record {
        Record {
            event: event.to_owned(),
            rank,
            pid,
            monotonic_ns,
        }
    }

    #[test]
    fn a_job_trains_when_all_its_new_workers_have_made_steps() {
        let mut records = vec![record("start", 0, 10, 1), record("start", 1, 11, 2)];
        for step in 0..SETTLED_STEPS as u64 {
            records.push(record("step", 0, 10, 10 + step));
        }
        assert!(!is_training(&records, 0, 2));
        for step in 0..SETTLED_STEPS as u64 {
            records.push(record("step", 1, 11, 10 + step));
        }
        assert!(is_training(&records, 0, 2));
        assert!(!is_training(&records, 1, 2));
        assert_eq!(births(&records, 1).min(), Some(2));
    }
}
