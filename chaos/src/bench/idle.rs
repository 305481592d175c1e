// SPDX-License-Identifier: Apache-2.0
//! What the supervisor costs while nothing happens: CPU time and memory of its two processes.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::job::{Job, Launcher, LauncherKind, Work};
use super::launch::{python, steadfast_or_default};
use super::processes::{self, Usage};
use super::report;
use super::waiting::{heed_interrupts, now_ns, pause, wait_for};
use crate::failure::Failure;

/// Most percent of one processor.
const CPU_LIMIT: f64 = 1.0;
/// Most megabytes of memory, shared pages counted in part.
const MEMORY_LIMIT: f64 = 30.0;
/// Time for start-up work to die down before the measurement.
const SETTLE: Duration = Duration::from_secs(2);

/// What is to be measured.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) workers: u32,
    pub(crate) lines_per_second: u32,
    pub(crate) seconds: u64,
    pub(crate) steadfast: Option<PathBuf>,
    /// Whether the limits decide the exit code.
    pub(crate) check: bool,
    pub(crate) json: bool,
}

/// What a process cost.
#[derive(Debug, Clone, Copy, Serialize)]
struct Cost {
    cpu_percent: f64,
    pss_megabytes: f64,
    rss_megabytes: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    workers: u32,
    lines_per_second: u32,
    seconds: f64,
    load: String,
    keeper: Cost,
    agent: Cost,
    total: Cost,
    cpu_percent_limit: f64,
    pss_megabytes_limit: f64,
    within_limits: bool,
}

/// Measures and reports. Says whether the limits were kept, or true if they are not to be checked.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<bool, Failure> {
    heed_interrupts()?;
    let launcher = Launcher {
        kind: LauncherKind::Steadfast,
        path: steadfast_or_default(options.steadfast.clone())?,
        python: python(None)?,
    };
    let work = Work::Print {
        lines_per_second: options.lines_per_second,
    };
    let load = processes::load();
    let mut job = Job::start(&launcher, options.workers, work)?;
    wait_for("the workers to start", Duration::from_mins(1), || {
        job.program.must_run()?;
        let started = job.records()?.len() as u64;
        Ok((started >= u64::from(options.workers)).then_some(()))
    })?;
    let keeper = job.program.pid();
    let agent = wait_for("the agent to be there", Duration::from_mins(1), || {
        Ok(processes::children_with(keeper, "__agent").first().copied())
    })?;
    pause(SETTLE)?;
    let before = (processes::usage(keeper)?, processes::usage(agent)?);
    let began = now_ns();
    pause(Duration::from_secs(options.seconds))?;
    let seconds = Duration::from_nanos(now_ns() - began).as_secs_f64();
    job.program.must_run()?;
    let keeper = cost(before.0, processes::usage(keeper)?, seconds);
    let agent = cost(before.1, processes::usage(agent)?, seconds);
    job.program.stop()?;
    let total = Cost {
        cpu_percent: keeper.cpu_percent + agent.cpu_percent,
        pss_megabytes: keeper.pss_megabytes + agent.pss_megabytes,
        rss_megabytes: keeper.rss_megabytes + agent.rss_megabytes,
    };
    let report = Report {
        workers: options.workers,
        lines_per_second: options.lines_per_second,
        seconds,
        load,
        keeper,
        agent,
        total,
        cpu_percent_limit: CPU_LIMIT,
        pss_megabytes_limit: MEMORY_LIMIT,
        within_limits: total.cpu_percent <= CPU_LIMIT && total.pss_megabytes <= MEMORY_LIMIT,
    };
    report::write(&report, options.json, out, |out| report.write(out))?;
    Ok(report.within_limits || !options.check)
}

fn cost(before: Usage, after: Usage, seconds: f64) -> Cost {
    Cost {
        cpu_percent: (after.cpu_seconds - before.cpu_seconds) / seconds.max(1e-3) * 100.0,
        pss_megabytes: megabytes(after.pss_bytes),
        rss_megabytes: megabytes(after.rss_bytes),
    }
}

fn megabytes(bytes: u64) -> f64 {
    let kilobytes = u32::try_from(bytes / 1_000).unwrap_or(u32::MAX);
    f64::from(kilobytes) / 1_000.0
}

impl Report {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "{} workers that print {} lines a second each, watched for {:.0} s; load {} before.\n",
            self.workers, self.lines_per_second, self.seconds, self.load
        )?;
        writeln!(
            out,
            "{:<8} {:>12} {:>10} {:>10}",
            "", "CPU, % of 1", "PSS, MB", "RSS, MB"
        )?;
        for (name, cost) in [
            ("keeper", self.keeper),
            ("agent", self.agent),
            ("both", self.total),
        ] {
            writeln!(
                out,
                "{name:<8} {:>12.2} {:>10.1} {:>10.1}",
                cost.cpu_percent, cost.pss_megabytes, cost.rss_megabytes
            )?;
        }
        let verdict = if self.within_limits { "kept" } else { "BROKEN" };
        writeln!(
            out,
            "{:<8} {:>12.2} {:>10.1}              {verdict}",
            "limit", self.cpu_percent_limit, self.pss_megabytes_limit
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_differences_of_time_and_states_of_memory() {
        let before = Usage {
            cpu_seconds: 1.0,
            pss_bytes: 1,
            rss_bytes: 1,
        };
        let after = Usage {
            cpu_seconds: 1.1,
            pss_bytes: 2_500_000,
            rss_bytes: 9_000_000,
        };
        let cost = cost(before, after, 10.0);
        assert!((cost.cpu_percent - 1.0).abs() < 1e-9);
        assert!((cost.pss_megabytes - 2.5).abs() < 1e-9);
        assert!((cost.rss_megabytes - 9.0).abs() < 1e-9);
    }
}
