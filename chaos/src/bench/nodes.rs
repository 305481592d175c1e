// SPDX-License-Identifier: Apache-2.0
//! How long a job on several nodes is away when a worker or a whole node is lost, here and under other launchers.
//!
//! The nodes are all this machine: a launcher for each, meeting over loopback, and workers that really train together
//! (PyTorch, gloo). What is measured is the time from the fault to the first line of the first new worker, and to the
//! first step; a job that does not train again in the time that it is given has none.

mod case;
mod cluster;
mod command;
mod report;
mod share;
mod trial;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

pub(crate) use self::case::Case;
use self::cluster::Tools;
use self::share::Share;
use self::trial::{Row, measure};
use super::job::LauncherKind;
use super::launch::{on_path, python, steadfast_or_default};
use super::processes;
use super::statistics::Summary;
use super::waiting::heed_interrupts;
use crate::failure::Failure;
use steadfast_sim::Random;

/// What is to be measured.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) cases: Vec<Case>,
    pub(crate) reps: u32,
    pub(crate) workers_per_node: u32,
    pub(crate) steadfast: Option<PathBuf>,
    pub(crate) python: Option<PathBuf>,
    pub(crate) torchrun: Option<PathBuf>,
    pub(crate) ft_launcher: Option<PathBuf>,
    /// No other launchers, even if some are installed.
    pub(crate) alone: bool,
    /// How long a job may take to train again.
    pub(crate) give_up_after: Duration,
    pub(crate) etcd_program: Option<PathBuf>,
    pub(crate) seed: u64,
    pub(crate) json: bool,
}

/// Where the time goes when a worker is killed. Milliseconds.
#[derive(Debug, Serialize)]
struct Parts {
    /// From the exit to the start of the last node's new workers.
    total: Summary,
    stopping: Summary,
    starting: Summary,
    coordination: Summary,
    /// One small write to this etcd.
    write: Summary,
    /// Coordination without the writes that have to follow each other.
    own: f64,
}

/// All that is reported.
#[derive(Debug, Serialize)]
struct Report {
    workers_per_node: u32,
    reps: u32,
    /// Seconds that a job may take to train again.
    give_up_after: u64,
    processors: usize,
    load: String,
    rows: Vec<Row>,
    parts: Option<Parts>,
    /// What was not measured, and why.
    absent: Vec<String>,
}

/// Measures and reports.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<bool, Failure> {
    heed_interrupts()?;
    let load = processes::load();
    let python = python(options.python.as_deref())?;
    let cases = if options.cases.is_empty() {
        Case::ALL.to_vec()
    } else {
        options.cases.clone()
    };
    let mut random = Random::new(options.seed);
    let (mut rows, mut parts) = (Vec::new(), None);
    let (launchers, mut absent) = launchers(options, &python)?;
    // By turns, so that all of them have the same weather.
    for (case, tools) in cases
        .iter()
        .flat_map(|case| launchers.iter().map(move |tools| (*case, tools)))
    {
        let (name, what) = (tools.kind.name(), case.words());
        if let Some(why) = case.impossible_for(tools.kind) {
            absent.push(format!("{name}, {what}: {why}"));
            continue;
        }
        match measure(tools, case, options.reps, &mut random) {
            Ok((row, of_case)) => {
                rows.push(row);
                parts = parts.or(of_case);
            }
            Err(failure @ Failure::Interrupted(_)) => return Err(failure),
            Err(failure) if tools.kind == LauncherKind::Steadfast => return Err(failure),
            Err(failure) => absent.push(format!("{name}, {what}: {}", in_short(&failure))),
        }
    }
    let report = Report {
        workers_per_node: options.workers_per_node,
        reps: options.reps,
        give_up_after: options.give_up_after.as_secs(),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        load,
        rows,
        parts,
        absent,
    };
    report.write(options.json, out)?;
    Ok(true)
}

/// Whom to measure, and who is missing.
fn launchers(options: &Options, python: &Path) -> Result<(Vec<Tools>, Vec<String>), Failure> {
    let steadfast = steadfast_or_default(options.steadfast.clone())?;
    let mut found = vec![(LauncherKind::Steadfast, steadfast)];
    let mut absent = Vec::new();
    let others = [
        (LauncherKind::Torchrun, &options.torchrun),
        (LauncherKind::FtLauncher, &options.ft_launcher),
    ];
    for (kind, named) in others.into_iter().filter(|_| !options.alone) {
        match named.clone().or_else(|| on_path(kind.name())) {
            Some(path) => found.push((kind, path)),
            None => absent.push(format!(
                "{}: not on PATH; name it with --{}",
                kind.name(),
                kind.name().replace('_', "-")
            )),
        }
    }
    let tools = found.into_iter().map(|(kind, path)| Tools {
        kind,
        path,
        python: python.to_owned(),
        workers_per_node: options.workers_per_node,
        etcd_program: options.etcd_program.clone(),
        give_up_after: options.give_up_after,
    });
    Ok((tools.collect(), absent))
}

/// A failure without all that a program said before its last words.
fn in_short(failure: &Failure) -> String {
    let text = failure.to_string();
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default().to_owned();
    match lines.next_back() {
        Some(last) => format!("{first} {last}"),
        None => first,
    }
}

impl Parts {
    fn of(shares: &[Share], write: Summary) -> Result<Self, Failure> {
        let summary = |part: fn(&Share) -> f64| {
            let values: Vec<_> = shares.iter().map(part).collect();
            Summary::of(&values).ok_or_else(|| Failure::Unexpected("no restart".to_owned()))
        };
        let coordination = summary(Share::coordination)?;
        Ok(Self {
            total: summary(|share| share.total)?,
            stopping: summary(|share| share.stopping)?,
            starting: summary(|share| share.starting)?,
            coordination,
            write,
            own: coordination.median - share::WRITES * write.median,
        })
    }
}
