// SPDX-License-Identifier: Apache-2.0
//! How long from an error of a GPU until the workers are being stopped.
//!
//! Two ways in: a line in the machine's own kernel log, and the driver's library, for which the fake one stands. Each time a
//! job of one worker is started anew; the error is one that takes the GPU out, so that the job ends. Measured is from before
//! the line is written, or the state of the fake library is changed, until the worker has its SIGTERM, which the worker
//! writes down itself, and until the drain of the job is published in etcd, as a watch of it sees. A member stops its own
//! workers without waiting for that.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use steadfast_coord::Store;
use steadfast_coord::etcd::{EtcdSettings, EtcdStore};
use steadfast_core::{Change, Keys, Revision};

use super::etcd::{Etcd, runtime};
use super::launch::{
    Out, Program, python, steadfast_or_default, temporary_directory, words, write,
};
use super::lines::Lines;
use super::statistics::{Summary, milliseconds};
use super::waiting::{heed_interrupts, now_ns, pause, wait_for};
use super::{processes, report};
use crate::failure::Failure;

const KERNEL_LOG: &str = "/dev/kmsg";
const LINE: &str = "<3>NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n";
const LIBRARY: &str = "libnvidia_ml.so";
const WITHIN: Duration = Duration::from_mins(1);
/// Once the job runs: what it reads at its beginning has been read.
const SETTLE: Duration = Duration::from_millis(700);
const WORKER: &str = "\
import os, signal, sys, time
def told(*_):
    now = time.monotonic_ns()
    with open(sys.argv[1] + '.new', 'w') as file:
        file.write(str(now))
    os.rename(sys.argv[1] + '.new', sys.argv[1])
    os._exit(0)
signal.signal(signal.SIGTERM, told)
open(sys.argv[2], 'w').close()
while True:
    signal.pause()
";

/// What is to be measured.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) rounds: u32,
    pub(crate) steadfast: Option<PathBuf>,
    pub(crate) fake_nvml: Option<PathBuf>,
    /// The etcd to start.
    pub(crate) etcd_program: Option<PathBuf>,
    pub(crate) at_most_ms: Option<f64>,
    pub(crate) json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    load: String,
    rows: Vec<Row>,
    /// Ways that could not be measured, and why.
    absent: Vec<String>,
    at_most_ms: Option<f64>,
    within_limit: Option<bool>,
}

/// Milliseconds from the error until the worker has its SIGTERM, and until the drain is published.
#[derive(Debug, Serialize)]
struct Row {
    through: &'static str,
    until_stopped: Summary,
    until_published: Summary,
}

/// The same of one job, in nanoseconds.
struct Times {
    stopped: u64,
    published: u64,
}

/// Waits for a drain to be published. Gives the time.
type Watching = thread::JoinHandle<Result<u64, Failure>>;

/// By which way the error comes.
#[derive(Debug, Clone)]
enum Way {
    KernelLog,
    Library(PathBuf),
}

struct Bench {
    steadfast: PathBuf,
    python: PathBuf,
    etcd: Etcd,
    directory: tempfile::TempDir,
}

/// Measures and reports. Says whether all medians kept to the limit, if there is one.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<bool, Failure> {
    heed_interrupts()?;
    let bench = Bench {
        steadfast: steadfast_or_default(options.steadfast.clone())?,
        python: python(None)?,
        etcd: Etcd::own(options.etcd_program.as_deref(), 1)?,
        directory: temporary_directory()?,
    };
    write(&bench.directory.path().join("worker.py"), WORKER)?;
    let load = processes::load();
    let (mut rows, mut absent) = (Vec::new(), Vec::new());
    match OpenOptions::new().write(true).open(KERNEL_LOG) {
        Ok(_) => rows.extend(bench.measure(&Way::KernelLog, options)?),
        Err(error) => absent.push(format!("{KERNEL_LOG}: {error}")),
    }
    match fake_library(options) {
        Some(library) => rows.extend(bench.measure(&Way::Library(library), options)?),
        None => absent.push(format!(
            "{LIBRARY} is not beside this program: build steadfast-fake-nvml"
        )),
    }
    let within = |limit: f64| rows.iter().all(|row| row.until_published.median <= limit);
    let within_limit = options.at_most_ms.map(within);
    let report = Report {
        load,
        rows,
        absent,
        at_most_ms: options.at_most_ms,
        within_limit,
    };
    report::write(&report, options.json, out, |out| {
        writeln!(
            out,
            "milliseconds from an error of a GPU on: median [least-greatest]; load {}",
            report.load
        )?;
        writeln!(
            out,
            "  {:<12} {:<16} drain published",
            "", "worker's SIGTERM"
        )?;
        for row in &report.rows {
            let (stopped, published) = (row.until_stopped.to_string(), &row.until_published);
            writeln!(out, "  {:<12} {stopped:<16} {published}", row.through)?;
        }
        for absent in &report.absent {
            writeln!(out, "  not measured: {absent}")?;
        }
        Ok(())
    })?;
    Ok(report.within_limit.unwrap_or(true))
}

/// The fake library that was named, else the one beside this program.
fn fake_library(options: &Options) -> Option<PathBuf> {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name(LIBRARY));
    let library = options.fake_nvml.clone().or_else(beside)?;
    library.exists().then_some(library)
}

