// SPDX-License-Identifier: Apache-2.0
//! A job of four ranks that can be told to hang.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use serde::Deserialize;
use serde_json::Value;

use super::{Disk, Fault, Training};
use crate::bench::etcd::Etcd;
use crate::bench::launch::{Out, Program, pid_of, temporary_directory, words, write};
use crate::bench::lines::Lines;
use crate::bench::processes;
use crate::bench::waiting::{now_ns, wait_for};
use crate::failure::Failure;

/// Ranks of a job, on however many nodes.
pub(super) const RANKS: u32 = 4;
const WRAPPER: &str = include_str!("hanging.py");
const TOY: &str = include_str!("../../../../examples/train_toy.py");
const DDP: &str = include_str!("../../../../examples/train_ddp.py");
/// More steps than any bench lets a job make.
const STEPS: &str = "100000000";
/// Steps after which it is known how long they take.
const LEARNED: u64 = 15;
/// How long a job may take until it trains, and until a rank does as it is told.
const TRAIN_WITHIN: Duration = Duration::from_mins(3);

/// What every job needs.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) steadfast: PathBuf,
    pub(super) python: PathBuf,
    pub(super) etcd_program: Option<PathBuf>,
    pub(super) training: Training,
    pub(super) step_seconds: f64,
    /// How long a job is watched in which nothing must be done.
    pub(super) watch: Duration,
}

/// Whom it hits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Victim {
    /// Which rank; `None` for all of the node.
    pub(super) rank: Option<u32>,
    pub(super) node: String,
}

/// What a rank has written about itself.
#[derive(Debug, Clone, Deserialize)]
struct Record {
    node: String,
    rank: u32,
    pid: u32,
    #[serde(default)]
    step: u64,
}

/// A launcher, and what it tells.
#[derive(Debug)]
struct Node {
    name: String,
    program: Program,
    journal: Lines<Value>,
    told: Vec<Value>,
}

/// A job. Dropping it ends all of it.
#[derive(Debug)]
pub(super) struct Job {
    nodes: Vec<Node>,
    records: Lines<Record>,
    seen: Vec<Record>,
    directory: tempfile::TempDir,
    /// Where several nodes meet. It ends after them.
    etcd: Option<Etcd>,
}

impl Job {
    /// Starts it on so many nodes. `rank` is the one that a fault will hit.
    pub(super) fn start(
        setup: &Setup,
        fault: Fault,
        (nodes, rank): (u32, u32),
        disk: Option<&Disk>,
    ) -> Result<Self, Failure> {
        let directory = temporary_directory()?;
        write(&directory.path().join("hanging.py"), WRAPPER)?;
        let script = match setup.training {
            Training::Toy => TOY,
            Training::Ddp => DDP,
        };
        write(&directory.path().join("train.py"), script)?;
        let etcd = (nodes > 1)
            .then(|| Etcd::at_or_own(None, setup.etcd_program.as_deref()))
            .transpose()?;
        let mut job = Self {
            nodes: Vec::new(),
            records: Lines::of(directory.path().join("records.jsonl")),
            seen: Vec::new(),
            directory,
            etcd,
        };
        for number in 1..=nodes {
            let etcd = job.etcd.as_ref();
            let coord = etcd.map_or("embedded", |etcd| etcd.uri.as_str());
            let name = format!("node{number}");
            let own = job.directory.path().join(&name);
            fs::create_dir(&own).map_err(|error| Failure::write(own.display(), error))?;
            let mut command = environment(job.directory.path(), disk, (fault, rank));
            command.extend(launcher(setup, (&name, coord, nodes), &own, fault));
            command.extend(job.worker(setup));
            job.nodes.push(Node {
                program: Program::start(&command, &own, Out::Nowhere)?,
                journal: Lines::of(own.join("journal.jsonl")),
                told: Vec::new(),
                name,
            });
        }
        Ok(job)
    }

