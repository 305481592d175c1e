// SPDX-License-Identifier: Apache-2.0
//! How long a job on several nodes is away when a worker or a whole node is lost, here and under torchrun.
//!
//! The nodes are all this machine: a launcher for each, meeting over loopback, and workers that really train together
//! (PyTorch, gloo). What is measured is the time from the fault to the first line of the first new worker.

mod cluster;
mod report;
mod share;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use serde::Serialize;

use self::cluster::{Cluster, Tools};
use self::share::Share;
use super::launch::{on_path, pid_of, python, steadfast_or_default};
use super::processes;
use super::statistics::{Summary, milliseconds};
use super::waiting::{heed_interrupts, now_ns, pause, wait_for};
use crate::failure::Failure;
use steadfast_sim::Random;

/// The fault comes at a random moment of this long: launchers that poll are hit at every phase of their period.
const PHASE_MS: u64 = 1_000;
/// How long training goes on before the fault, so that its steps are known by then.
const SETTLE: Duration = Duration::from_secs(3);
/// Where the journals' lines are waited for.
const JOURNAL_WITHIN: Duration = Duration::from_secs(20);

/// What is to be measured.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) cases: Vec<Case>,
    pub(crate) reps: u32,
    pub(crate) workers_per_node: u32,
    pub(crate) steadfast: Option<PathBuf>,
    pub(crate) python: Option<PathBuf>,
    pub(crate) torchrun: Option<PathBuf>,
    pub(crate) etcd_program: Option<PathBuf>,
    pub(crate) seed: u64,
    pub(crate) json: bool,
}

/// What happens to the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Case {
    /// A worker is killed.
    RankKilled,
    /// Everything on one node is killed at once; a spare takes over.
    NodeKilled,
    /// Everything on one node stands still; a spare takes over.
    NodeSilent,
    /// Everything on one node is killed at once; there is no spare, and the job goes on without.
    Shrink,
    /// One node's supervisor gets SIGTERM; a spare takes over.
    Sigterm,
}

/// Who launches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Peer {
    Steadfast(PathBuf),
    Torchrun(PathBuf),
}

/// What was measured of one case.
#[derive(Debug, Serialize)]
struct Row {
    launcher: &'static str,
    case: Case,
    /// Milliseconds from the fault to the first line of the first new worker.
    first_worker: Summary,
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
    processors: usize,
    load: String,
    rows: Vec<Row>,
    parts: Option<Parts>,
    /// What was not measured, and why.
    absent: Vec<String>,
}

impl Case {
    pub(super) const ALL: [Self; 5] = [
        Self::RankKilled,
        Self::NodeKilled,
        Self::NodeSilent,
        Self::Shrink,
        Self::Sigterm,
    ];

    /// How many nodes there are, the spare included.
    fn nodes(self) -> u32 {
        if self == Self::Shrink { 2 } else { 3 }
    }

    /// Whether a node is gone afterwards.
    fn costs_a_node(self) -> bool {
        self != Self::RankKilled
    }
}

/// Measures and reports.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<bool, Failure> {
    heed_interrupts()?;
    let load = processes::load();
    let tools = |peer| -> Result<Tools, Failure> {
        Ok(Tools {
            peer,
            python: python(options.python.as_deref())?,
            workers_per_node: options.workers_per_node,
            etcd_program: options.etcd_program.clone(),
        })
    };
    let path = steadfast_or_default(options.steadfast.clone())?;
    let cases = if options.cases.is_empty() {
        Case::ALL.to_vec()
    } else {
        options.cases.clone()
    };
    let ours = tools(Peer::Steadfast(path))?;
    let mut random = Random::new(options.seed);
    let (mut rows, mut parts, mut absent) = (Vec::new(), None, Vec::new());
    for case in &cases {
        let (row, of_case) = measure(&ours, *case, options.reps, &mut random)?;
        rows.push(row);
        parts = parts.or(of_case);
    }
    match options.torchrun.clone().or_else(|| on_path("torchrun")) {
        Some(path) => {
            let theirs = tools(Peer::Torchrun(path))?;
            for case in cases {
                if !matches!(case, Case::RankKilled | Case::NodeKilled) {
                    continue;
                }
                match measure(&theirs, case, options.reps, &mut random) {
                    Ok((row, _)) => rows.push(row),
                    Err(failure @ Failure::Interrupted(_)) => return Err(failure),
                    Err(failure) => absent.push(format!(
                        "torchrun, {}: {}",
                        case.words(),
                        in_short(&failure)
                    )),
                }
            }
        }
        None => absent.push("torchrun: not on PATH".to_owned()),
    }
    let report = Report {
        workers_per_node: options.workers_per_node,
        reps: options.reps,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        load,
        rows,
        parts,
        absent,
    };
    report.write(options.json, out)?;
    Ok(true)
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

