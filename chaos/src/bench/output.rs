// SPDX-License-Identifier: Apache-2.0
//! How much a worker that writes as fast as it can is slowed down by being supervised.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::job::{Job, Launcher, LauncherKind, Record, Work, records_in};
use super::launch::{
    Out, Program, python, steadfast_or_default, temporary_directory, words, write,
};
use super::statistics::{Summary, milliseconds};
use super::waiting::heed_interrupts;
use super::{job, processes, report};
use crate::failure::Failure;

/// Most time for one run.
const END_WITHIN: Duration = Duration::from_mins(10);

/// What is to be measured.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) megabytes: u32,
    pub(crate) rounds: u32,
    pub(crate) steadfast: Option<PathBuf>,
    pub(crate) json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    megabytes: u32,
    load: String,
    /// Milliseconds that the writer took, straight into a file.
    direct: Summary,
    /// Milliseconds that the writer took under steadfast.
    supervised: Summary,
    /// Supervised over direct, medians.
    ratio: f64,
    /// Bytes that the log files lack, over all rounds.
    missing_bytes: u64,
}

/// Measures and reports. Says whether every byte has reached the log file.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<bool, Failure> {
    heed_interrupts()?;
    let launcher = Launcher {
        kind: LauncherKind::Steadfast,
        path: steadfast_or_default(options.steadfast.clone())?,
        python: python(None)?,
    };
    let load = processes::load();
    let (mut direct, mut supervised, mut missing_bytes) = (Vec::new(), Vec::new(), 0);
    // By turns, so that a change in what else the machine does hits both.
    for _ in 0..options.rounds {
        direct.push(write_directly(options, &launcher.python)?);
        let (took, missing) = write_supervised(options, &launcher)?;
        supervised.push(took);
        missing_bytes += missing;
    }
    let nothing = || Failure::Unexpected("there was no round".to_owned());
    let direct = Summary::of(&direct).ok_or_else(nothing)?;
    let supervised = Summary::of(&supervised).ok_or_else(nothing)?;
    let report = Report {
        megabytes: options.megabytes,
        load,
        direct,
        supervised,
        ratio: supervised.median / direct.median.max(1e-3),
        missing_bytes,
    };
    report::write(&report, options.json, out, |out| report.write(out))?;
    Ok(report.missing_bytes == 0)
}

fn write_directly(options: &Options, python: &Path) -> Result<f64, Failure> {
    let directory = temporary_directory()?;
    let worker = directory.path().join(job::WORKER_FILE);
    write(&worker, job::WORKER)?;
    let mut command = words([&python, &worker]);
    command.extend(flood(options).arguments());
    let file = directory.path().join("stdout.log");
    let mut program = Program::start(&command, directory.path(), Out::File(&file))?;
    program.wait(END_WITHIN)?;
    took(&records_in(directory.path()).fresh()?)
}

/// Milliseconds, and bytes that are not in the log file.
fn write_supervised(options: &Options, launcher: &Launcher) -> Result<(f64, u64), Failure> {
    let mut job = Job::start(launcher, 1, flood(options))?;
    job.program.wait(END_WITHIN)?;
    let took = took(job.records()?)?;
    let wanted = u64::from(options.megabytes) * 1_000_000;
    Ok((took, wanted.saturating_sub(job.bytes_in("stdout.log"))))
}

fn flood(options: &Options) -> Work {
    Work::Flood {
        megabytes: options.megabytes,
    }
}

fn took(records: &[Record]) -> Result<f64, Failure> {
    let took = records.iter().find_map(|record| record.took_ns);
    took.map(milliseconds)
        .ok_or_else(|| Failure::Unexpected("the writer did not say how long it took".to_owned()))
}

impl Report {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let rounds = self.direct.count;
        writeln!(
            out,
            "A worker writes {} MB of lines as fast as it can, {rounds} times each way; load {} before.\n\
             Milliseconds: median [least-greatest].\n",
            self.megabytes, self.load
        )?;
        writeln!(out, "straight into a file                 {}", self.direct)?;
        writeln!(
            out,
            "supervised (log file and console)    {}",
            self.supervised
        )?;
        writeln!(
            out,
            "ratio                                {:.2}",
            self.ratio
        )?;
        writeln!(
            out,
            "bytes missing in the log files       {}",
            self.missing_bytes
        )
    }
}