    fn worker(&self, setup: &Setup) -> Vec<OsString> {
        let directory = self.directory.path();
        words([
            &"--",
            &setup.python,
            &directory.join("hanging.py"),
            &directory.join("train.py"),
            &"--steps",
            &STEPS,
            &"--step-time",
            &setup.step_seconds.to_string(),
            &"--json-log",
            &directory.join("records.jsonl"),
        ])
    }

    /// Waits until the ranks have trained for a while.
    pub(super) fn wait_until_trained(&mut self) -> Result<(), Failure> {
        wait_for("the ranks to train", TRAIN_WITHIN, || {
            self.look()?;
            let trained = self.seen.iter().filter(|record| record.step == LEARNED);
            let trained: BTreeSet<u32> = trained.map(|record| record.rank).collect();
            Ok((trained.len() == RANKS as usize).then_some(()))
        })
    }

    /// Does it. Says whom it has hit, and when.
    pub(super) fn strike(&mut self, fault: Fault, rank: u32) -> Result<(Victim, u64), Failure> {
        if fault == Fault::NodeSilent {
            return self.silence();
        }
        if fault == Fault::Stop {
            let record = self.record_of(rank)?;
            let gone = || Failure::Unexpected(format!("rank {rank} cannot be found"));
            // A process id that is nowhere below our launchers may be somebody else's by now.
            if !self.is_ours(record.pid) {
                return Err(gone());
            }
            let struck = now_ns();
            kill_process(pid_of(record.pid).ok_or_else(gone)?, Signal::STOP)
                .map_err(|error| Failure::Unexpected(format!("rank {rank}: {error}")))?;
            return Ok((victim(rank, record.node), struck));
        }
        // What is no fault of one rank is done by all of them.
        let ranks = if fault == Fault::Uneven {
            0..RANKS
        } else {
            rank..rank + 1
        };
        for rank in ranks.filter(|_| fault.word().is_some()) {
            let word = fault.word().unwrap_or_default();
            write(&self.directory.path().join(format!("{word}-{rank}")), "")?;
        }
        let struck = self.wait_until_struck(rank)?;
        let node = self.record_of(rank).map(|record| record.node);
        // A rank that never comes to write its first line is on the node that the plan says: ranks are in order.
        let node = node.unwrap_or_else(|_| self.node_by_order(rank));
        Ok((victim(rank, node), struck))
    }

    /// The first verdict, once there is one.
    pub(super) fn verdict(&mut self) -> Result<Option<Value>, Failure> {
        self.look()?;
        let judged = |line: &&Value| line["kind"] == "stall.judged";
        let mut told = self.nodes.iter().flat_map(|node| &node.told);
        Ok(told.find(judged).cloned())
    }

    /// Whether the workers were started anew.
    pub(super) fn was_restarted(&mut self) -> Result<bool, Failure> {
        self.look()?;
        let starts = |node: &Node| {
            let starting = node.told.iter();
            starting
                .filter(|line| line["kind"] == "generation.starting")
                .count()
        };
        Ok(self.nodes.iter().any(|node| starts(node) > 1))
    }

    /// Stops everything on a node that does not lead: of the one that does, the others would first have to take its place.
    fn silence(&mut self) -> Result<(Victim, u64), Failure> {
        self.look()?;
        let leads = |node: &&Node| {
            node.told
                .iter()
                .any(|line| line["kind"] == "peer.connected")
        };
        let nobody = || Failure::Unexpected("no node leads, or all of them do".to_owned());
        let node = self
            .nodes
            .iter()
            .find(|node| !leads(node))
            .ok_or_else(nobody)?;
        let struck = now_ns();
        for process in processes::tree(node.program.pid()) {
            if let Some(process) = pid_of(process) {
                let _already_gone = kill_process(process, Signal::STOP);
            }
        }
        let victim = Victim {
            rank: None,
            node: node.name.clone(),
        };
        Ok((victim, struck))
    }

    fn wait_until_struck(&mut self, rank: u32) -> Result<u64, Failure> {
        let path = self.directory.path().join(format!("struck-{rank}"));
        wait_for("the rank to do as it is told", TRAIN_WITHIN, || {
            self.look()?;
            let text = fs::read_to_string(&path).unwrap_or_default();
            Ok(text.parse().ok())
        })
    }