/// One job, one fault after the other.
fn measure(
    tools: &Tools,
    case: Case,
    reps: u32,
    random: &mut Random,
) -> Result<(Row, Option<Parts>), Failure> {
    let mut cluster = Cluster::start(tools, case)?;
    let (mut times, mut shares) = (Vec::new(), Vec::new());
    for rep in 0..reps {
        pause(SETTLE + Duration::from_micros(random.below(PHASE_MS * 1_000)))?;
        let rank = random.small(0, 2 * tools.workers_per_node - 1);
        let fault = strike(&mut cluster, case, rank)?;
        let born = cluster.wait_for_birth(fault)?;
        times.push(milliseconds(born.saturating_sub(fault)));
        if case == Case::RankKilled && matches!(tools.peer, Peer::Steadfast(_)) {
            shares.push(share(&cluster, u64::from(rep) + 2)?);
        }
        let again = if case == Case::Shrink {
            cluster.wait_until_training(fault, 1)?;
            now_ns()
        } else {
            fault
        };
        if case.costs_a_node() && rep + 1 < reps {
            cluster.add_node()?;
        }
        if rep + 1 < reps {
            cluster.wait_until_training(again, 2)?;
        }
    }
    let parts = match (&cluster.etcd, shares.is_empty()) {
        (Some(etcd), false) => Some(Parts::of(&shares, etcd.write_latency("/bench/")?)?),
        _ => None,
    };
    let none = || Failure::Unexpected("there was no fault".to_owned());
    let row = Row {
        launcher: match tools.peer {
            Peer::Steadfast(_) => "steadfast",
            Peer::Torchrun(_) => "torchrun",
        },
        case,
        first_worker: Summary::of(&times).ok_or_else(none)?,
    };
    Ok((row, parts))
}

/// Does it. Gives the time.
fn strike(cluster: &mut Cluster, case: Case, rank: u32) -> Result<u64, Failure> {
    let gone = || Failure::Unexpected(format!("rank {rank} cannot be found"));
    let worker = cluster.worker_of(rank).ok_or_else(gone)?;
    // A process id that is nowhere below our launchers may be somebody else's by now.
    let index = cluster.node_of(worker).ok_or_else(gone)?;
    if case == Case::RankKilled {
        let fault = now_ns();
        kill_process(pid_of(worker).ok_or_else(gone)?, Signal::KILL).map_err(|error| {
            Failure::Unexpected(format!("rank {rank} could not be killed: {error}"))
        })?;
        return Ok(fault);
    }
    let node = cluster.nodes.remove(index);
    let fault = now_ns();
    match case {
        Case::Sigterm => {
            node.program.signal(Signal::TERM);
            // The job goes on while it leaves.
            cluster.leaving.push(node);
        }
        Case::NodeSilent => {
            node.signal_all(Signal::STOP);
            cluster.leaving.push(node);
        }
        _ => node.signal_all(Signal::KILL),
    }
    Ok(fault)
}

/// The parts of the restart that led to this generation, once all journals tell of it.
fn share(cluster: &Cluster, generation: u64) -> Result<Share, Failure> {
    wait_for("the journals", JOURNAL_WITHIN, || {
        let journals = cluster
            .nodes
            .iter()
            .map(|node| share::journal(&node.directory))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(share::share_of(&journals, generation))
    })
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
