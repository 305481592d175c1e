// SPDX-License-Identifier: Apache-2.0
//! Looking at the node: everything that is proven to be wrong with it, and what could not be looked at.

use steadfast_checks::{Profile, Report, Status};
use steadfast_process::tree::Process;

use super::Run;
use super::decision::{Found, Memory, Problem};
use super::kernel_faults::{KEY, KernelFaults};
use crate::check_command::{self, Given, Inquiry};

/// What keys of what checks have found begin with.
const CHECK: &str = "check:";
/// What keys of processes begin with that do not die.
const STUCK: &str = "process:";

/// The kernel log, or what is to be noted instead.
pub(super) fn kernel_log(run: &Run, found: &mut Found) -> Option<KernelFaults> {
    match KernelFaults::read(&run.site) {
        Ok(faults) => Some(faults),
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(inner) = cause {
                text = format!("{text}: {inner}");
                cause = inner.source();
            }
            found.unknown.insert(
                KEY.to_owned(),
                format!("the kernel log is not known: {text}"),
            );
            None
        }
    }
}

/// Makes the checks of a profile. With `gpus` only these count.
pub(super) fn checks(run: &Run, profile: Profile, gpus: Option<&[u32]>, found: &mut Found) {
    let site = &run.site;
    let config = match site.checks.as_str() {
        "off" => return,
        "auto" => None,
        file => Some(file),
    };
    let state = site
        .state_dir
        .join(format!("checks.{}.json", run.surroundings.node));
    let usual = Inquiry::new(
        &run.host,
        profile,
        Given {
            config,
            state: state.to_str(),
            nvml: Some(&site.nvml),
        },
    );
    let inquiry = Inquiry {
        node: run.surroundings.node.clone(),
        gpus: gpus.map(|gpus| gpus.iter().map(u32::to_string).collect()),
        ..usual
    };
    match check_command::check(&inquiry) {
        Ok(report) => take(&report, found),
        Err(error) => {
            let why = format!("the checks were not made: {error}");
            found.unknown.insert(CHECK.to_owned(), why);
        }
    }
}

/// What a report proves, and what it leaves open.
fn take(report: &Report, found: &mut Found) {
    for result in &report.results {
        let key = format!("{CHECK}{}:", result.name);
        let text = format!("{}: {}", result.name, result.summary);
        match result.status {
            Status::Ok | Status::Warn => {}
            Status::Fail => {
                found.problems.insert(key, Problem { text, newest: 0 });
            }
            Status::Unknown => {
                found.absent.insert(key, text);
            }
            Status::Broken => {
                found.unknown.insert(key, format!("a check broke: {text}"));
            }
        }
    }
}

/// A process that not even SIGKILL ends, as a problem of the node.
pub(super) fn stuck_process(process: &Process, found: &mut Found) {
    let place = process
        .waits_in()
        .map_or_else(String::new, |place| format!(" in {place}"));
    let text = format!(
        "process {} ({}) cannot be killed: it is in state {}{place}",
        process.pid, process.name, process.state
    );
    let key = format!("{STUCK}{}:{}", process.pid, process.start_ticks);
    found.problems.insert(key, Problem { text, newest: 0 });
}

/// The processes that the node was drained for and that are still there.
pub(super) fn still_stuck(memory: &Memory, found: &mut Found) {
    for key in memory.drained_for.keys().chain(memory.settled.keys()) {
        let Some((pid, ticks)) = key
            .strip_prefix(STUCK)
            .and_then(|identity| identity.split_once(':'))
        else {
            continue;
        };
        let process = pid.parse().ok().and_then(Process::read);
        if let Some(process) = process
            && process.start_ticks.to_string() == ticks
            && !process.is_dead()
        {
            stuck_process(&process, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use steadfast_checks::CheckResult;

    use super::*;

    #[test]
    fn only_a_failed_check_is_a_problem() {
        let result = |name: &str, status| CheckResult {
            name: name.to_owned(),
            status,
            summary: "so".to_owned(),
            problems: Vec::new(),
            evidence: Vec::new(),
            took: Duration::ZERO,
        };
        let report = Report {
            profile: Profile::Health,
            node: "n1".to_owned(),
            results: vec![
                result("clock", Status::Ok),
                result("memory", Status::Warn),
                result("mounts", Status::Fail),
                result("gpu-ecc", Status::Unknown),
                result("edac", Status::Broken),
            ],
            notes: Vec::new(),
            took: Duration::ZERO,
        };
        let mut found = Found::default();
        take(&report, &mut found);
        let keys: Vec<&String> = found.problems.keys().collect();
        assert_eq!(keys, ["check:mounts:"]);
        assert_eq!(found.problems["check:mounts:"].text, "mounts: so");
        assert!(found.absent.contains_key("check:gpu-ecc:"));
        assert!(found.unknown.contains_key("check:edac:"));
    }
}
