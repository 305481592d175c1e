// SPDX-License-Identifier: Apache-2.0
//! How long from a fault until the job is back.
//!
//! One job, many faults, each at a random moment: a launcher that polls would otherwise be hit at
//! the same phase of its period every time. After each fault four times are taken: the first
//! instruction of the first and of the last new worker, the end of the last old worker, and the
//! first step of the new generation.

mod episode;
mod report;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use steadfast_sim::Random;

pub(crate) use super::job::LauncherKind;
use super::job::{Job, Launcher, Work};
use super::launch::{
    Out, Program, on_path, python, steadfast_or_default, temporary_directory, words,
};
use super::processes;
use super::statistics::{Summary, milliseconds};
use super::waiting::heed_interrupts;
use crate::failure::Failure;
use episode::Episode;

/// What is to be measured.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) workers: u32,
    pub(crate) faults: u32,
    pub(crate) fault: Fault,
    pub(crate) steadfast: Option<PathBuf>,
    pub(crate) python: Option<PathBuf>,
    pub(crate) beside: Vec<(LauncherKind, PathBuf)>,
    /// No other launchers, even if some are installed.
    pub(crate) alone: bool,
    pub(crate) at_most_ms: Option<f64>,
    pub(crate) seed: u64,
    pub(crate) json: bool,
}

/// How a worker is brought down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// SIGKILL from outside.
    Kill,
    /// The worker exits with code 1.
    Exit,
}

/// What was measured for one launcher. Milliseconds since the fault.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    launcher: &'static str,
    first_worker: Summary,
    last_worker: Summary,
    old_gone: Summary,
    first_step: Summary,
}

/// What Python alone takes here and now. Milliseconds since it was started.
#[derive(Debug, Serialize)]
pub(super) struct PythonAlone {
    /// `python3 -c pass`, from start to end.
    pass: Summary,
    /// As many at once as there are workers: the first and the last one's first instruction.
    first_of_many: Summary,
    last_of_many: Summary,
}

/// All that is reported.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    fault: Fault,
    workers: u32,
    faults: u32,
    processors: usize,
    load: String,
    rows: Vec<Row>,
    /// Launchers that were not measured, and why.
    absent: Vec<String>,
    python: PythonAlone,
    at_most_ms: Option<f64>,
    within_limit: Option<bool>,
}

/// Measures and reports. Says whether steadfast kept to the limit, if there is one.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<bool, Failure> {
    heed_interrupts()?;
    let path = steadfast_or_default(options.steadfast.clone())?;
    let python = python(options.python.as_deref())?;
    let load = processes::load();
    let alone = python_alone(&python, options)?;
    let launcher = |kind, path| Launcher {
        kind,
        path,
        python: python.clone(),
    };
    let row = measure(&launcher(LauncherKind::Steadfast, path), options)?;
    let within_limit = options
        .at_most_ms
        .map(|limit| row.last_worker.median <= limit);
    let mut rows = vec![row];
    let mut absent = Vec::new();
    for (kind, path, named) in peers(options) {
        let Some(path) = path else {
            absent.push(format!("{}: not on PATH", kind.name()));
            continue;
        };
        match measure(&launcher(kind, path), options) {
            Ok(row) => rows.push(row),
            Err(failure) if named => return Err(failure),
            Err(failure) => absent.push(format!("{}: {failure}", kind.name())),
        }
    }
    let report = Report {
        fault: options.fault,
        workers: options.workers,
        faults: options.faults,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        load,
        rows,
        absent,
        python: alone,
        at_most_ms: options.at_most_ms,
        within_limit,
    };
    report.write(options.json, out)?;
    Ok(within_limit != Some(false))
}

/// The other launchers: those that were named, else those that are installed. Says whether each was
/// named.
fn peers(options: &Options) -> Vec<(LauncherKind, Option<PathBuf>, bool)> {
    let named = options
        .beside
        .iter()
        .map(|(kind, path)| (*kind, Some(path.clone()), true));
    let mut peers: Vec<_> = named.collect();
    if peers.is_empty() && !options.alone {
        peers = [LauncherKind::Torchrun, LauncherKind::FtLauncher]
            .map(|kind| (kind, on_path(kind.name()), false))
            .to_vec();
    }
    peers
}

fn measure(launcher: &Launcher, options: &Options) -> Result<Row, Failure> {
    let mut random = Random::new(options.seed);
    let mut job = Job::start(launcher, options.workers, Work::Train)?;
    let mut restart = 0;
    let mut episodes = Vec::new();
    for _ in 0..options.faults {
        let episode = Episode::observe(&mut job, options, restart, &mut random)?;
        restart = episode.restart;
        episodes.push(episode);
    }
    job.program.stop()?;
    let summary = |time: fn(&Episode) -> u64| {
        let times: Vec<_> = episodes
            .iter()
            .map(|episode| milliseconds(time(episode)))
            .collect();
        Summary::of(&times).ok_or_else(|| Failure::Unexpected("there was no fault".to_owned()))
    };
    Ok(Row {
        launcher: launcher.kind.name(),
        first_worker: summary(|episode| episode.first_worker)?,
        last_worker: summary(|episode| episode.last_worker)?,
        old_gone: summary(|episode| episode.old_gone)?,
        first_step: summary(|episode| episode.first_step)?,
    })
}

fn python_alone(python: &Path, options: &Options) -> Result<PythonAlone, Failure> {
    let directory = temporary_directory()?;
    let pass = words([&python, &"-c", &"pass"]);
    let clock = words([&python, &"-c", &"import time; print(time.monotonic_ns())"]);
    let (mut alone, mut first, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.faults {
        let mut program = Program::start(&pass, directory.path(), Out::Nowhere)?;
        let end = program.end_ns(Duration::from_mins(1))?;
        alone.push(milliseconds(end - program.started_ns));
        let times = start_together(&clock, options.workers, directory.path())?;
        let least = times.iter().min().copied().unwrap_or(0);
        let greatest = times.iter().max().copied().unwrap_or(0);
        first.push(milliseconds(least));
        last.push(milliseconds(greatest));
    }
    let nothing = || Failure::Unexpected("no Python was started".to_owned());
    Ok(PythonAlone {
        pass: Summary::of(&alone).ok_or_else(nothing)?,
        first_of_many: Summary::of(&first).ok_or_else(nothing)?,
        last_of_many: Summary::of(&last).ok_or_else(nothing)?,
    })
}

/// Starts so many at once; nanoseconds from the first start to each one's first instruction.
fn start_together(
    clock: &[std::ffi::OsString],
    count: u32,
    directory: &Path,
) -> Result<Vec<u64>, Failure> {
    let paths: Vec<_> = (0..count)
        .map(|index| directory.join(format!("clock-{index}")))
        .collect();
    let mut programs = paths
        .iter()
        .map(|path| Program::start(clock, directory, Out::File(path)))
        .collect::<Result<Vec<_>, _>>()?;
    let began = programs.first().map_or(0, |program| program.started_ns);
    let mut times = Vec::new();
    for (program, path) in programs.iter_mut().zip(&paths) {
        program.wait(Duration::from_mins(1))?;
        let text =
            std::fs::read_to_string(path).map_err(|error| Failure::read(path.display(), error))?;
        let at: u64 = text.trim().parse().map_err(|_| {
            Failure::Unexpected(format!("Python printed {text:?} instead of its clock"))
        })?;
        times.push(at.saturating_sub(began));
    }
    Ok(times)
}
