// SPDX-License-Identifier: Apache-2.0
//! How long it takes until a hang is explained, and whether the explanation is right.
//!
//! Jobs of four ranks, on one node or on two that meet over loopback, in which one rank or node is made to hang. What is
//! measured is the time from the moment at which it does to the first verdict in a journal; what that says is compared with
//! what was done. Some of the faults are none: nothing must be done about them.

mod disk;
mod fault;
mod job;
mod report;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use self::disk::Disk;
pub(crate) use self::fault::Fault;
use self::job::{Job, Setup, Victim};
use super::launch::{python, steadfast_or_default};
use super::processes;
use super::statistics::Summary;
use super::waiting::{heed_interrupts, now_ns, pause, wait_for};
use crate::failure::Failure;
use steadfast_sim::Random;

/// How long a verdict may take.
const JUDGED_WITHIN: Duration = Duration::from_mins(2);
/// The fault comes at a random moment of a step.
const PHASE_MS: u64 = 1_000;

/// What is to be measured.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) faults: Vec<Fault>,
    pub(crate) nodes: Vec<u32>,
    pub(crate) training: Training,
    pub(crate) reps: u32,
    pub(crate) step_seconds: f64,
    /// How long a job is watched in which nothing must be done.
    pub(crate) watch: Duration,
    pub(crate) steadfast: Option<PathBuf>,
    pub(crate) python: Option<PathBuf>,
    pub(crate) etcd_program: Option<PathBuf>,
    pub(crate) seed: u64,
    pub(crate) json: bool,
}

/// What the ranks do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Training {
    /// The toy job, which needs nothing but Python.
    Toy,
    /// `DistributedDataParallel` over gloo; needs `PyTorch`.
    Ddp,
}

/// What came of one fault.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Outcome {
    /// From the fault to the first verdict; `None` for what must be left alone.
    seconds: Option<f64>,
    rank_right: bool,
    node_right: bool,
    class_right: bool,
    /// What was said.
    said: String,
}

/// What came of one fault, tried several times.
#[derive(Debug, Serialize)]
struct Row {
    fault: Fault,
    nodes: u32,
    seconds: Option<Summary>,
    outcomes: Vec<Outcome>,
}

/// All that is reported.
#[derive(Debug, Serialize)]
struct Report {
    training: Training,
    step_seconds: f64,
    processors: usize,
    load: String,
    rows: Vec<Row>,
    /// What was not measured, and why.
    absent: Vec<String>,
}

/// Measures and reports. Says whether every verdict was right, and nothing was done that must not be.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<bool, Failure> {
    heed_interrupts()?;
    let load = processes::load();
    let setup = Setup {
        steadfast: steadfast_or_default(options.steadfast.clone())?,
        python: python(options.python.as_deref())?,
        etcd_program: options.etcd_program.clone(),
        training: options.training,
        step_seconds: options.step_seconds,
        watch: options.watch,
    };
    let faults = if options.faults.is_empty() {
        Fault::ALL.to_vec()
    } else {
        options.faults.clone()
    };
    let mut random = Random::new(options.seed);
    let (mut rows, mut absent) = (Vec::new(), Vec::new());
    for &nodes in &options.nodes {
        for &fault in faults.iter().filter(|fault| fault.fits(nodes)) {
            match measure(&setup, fault, nodes, options.reps, &mut random) {
                Ok(row) => rows.push(row),
                Err(failure @ Failure::Interrupted(_)) => return Err(failure),
                Err(failure) => absent.push(format!("{}, {nodes} nodes: {failure}", fault.words())),
            }
        }
    }
    let report = Report {
        training: options.training,
        step_seconds: options.step_seconds,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        load,
        rows,
        absent,
    };
    report.write(options.json, out)?;
    Ok(report.is_right())
}

