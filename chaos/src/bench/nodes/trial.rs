// SPDX-License-Identifier: Apache-2.0
//! One fault after the other, and what became of the job.

use std::time::Duration;

use rustix::process::{Signal, kill_process};
use serde::Serialize;

use super::cluster::{Cluster, Tools};
use super::share::{self, Share};
use super::{Case, Parts};
use crate::bench::job::LauncherKind;
use crate::bench::launch::pid_of;
use crate::bench::statistics::{Summary, milliseconds};
use crate::bench::waiting::{now_ns, pause, wait_for};
use crate::failure::Failure;
use steadfast_sim::Random;

/// The fault comes at a random moment of this long: launchers that poll are hit at every phase of their period.
const PHASE_MS: u64 = 1_000;
/// How long training goes on before the fault, so that its steps are known by then.
const SETTLE: Duration = Duration::from_secs(3);
/// Where the journals' lines are waited for.
const JOURNAL_WITHIN: Duration = Duration::from_secs(20);

/// What became of the job after one fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Outcome {
    /// It trains again.
    Back(Back),
    /// It does not, after as long as it was given.
    Away,
    /// No launcher is left.
    Ended,
}

/// Nanoseconds since the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Back {
    /// The first line of the first new worker.
    pub(super) first_worker: u64,
    /// The first step.
    pub(super) first_step: u64,
}

/// What was measured of one launcher and one case.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) launcher: &'static str,
    pub(super) case: Case,
    /// Milliseconds from the fault to the first line of the first new worker, where the job came back.
    pub(super) first_worker: Option<Summary>,
    /// Milliseconds from the fault to the first step.
    pub(super) first_step: Option<Summary>,
    /// Tries after which the job did not train in the time that it was given, though launchers ran.
    pub(super) away: usize,
    /// Tries that all launchers ended after.
    pub(super) ended: usize,
}

impl Row {
    fn of(launcher: LauncherKind, case: Case, outcomes: &[Outcome]) -> Self {
        let back = outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Back(back) => Some(*back),
            Outcome::Away | Outcome::Ended => None,
        });
        let summary = |part: fn(&Back) -> u64| {
            let times = back.clone().map(|back| milliseconds(part(&back)));
            Summary::of(&times.collect::<Vec<_>>())
        };
        let count = |such: Outcome| outcomes.iter().filter(|outcome| **outcome == such).count();
        Self {
            launcher: launcher.name(),
            case,
            first_worker: summary(|back| back.first_worker),
            first_step: summary(|back| back.first_step),
            away: count(Outcome::Away),
            ended: count(Outcome::Ended),
        }
    }
}

/// So many faults, on one job as long as that comes back after them, else on another.
pub(super) fn measure(
    tools: &Tools,
    case: Case,
    reps: u32,
    random: &mut Random,
) -> Result<(Row, Option<Parts>), Failure> {
    let mut cluster = Cluster::start(tools, case)?;
    let (mut outcomes, mut shares) = (Vec::new(), Vec::new());
    // The first plan of a job is its generation 1.
    let mut generation = 1;
    for rep in 0..reps {
        pause(SETTLE + Duration::from_micros(random.below(PHASE_MS * 1_000)))?;
        let fault = strike(&mut cluster, case, random)?;
        let outcome = cluster.await_outcome(fault)?;
        outcomes.push(outcome);
        generation += 1;
        if case == Case::RankKilled && tools.kind == LauncherKind::Steadfast {
            shares.push(share(&cluster, generation)?);
        }
        if rep + 1 == reps {
            break;
        }
        if case.wants_a_job_of_its_own() || !matches!(outcome, Outcome::Back(_)) {
            drop(cluster);
            cluster = Cluster::start(tools, case)?;
            generation = 1;
        } else if case.costs_a_node() {
            // What shrank has to grow again; elsewhere the new node stands by.
            let since = if case == Case::Shrink {
                now_ns()
            } else {
                fault
            };
            cluster.add_node()?;
            cluster.wait_until_training(since, 2)?;
        }
    }
    let parts = match (&cluster.etcd, shares.is_empty()) {
        (Some(etcd), false) => Some(Parts::of(&shares, etcd.write_latency("/bench/")?)?),
        _ => None,
    };
    Ok((Row::of(tools.kind, case, &outcomes), parts))
}

/// Does it. Gives the time.
fn strike(cluster: &mut Cluster, case: Case, random: &mut Random) -> Result<u64, Failure> {
    let (worker, index) = cluster.victim(random)?;
    if case.is_about_a_worker() {
        let gone = |error: &dyn std::fmt::Display| {
            Failure::Unexpected(format!("worker {worker} could not be killed: {error}"))
        };
        let process = pid_of(worker).ok_or_else(|| gone(&"it has no process id"))?;
        let fault = now_ns();
        kill_process(process, Signal::KILL).map_err(|error| gone(&error))?;
        return Ok(fault);
    }
    let leading_member = match (&cluster.etcd, case) {
        (Some(etcd), Case::HostLost) => etcd.leading_member()?,
        _ => None,
    };
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
    if let (Some(etcd), Some(member)) = (&mut cluster.etcd, leading_member) {
        etcd.kill_member(member);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_tells_those_that_came_back_from_those_that_did_not() {
        let back = |first_worker| {
            Outcome::Back(Back {
                first_worker,
                first_step: 2 * first_worker,
            })
        };
        let outcomes = [back(1_000_000), Outcome::Away, back(3_000_000)];
        let row = Row::of(LauncherKind::Torchrun, Case::Sigterm, &outcomes);
        assert_eq!(row.first_worker.unwrap().to_string(), "2.0 [1.0-3.0]");
        assert_eq!(row.first_step.unwrap().to_string(), "4.0 [2.0-6.0]");
        assert_eq!((row.away, row.ended), (1, 0));
        let row = Row::of(LauncherKind::Torchrun, Case::HostLost, &[Outcome::Ended; 2]);
        assert_eq!(
            (row.first_worker, row.away, row.ended),
            (None, 0, 2),
            "what never came back has no time"
        );
    }
}
