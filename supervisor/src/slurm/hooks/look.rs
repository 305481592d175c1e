// SPDX-License-Identifier: Apache-2.0
//! Looking at the node: everything that is proven to be wrong with it, and what could not be looked at.

use steadfast_process::tree::Process;

use super::Run;
use super::decision::{Found, Memory, Problem};
use super::kernel_faults::{KEY, KernelFaults};

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