fn measure(
    setup: &Setup,
    fault: Fault,
    nodes: u32,
    reps: u32,
    random: &mut Random,
) -> Result<Row, Failure> {
    let disk = (fault == Fault::Write).then(Disk::new).transpose()?;
    let mut outcomes = Vec::new();
    for _ in 0..reps {
        outcomes.push(once(setup, fault, nodes, disk.as_ref(), random)?);
    }
    let seconds: Vec<f64> = outcomes.iter().filter_map(|one| one.seconds).collect();
    Ok(Row {
        fault,
        nodes,
        seconds: Summary::of(&seconds),
        outcomes,
    })
}

/// A job of its own, and one fault in it.
fn once(
    setup: &Setup,
    fault: Fault,
    nodes: u32,
    disk: Option<&Disk>,
    random: &mut Random,
) -> Result<Outcome, Failure> {
    // Rank 0 has no part in some of them.
    let rank = random.small(1, job::RANKS - 1);
    let mut job = Job::start(setup, fault, (nodes, rank), disk)?;
    if fault != Fault::Init {
        job.wait_until_trained()?;
        pause(Duration::from_micros(random.below(PHASE_MS * 1_000)))?;
    }
    if let Some(disk) = disk {
        disk.freeze()?;
    }
    let outcome = strike(&mut job, fault, rank, setup.watch);
    if let Some(disk) = disk {
        // Whatever came of it, the workers must be able to end.
        disk.thaw()?;
    }
    outcome
}

fn strike(job: &mut Job, fault: Fault, rank: u32, watch: Duration) -> Result<Outcome, Failure> {
    let (victim, struck) = job.strike(fault, rank)?;
    if fault.is_none() {
        return left_alone(job, fault, watch);
    }
    let judged = wait_for("a verdict", JUDGED_WITHIN, || job.verdict())?;
    let seconds = Duration::from_nanos(now_ns().saturating_sub(struck)).as_secs_f64();
    Ok(judge(&judged, fault, &victim, seconds))
}

/// Compares a verdict with what was done.
fn judge(judged: &Value, fault: Fault, victim: &Victim, seconds: f64) -> Outcome {
    let culprit = &judged["culprit"];
    let node_right = culprit["node"] == victim.node;
    Outcome {
        seconds: Some(seconds),
        // Of a node that is silent, any of its ranks will do.
        rank_right: victim
            .rank
            .map_or(node_right, |rank| culprit["rank"] == rank),
        node_right,
        class_right: judged["class"] == fault.class(),
        said: judged["summary"].as_str().unwrap_or_default().to_owned(),
    }
}

/// Nothing must be done for a while.
fn left_alone(job: &mut Job, fault: Fault, watch: Duration) -> Result<Outcome, Failure> {
    pause(watch)?;
    let restarted = job.was_restarted()?;
    // Where nothing is wrong at all, a verdict is a false alarm.
    let alarm = if fault == Fault::Uneven {
        job.verdict()?
    } else {
        None
    };
    let done = restarted || alarm.is_some();
    Ok(Outcome {
        seconds: None,
        rank_right: !done,
        node_right: !done,
        class_right: !done,
        said: match alarm {
            Some(alarm) => format!("false alarm: {}", alarm["summary"]),
            None if restarted => "the job was restarted".to_owned(),
            None => format!("left alone for {} s", watch.as_secs()),
        },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_verdict_is_compared_with_what_was_done() {
        let judged = json!({
            "culprit": { "node": "node2", "rank": 3 }, "class": "hang", "summary": "rank 3 on node2 sleeps",
        });
        let victim = |rank, node: &str| Victim {
            rank,
            node: node.to_owned(),
        };
        let right = judge(&judged, Fault::Data, &victim(Some(3), "node2"), 2.5);
        assert!(right.rank_right && right.node_right && right.class_right);
        let wrong = judge(&judged, Fault::NodeSilent, &victim(None, "node1"), 2.5);
        assert!(!wrong.rank_right && !wrong.node_right && !wrong.class_right);
        let nobody = judge(
            &json!({ "class": "hang" }),
            Fault::Stop,
            &victim(Some(0), "node1"),
            1.0,
        );
        assert!(!nobody.rank_right && nobody.class_right);
    }
}