impl Bench {
    fn measure(&self, way: &Way, options: &Options) -> Result<Option<Row>, Failure> {
        let (mut stopped, mut published) = (Vec::new(), Vec::new());
        for round in 0..options.rounds {
            let times = self.once(way, round)?;
            stopped.push(milliseconds(times.stopped));
            published.push(milliseconds(times.published));
        }
        let through = match way {
            Way::KernelLog => "kernel log",
            Way::Library(_) => "NVML",
        };
        let summaries = Summary::of(&stopped).zip(Summary::of(&published));
        Ok(summaries.map(|(until_stopped, until_published)| Row {
            through,
            until_stopped,
            until_published,
        }))
    }

    /// Waits in a thread of its own for the drain of this job to be published.
    fn watch(&self, job: &str) -> Watching {
        let (settings, keys) = (self.etcd.settings.clone(), Keys::new(job));
        thread::spawn(move || {
            runtime()?
                .block_on(drain_published(settings, &keys.course()))
                .map_err(|reason| Failure::Unexpected(format!("watching etcd: {reason}")))
        })
    }

    /// One job, and one error.
    fn once(&self, way: &Way, round: u32) -> Result<Times, Failure> {
        let root = self.directory.path();
        let name = match way {
            Way::KernelLog => format!("log-{round}"),
            Way::Library(_) => format!("nvml-{round}"),
        };
        let own = root.join(&name);
        fs::create_dir(&own).map_err(|error| Failure::write(own.display(), error))?;
        let state = own.join("gpus.json");
        show_gpu(&state, &[])?;
        let (told, ready) = (own.join("told"), own.join("ready"));
        let mut command = words([&"/usr/bin/env"]);
        if let Way::Library(library) = way {
            command.push(variable("STEADFAST_FAKE_NVML", &state));
            command.push(variable("STEADFAST_NVML", library));
        }
        command.extend(words([
            &self.steadfast,
            &"run",
            &"--job",
            &name,
            &"--coord",
            &self.etcd.uri,
            &"--log-dir",
            &own.join("logs"),
            &"--runtime-dir",
            &own.join("run"),
            &"--journal",
            &own.join("journal.jsonl"),
            &"--kernel-log-trust",
            &"anyone",
            &"--kernel-log",
            &(if matches!(way, Way::KernelLog) {
                KERNEL_LOG
            } else {
                "off"
            }),
            &"--",
            &self.python,
            &root.join("worker.py"),
            &told,
            &ready,
        ]));
        let watching = self.watch(&name);
        let mut program = Program::start(&command, &own, Out::Nowhere)?;
        let mut journal = Lines::<serde_json::Value>::of(own.join("journal.jsonl"));
        let mut seen = Vec::new();
        wait_for("the job to be watched", WITHIN, || {
            program.must_run()?;
            seen.extend(journal.fresh()?);
            let watched = match way {
                Way::KernelLog => true,
                Way::Library(_) => seen.iter().any(|line| line["kind"] == "nvml.opened"),
            };
            Ok((ready.exists() && watched).then_some(()))
        })?;
        pause(SETTLE)?;
        let struck = now_ns();
        match way {
            Way::KernelLog => write_line()?,
            Way::Library(_) => show_gpu(&state, &[json!({ "id": 1, "gpu": 0, "xid": 79 })])?,
        }
        let at = wait_for("the worker to be stopped", WITHIN, || {
            let text = fs::read_to_string(&told).unwrap_or_default();
            Ok(text.parse::<u64>().ok())
        })?;
        let published = wait_for("the drain to be published", WITHIN, || {
            Ok(watching.is_finished().then_some(()))
        });
        // It ends by itself, with the node at fault.
        program.end();
        published?;
        let broke_off = |_| Failure::Unexpected("watching etcd broke off".to_owned());
        let published = watching.join().map_err(broke_off)??;
        Ok(Times {
            stopped: at.saturating_sub(struck),
            published: published.saturating_sub(struck),
        })
    }
}

/// The time when a drain is written to this key.
async fn drain_published(settings: EtcdSettings, key: &str) -> Result<u64, String> {
    let store = EtcdStore::new(settings).map_err(|error| error.to_string())?;
    let watch = store.watch(key, Revision(1)).await;
    let mut watch = watch.map_err(|error| error.to_string())?;
    let is_drain = |change: &Change| match change {
        Change::Put(entry) => entry.value.contains("\"drain\""),
        Change::Delete { .. } => false,
    };
    loop {
        let batch = watch.next().await.map_err(|error| error.to_string())?;
        if batch.changes.iter().any(is_drain) {
            return Ok(now_ns());
        }
    }
}

fn variable(name: &str, value: &Path) -> std::ffi::OsString {
    let mut text = std::ffi::OsString::from(name);
    text.push("=");
    text.push(value);
    text
}

fn write_line() -> Result<(), Failure> {
    OpenOptions::new()
        .write(true)
        .open(KERNEL_LOG)
        .and_then(|mut log| log.write_all(LINE.as_bytes()))
        .map_err(|error| Failure::write(KERNEL_LOG, error))
}

/// Lets the fake library show one GPU with these events.
fn show_gpu(file: &Path, events: &[serde_json::Value]) -> Result<(), Failure> {
    let state = json!({ "gpus": [{ "profile": "h100", "bus": 0x18 }], "events": events });
    let new = file.with_extension("new");
    write(&new, &state.to_string())?;
    fs::rename(&new, file).map_err(|error| Failure::write(file.display(), error))
}