    fn record_of(&mut self, rank: u32) -> Result<Record, Failure> {
        self.look()?;
        let mut of_rank = self.seen.iter().rev();
        let found = of_rank.find(|record| record.rank == rank).cloned();
        found.ok_or_else(|| Failure::Unexpected(format!("rank {rank} has written nothing")))
    }

    fn node_by_order(&self, rank: u32) -> String {
        let slots = RANKS / u32::try_from(self.nodes.len()).unwrap_or(1).max(1);
        let of_others: BTreeSet<&String> = self
            .seen
            .iter()
            .filter(|record| record.rank / slots != rank / slots)
            .map(|record| &record.node)
            .collect();
        let node = self
            .nodes
            .iter()
            .find(|node| !of_others.contains(&node.name));
        node.map(|node| node.name.clone()).unwrap_or_default()
    }

    fn is_ours(&self, pid: u32) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| processes::tree(node.program.pid()).contains(&pid))
    }

    fn look(&mut self) -> Result<(), Failure> {
        self.seen.extend(self.records.fresh()?);
        if let Some(etcd) = &mut self.etcd {
            etcd.must_run()?;
        }
        for node in &mut self.nodes {
            node.program.must_run()?;
            node.told.extend(node.journal.fresh()?);
        }
        Ok(())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for node in &self.nodes {
            if !node.program.may_run() {
                continue;
            }
            // Those that are stopped cannot end by themselves.
            for process in processes::tree(node.program.pid()) {
                if let Some(process) = pid_of(process) {
                    let _already_gone = kill_process(process, Signal::KILL);
                }
            }
        }
        self.nodes.clear();
        for process in processes::mentioning(self.directory.path()) {
            if let Some(process) = pid_of(process) {
                let _already_gone = kill_process(process, Signal::KILL);
            }
        }
    }
}

fn victim(rank: u32, node: String) -> Victim {
    Victim {
        rank: Some(rank),
        node,
    }
}

/// What the workers are told through their environment.
fn environment(
    directory: &Path,
    disk: Option<&Disk>,
    (fault, rank): (Fault, u32),
) -> Vec<OsString> {
    let mut command = words([&"/usr/bin/env"]);
    let mut set = |name: &str, value: &std::ffi::OsStr| {
        let mut word = OsString::from(format!("{name}="));
        word.push(value);
        command.push(word);
    };
    set("HANG_FILES", directory.as_os_str());
    if let Some(disk) = disk {
        set("HANG_WRITES_TO", disk.path().as_os_str());
    }
    if fault == Fault::Init {
        set("HANG_BEFORE_FIRST_STEP", rank.to_string().as_ref());
    }
    command
}

fn launcher(
    setup: &Setup,
    (name, coord, nodes): (&str, &str, u32),
    directory: &Path,
    fault: Fault,
) -> Vec<OsString> {
    let workers = (RANKS / nodes).to_string();
    let mut command = words([
        &setup.steadfast,
        &"run",
        &"--coord",
        &coord,
        &"--job",
        &"bench",
        &"--node-name",
        &name,
        &"--address",
        &"127.0.0.1",
        &"--nnodes",
        &nodes.to_string(),
        &"--nproc-per-node",
        &workers,
        &"--log-dir",
        &directory.join("logs"),
        &"--journal",
        &directory.join("journal.jsonl"),
        &"--runtime-dir",
        &directory.join("run"),
    ]);
    match fault {
        // Before the first step, nobody can know how long that takes.
        Fault::Init => command.extend(words([&"--stall-after", &"init=3s"])),
        // So that the coordination does not end the generation before there is a verdict.
        Fault::NodeSilent => command.extend(words([&"--witness", &"off", &"--lease", &"60s"])),
        _ => {}
    }
    if !fault.is_none() {
        command.extend(words([&"--stall", &"report"]));
    }
    command
}
