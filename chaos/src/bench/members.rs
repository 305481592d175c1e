// SPDX-License-Identifier: Apache-2.0
//! How long from one reported fault until every member of a large job holds the next plan, and what that costs etcd.
//!
//! The members are real as far as coordination goes: each is the runtime that an agent has, with a connection to a real
//! etcd of its own. Only the workers are missing, so that what is measured is coordination alone.

mod group;
mod report;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use steadfast_core::Keys;

pub(crate) use self::group::{GroupOptions, run as run_group};
use self::group::{Record, What};
use super::etcd::{Etcd, Operations};
use super::launch::{Out, Program, temporary_directory, words};
use super::lines::Lines;
use super::processes;
use super::statistics::{Summary, milliseconds, percentile};
use super::waiting::{heed_interrupts, pause, wait_for};
use crate::failure::Failure;
use steadfast_sim::Random;

/// How long all members may take to meet.
const GATHER_WITHIN: Duration = Duration::from_mins(10);
/// How long a restart may take before it is not slow but broken.
const RESTART_WITHIN: Duration = Duration::from_mins(5);
/// How long the members may take to leave.
const LEAVE_WITHIN: Duration = Duration::from_mins(2);
/// The members have settled when no transaction has been made for so long.
const QUIET: Duration = Duration::from_millis(500);

/// What is to be measured.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) members: u32,
    pub(crate) processes: u32,
    pub(crate) faults: u32,
    /// Seconds after which etcd forgets a member that is not heard of.
    pub(crate) lease: u64,
    /// Somebody else's etcd.
    pub(crate) etcd: Option<String>,
    /// The program for one of our own.
    pub(crate) etcd_program: Option<PathBuf>,
    pub(crate) at_most_ms: Option<f64>,
    pub(crate) seed: u64,
    pub(crate) json: bool,
}

/// One restart. Milliseconds since the fault.
#[derive(Debug, Clone, Serialize)]
struct Restart {
    /// When half of the members, and the last of them, were told to stop.
    stop_p50: f64,
    stop_last: f64,
    /// When the first member held the next plan, and so on.
    plan_first: f64,
    plan_p50: f64,
    plan_p99: f64,
    plan_last: f64,
    /// What each member cost etcd until everything was quiet again, in the mean.
    each: Operations,
}

/// All that is reported.
#[derive(Debug, Serialize)]
struct Report {
    members: u32,
    processes: u32,
    processors: usize,
    load: String,
    /// One small write after the other, while nothing else happens.
    write_ms: Summary,
    /// From the start of the first process until every member held the first plan.
    gathered_ms: f64,
    /// What each member cost etcd until then, in the mean.
    gathering: Operations,
    /// The plan as it is in etcd.
    plan_bytes: usize,
    restarts: Vec<Restart>,
    /// From the request to stop until every member knew that the job had ended.
    ended_ms: f64,
    at_most_ms: Option<f64>,
    within_limit: Option<bool>,
}

/// Processes with all the members of a job.
struct Crowd {
    groups: Vec<Group>,
    members: u32,
    etcd: Etcd,
    /// When each member did what in which generation.
    times: BTreeMap<(u64, What), BTreeMap<u32, u64>>,
}

struct Group {
    program: Program,
    records: Lines<Record>,
    first: u32,
    count: u32,
    _directory: tempfile::TempDir,
}

/// Measures and reports. Says whether the limit was kept, if there is one.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<bool, Failure> {
    heed_interrupts()?;
    let load = processes::load();
    let etcd = Etcd::at_or_own(options.etcd.as_deref(), options.etcd_program.as_deref())?;
    let keys = Keys::new(&format!("steadfast-chaos-{}", std::process::id()));
    let measured = measure(options, etcd, &keys, load);
    if let Some(uri) = &options.etcd {
        Etcd::at_or_own(Some(uri), None)?.clear(keys.prefix())?;
    }
    let report = measured?;
    report.write(options.json, out)?;
    Ok(report.within_limit != Some(false))
}

fn measure(options: &Options, etcd: Etcd, keys: &Keys, load: String) -> Result<Report, Failure> {
    let write_ms = etcd.write_latency(keys.prefix())?;
    let job = format!("steadfast-chaos-{}", std::process::id());
    let before = etcd.operations()?;
    let mut crowd = Crowd::start(options, etcd, &job)?;
    let began = crowd
        .groups
        .first()
        .map_or(0, |group| group.program.started_ns);
    let gathered = crowd.wait_for_all(
        1,
        What::Start,
        "every member to hold the first plan",
        GATHER_WITHIN,
    )?;
    let gathering = crowd.etcd.operations()?.since(&before, options.members);
    let plan_bytes = crowd.etcd.size_of(&keys.plan())?;
    let mut random = Random::new(options.seed);
    let mut restarts = Vec::new();
    for fault in 1..=u64::from(options.faults) {
        let victim = random.small(0, options.members - 1);
        restarts.push(crowd.restart(fault, victim)?);
    }
    let ended_ms = crowd.end()?;
    let p99: Vec<_> = restarts.iter().map(|restart| restart.plan_p99).collect();
    let within_limit = options.at_most_ms.map(|limit| {
        let median = Summary::of(&p99).map_or(f64::INFINITY, |summary| summary.median);
        median <= limit
    });
    Ok(Report {
        members: options.members,
        processes: options.processes,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        load,
        write_ms,
        gathered_ms: milliseconds(gathered.saturating_sub(began)),
        gathering,
        plan_bytes,
        restarts,
        ended_ms,
        at_most_ms: options.at_most_ms,
        within_limit,
    })
}

