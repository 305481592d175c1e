// SPDX-License-Identifier: Apache-2.0
//! A job of real workers under a launcher, and the records that its workers write.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Signal, kill_process};
use serde::Deserialize;

use super::launch::{Out, Program, pid_of, temporary_directory, words, write};
use super::lines::Lines;
use super::processes;
use crate::failure::Failure;

/// The workers' program.
pub(super) const WORKER: &str = include_str!("job/worker.py");
pub(super) const WORKER_FILE: &str = "worker.py";
const RECORDS_FILE: &str = "records.jsonl";
/// Restarts that are allowed: more than any bench needs.
const MAX_RESTARTS: &str = "1000";

/// Something that launches workers as torchrun does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Launcher {
    pub(super) kind: LauncherKind,
    pub(super) path: PathBuf,
    /// For the workers, where the launcher does not bring its own.
    pub(super) python: PathBuf,
}

/// The launchers that the benches know how to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LauncherKind {
    /// This project.
    #[value(skip)]
    Steadfast,
    Torchrun,
    #[value(name = "ft_launcher")]
    FtLauncher,
}

/// What the workers do.
#[derive(Debug, Clone, Copy)]
pub(super) enum Work {
    /// Steps with a barrier over all ranks.
    Train,
    /// So many lines a second each, and nothing else.
    Print { lines_per_second: u32 },
    /// As fast as it goes.
    Flood { megabytes: u32 },
}

/// One line that a worker wrote about itself.
#[derive(Debug, Clone, Deserialize, PartialEq)]
pub(super) struct Record {
    pub(super) event: String,
    /// How often the job had been restarted before.
    pub(super) restart: u64,
    pub(super) rank: u32,
    pub(super) pid: u32,
    pub(super) monotonic_ns: u64,
    /// For the end of a flood: how long it took.
    pub(super) took_ns: Option<u64>,
}

/// A running job.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) program: Program,
    directory: tempfile::TempDir,
    lines: Lines<Record>,
    records: Vec<Record>,
}

impl LauncherKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Steadfast => "steadfast",
            Self::Torchrun => "torchrun",
            Self::FtLauncher => "ft_launcher",
        }
    }
}

impl Work {
    /// The worker's arguments.
    pub(super) fn arguments(self) -> Vec<OsString> {
        match self {
            Self::Train => words([&"train"]),
            Self::Print { lines_per_second } => words([&"print", &lines_per_second.to_string()]),
            Self::Flood { megabytes } => words([&"flood", &megabytes.to_string()]),
        }
    }
}

impl Job {
    /// Starts so many workers under the launcher.
    pub(super) fn start(launcher: &Launcher, workers: u32, work: Work) -> Result<Self, Failure> {
        let directory = temporary_directory()?;
        write(&directory.path().join(WORKER_FILE), WORKER)?;
        let mut command = launcher.command(workers, directory.path());
        command.extend(work.arguments());
        let program = Program::start(&command, directory.path(), Out::Nowhere)?;
        Ok(Self {
            program,
            lines: records_in(directory.path()),
            directory,
            records: Vec::new(),
        })
    }

    /// All that the workers have written so far.
    pub(super) fn records(&mut self) -> Result<&[Record], Failure> {
        self.records.extend(self.lines.fresh()?);
        Ok(&self.records)
    }

    /// Bytes in all files of this name below the job's directory.
    pub(super) fn bytes_in(&self, name: &str) -> u64 {
        bytes_below(self.directory.path(), name)
    }
}

impl Drop for Job {
    /// Workers can be in sessions of their own, where no signal to the launcher's group finds them.
    fn drop(&mut self) {
        self.program.end();
        for pid in processes::mentioning(self.directory.path()) {
            if let Some(pid) = pid_of(pid) {
                let _already_gone = kill_process(pid, Signal::KILL);
            }
        }
    }
}

impl Launcher {
    /// Underscores in the flags of the others: versions of every age know those.
    fn command(&self, workers: u32, directory: &Path) -> Vec<OsString> {
        let workers = workers.to_string();
        let worker = directory.join(WORKER_FILE);
        match self.kind {
            LauncherKind::Steadfast => words([
                &self.path,
                &"run",
                &"--nproc-per-node",
                &workers,
                &"--max-restarts",
                &MAX_RESTARTS,
                &"--log-dir",
                &directory.join("logs"),
                &"--runtime-dir",
                &directory.join("run"),
                &"--",
                &self.python,
                &worker,
            ]),
            LauncherKind::Torchrun => words([
                &self.path,
                &"--standalone",
                &"--nproc_per_node",
                &workers,
                &"--max_restarts",
                &MAX_RESTARTS,
                &worker,
            ]),
            LauncherKind::FtLauncher => words([
                &self.path,
                &"--nnodes",
                &"1",
                &"--nproc_per_node",
                &workers,
                &"--max_restarts",
                &MAX_RESTARTS,
                &"--rdzv_backend",
                &"c10d",
                &"--rdzv_endpoint",
                &"127.0.0.1:0",
                &worker,
            ]),
        }
    }
}

/// The records of the workers whose program lies in this directory.
pub(super) fn records_in(directory: &Path) -> Lines<Record> {
    Lines::of(directory.join(RECORDS_FILE))
}

fn bytes_below(directory: &Path, name: &str) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    let mut total = 0;
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if metadata.is_dir() {
            total += bytes_below(&entry.path(), name);
        } else if entry.file_name() == name {
            total += metadata.len();
        }
    }
    total
}
