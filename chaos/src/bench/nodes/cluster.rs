// SPDX-License-Identifier: Apache-2.0
//! A training job on several nodes that are all this machine: a launcher for each, with workers that train with gloo.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use serde::Deserialize;

use super::Case;
use super::command::{JOB, Place};
use super::trial::{Back, Outcome};
use crate::bench::etcd::Etcd;
use crate::bench::job::LauncherKind;
use crate::bench::launch::{Out, Program, pid_of, temporary_directory, words, write};
use crate::bench::lines::Lines;
use crate::bench::processes;
use crate::bench::waiting::wait_for;
use crate::failure::Failure;
use steadfast_sim::Random;

const WORKER: &str = include_str!("worker.py");
const TRAINING: &str = include_str!("../../../../examples/train_ddp.py");
/// More steps than any bench lets a job make.
const STEPS: &str = "100000000";
/// How long a job may take until it trains.
const TRAIN_WITHIN: Duration = Duration::from_mins(3);
/// Steps that a generation makes before it counts as training.
const SETTLED_STEPS: usize = 5;

/// What a bench needs for each of its clusters.
#[derive(Debug, Clone)]
pub(super) struct Tools {
    pub(super) kind: LauncherKind,
    pub(super) path: PathBuf,
    pub(super) python: PathBuf,
    pub(super) workers_per_node: u32,
    pub(super) etcd_program: Option<PathBuf>,
    /// How long a job may take to train again.
    pub(super) give_up_after: Duration,
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
    name: String,
    /// Whether the launchers of the others meet at it.
    is_host: bool,
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
        let members = if case == Case::HostLost { 3 } else { 1 };
        let etcd = match tools.kind {
            LauncherKind::Steadfast => Some(Etcd::own(tools.etcd_program.as_deref(), members)?),
            LauncherKind::Torchrun | LauncherKind::FtLauncher => None,
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
        let place = Place {
            number: self.started,
            name: &name,
            directory: &directory,
            workers: &self.tools.workers_per_node.to_string(),
            case: self.case,
        };
        let (path, is_peer) = (&self.tools.path, self.etcd.is_none());
        // What launchers and frameworks leave in the place for temporary files goes with the job.
        let mut temporary = OsString::from("TMPDIR=");
        temporary.push(self.directory.path());
        let mut command = words([&"env", &temporary]);
        command.extend(match &self.etcd {
            Some(etcd) => place.steadfast(path, &etcd.uri, &self.tools.python),
            None => place.peer(self.tools.kind, path, self.port),
        });
        command.extend(self.worker());
        let program = Program::start(&command, &directory, Out::Nowhere)?;
        self.nodes.push(Node {
            name,
            is_host: is_peer && self.started == 1,
            program,
            directory,
        });
        Ok(())
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

    /// What becomes of the job after a fault at that time.
    pub(super) fn await_outcome(&mut self, fault: u64) -> Result<Outcome, Failure> {
        let ranks = self.case.nodes_after() * self.tools.workers_per_node;
        let waited = wait_for("the job to train again", self.tools.give_up_after, || {
            self.records.extend(self.lines.fresh()?);
            if let Some(back) = back(&self.records, fault, ranks) {
                return Ok(Some(Outcome::Back(back)));
            }
            let mut all_ended = true;
            for node in &mut self.nodes {
                all_ended &= node.program.has_ended()?;
            }
            Ok(all_ended.then_some(Outcome::Ended))
        });
        match waited {
            Err(Failure::Waited { .. }) => Ok(Outcome::Away),
            waited => waited,
        }
    }

    /// Draws a worker that may be hit, and the place of its node in the list.
    pub(super) fn victim(&self, random: &mut Random) -> Result<(u32, usize), Failure> {
        let leads = match (&self.etcd, self.case) {
            (Some(etcd), Case::HostLost) => Some(etcd.leading_node(JOB)?),
            _ => None,
        };
        let may_be_hit = |node: &Node| match (self.case, &leads) {
            (case, _) if case.is_about_a_worker() => true,
            (Case::HostLost, Some(leads)) => node.name == *leads,
            (Case::HostLost, None) => node.is_host,
            _ => !node.is_host,
        };
        let mut fit = Vec::new();
        for rank in 0..2 * self.tools.workers_per_node {
            let worker = self.worker_of(rank);
            // A process id that is nowhere below our launchers may be somebody else's by now.
            let found = worker.and_then(|worker| Some((worker, self.node_of(worker)?)));
            fit.extend(found.filter(|(_, index)| self.nodes.get(*index).is_some_and(may_be_hit)));
        }
        let drawn = usize::try_from(random.below(fit.len().max(1) as u64)).unwrap_or(0);
        fit.get(drawn)
            .copied()
            .ok_or_else(|| Failure::Unexpected("no worker can be found that may be hit".to_owned()))
    }

    /// The worker of a rank that was born last.
    fn worker_of(&self, rank: u32) -> Option<u32> {
        let births = self.records.iter().rev();
        let mut of_rank = births.filter(|record| record.event == "start" && record.rank == rank);
        of_rank.next().map(|record| record.pid)
    }

    /// The node whose launcher has this worker, by its place in the list.
    fn node_of(&self, worker: u32) -> Option<usize> {
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

/// When the job came back after a fault at that time, once it has: so many ranks train.
fn back(records: &[Record], fault: u64, ranks: u32) -> Option<Back> {
    if !is_training(records, fault, ranks) {
        return None;
    }
    let born: BTreeSet<u32> = records
        .iter()
        .filter(|record| record.event == "start" && record.monotonic_ns > fault)
        .map(|record| record.pid)
        .collect();
    let steps = records
        .iter()
        .filter(|record| record.event == "step" && born.contains(&record.pid));
    Some(Back {
        first_worker: births(records, fault).min()? - fault,
        first_step: steps.map(|record| record.monotonic_ns).min()? - fault,
    })
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

    #[test]
    fn a_job_is_back_when_new_workers_train() {
        let mut records = vec![record("start", 0, 10, 5), record("step", 0, 10, 6)];
        assert_eq!(back(&records, 7, 1), None);
        records.extend([record("start", 0, 20, 17), record("step", 0, 10, 18)]);
        records.extend((0..SETTLED_STEPS as u64).map(|step| record("step", 0, 20, 27 + step)));
        let expected = Back {
            first_worker: 10,
            first_step: 20,
        };
        assert_eq!(back(&records, 7, 1), Some(expected));
        assert_eq!(back(&records, 7, 2), None);
    }
}