impl Crowd {
    fn start(options: &Options, etcd: Etcd, job: &str) -> Result<Self, Failure> {
        let this =
            std::env::current_exe().map_err(|error| Failure::read("this program's path", error))?;
        let processes = options.processes.min(options.members);
        let mut groups = Vec::new();
        let mut first = 0;
        for index in 0..processes {
            let count = (options.members - first) / (processes - index);
            let directory = temporary_directory()?;
            let records = directory.path().join("records.jsonl");
            let command = words([
                &this,
                &"__members",
                &"--etcd",
                &etcd.uri,
                &"--job",
                &job,
                &"--members",
                &options.members.to_string(),
                &"--first",
                &first.to_string(),
                &"--count",
                &count.to_string(),
                &"--lease",
                &options.lease.to_string(),
            ]);
            let program =
                Program::start_listening(&command, directory.path(), Out::File(&records))?;
            groups.push(Group {
                program,
                records: Lines::of(records),
                first,
                count,
                _directory: directory,
            });
            first += count;
        }
        Ok(Self {
            groups,
            members: options.members,
            etcd,
            times: BTreeMap::new(),
        })
    }

    /// One member reports that a worker was killed; waits until all of them hold the next plan, and until etcd is quiet.
    fn restart(&mut self, generation: u64, victim: u32) -> Result<Restart, Failure> {
        self.tell(victim, "step")?;
        let before = self.wait_until_quiet()?;
        self.tell(victim, "fault")?;
        let next = generation + 1;
        self.wait_for_all(
            next,
            What::Start,
            "every member to hold the next plan",
            RESTART_WITHIN,
        )?;
        let after = self.wait_until_quiet()?;
        if self.times.keys().any(|(seen, _)| *seen > next) {
            return Err(Failure::Unexpected(format!(
                "generation {next} ended although nothing had happened to it; a member may have lost its lease"
            )));
        }
        let fault = self
            .times_of(generation, What::Fault)
            .first()
            .copied()
            .unwrap_or(0);
        let since = |times: Vec<u64>| -> Vec<f64> {
            let since = times
                .into_iter()
                .map(|at| milliseconds(at.saturating_sub(fault)));
            since.collect()
        };
        let stops = since(self.times_of(generation, What::Stop));
        let plans = since(self.times_of(next, What::Start));
        Ok(Restart {
            stop_p50: percentile(&stops, 50),
            stop_last: percentile(&stops, 100),
            plan_first: percentile(&plans, 0),
            plan_p50: percentile(&plans, 50),
            plan_p99: percentile(&plans, 99),
            plan_last: percentile(&plans, 100),
            each: after.since(&before, self.members),
        })
    }

    /// Ends the job. Gives the time from the request until the last member knew.
    fn end(&mut self) -> Result<f64, Failure> {
        let generation = self
            .times
            .keys()
            .map(|(generation, _)| *generation)
            .max()
            .unwrap_or(0);
        self.tell(0, "stop")?;
        let asked = super::waiting::now_ns();
        let ended =
            self.wait_for_all(generation, What::End, "every member to end", LEAVE_WITHIN)?;
        for group in &mut self.groups {
            group.program.wait(LEAVE_WITHIN)?;
        }
        Ok(milliseconds(ended.saturating_sub(asked)))
    }

    fn tell(&mut self, member: u32, order: &str) -> Result<(), Failure> {
        let group = self
            .groups
            .iter_mut()
            .find(|group| (group.first..group.first + group.count).contains(&member));
        match group {
            Some(group) => group.program.tell(&format!("{order} {member}")),
            None => Err(Failure::Unexpected(format!("there is no member {member}"))),
        }
    }

    /// The time at which the last of all members did that.
    fn wait_for_all(
        &mut self,
        generation: u64,
        what: What,
        words: &str,
        at_most: Duration,
    ) -> Result<u64, Failure> {
        wait_for(words, at_most, || {
            self.take_in_records()?;
            let times = self.times_of(generation, what);
            let all = times.len() as u64 == u64::from(self.members);
            Ok(times.last().copied().filter(|_| all))
        })
    }

    /// Waits until nothing is written any more. Gives what etcd has done by then.
    fn wait_until_quiet(&mut self) -> Result<Operations, Failure> {
        let mut last = self.etcd.operations()?;
        wait_for("the members to settle", RESTART_WITHIN, || {
            pause(QUIET)?;
            self.take_in_records()?;
            let now = self.etcd.operations()?;
            let before = std::mem::replace(&mut last, now);
            Ok((now.transactions <= before.transactions).then_some(now))
        })
    }

    fn take_in_records(&mut self) -> Result<(), Failure> {
        self.etcd.must_run()?;
        for group in &mut self.groups {
            let fresh = group.records.fresh()?;
            let ends = fresh.iter().any(|record| record.event == What::End);
            for record in fresh {
                let times = self
                    .times
                    .entry((record.generation, record.event))
                    .or_default();
                times.entry(record.member).or_insert(record.monotonic_ns);
            }
            if !ends && !self.times.keys().any(|(_, what)| *what == What::End) {
                group.program.must_run()?;
            }
        }
        Ok(())
    }

    /// In the order of time.
    fn times_of(&self, generation: u64, what: What) -> Vec<u64> {
        let times = self.times.get(&(generation, what));
        let mut times: Vec<u64> = times
            .into_iter()
            .flat_map(|times| times.values().copied())
            .collect();
        times.sort_unstable();
        times
    }
}
