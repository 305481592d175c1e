// SPDX-License-Identifier: Apache-2.0
//! The keeper is dead: its workers have died with it (the kernel saw to that), and what they left behind must follow.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use steadfast_process::{cgroup, tree};

use crate::keeper::protocol::{MARK, Welcome};

/// Gives up on processes that do not die for this long.
const PATIENCE: Duration = Duration::from_secs(10);
/// What agents of jobs inside this one get to end their own: their keepers are dead by now as well.
const FOR_INNER_AGENTS: Duration = Duration::from_secs(3);

/// Ends every process of the job on this node, and removes the keeper's traces. Returns what is still there, in words.
pub(super) async fn end_what_is_left(welcome: &Welcome) -> Vec<String> {
    let start = Instant::now();
    loop {
        let left: Vec<_> = tree::with_mark(MARK, &welcome.token)
            .into_iter()
            .filter(|process| !process.is_dead())
            .collect();
        let spare_agents = start.elapsed() < FOR_INNER_AGENTS;
        for process in &left {
            if !(spare_agents && is_agent(process)) {
                process.signal(Signal::SIGKILL);
            }
        }
        if !spare_agents && let Some(path) = &welcome.cgroup {
            // It may hold what hides its environment. If it cannot be killed, it is named below.
            let _named_below = cgroup::kill(path);
        }
        if left.is_empty() || start.elapsed() >= PATIENCE {
            remove_traces(welcome, start + PATIENCE).await;
            return left
                .iter()
                .map(|process| format!("pid {} ({})", process.pid, process.name))
                .collect();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn is_agent(process: &tree::Process) -> bool {
    std::fs::read(format!("/proc/{}/cmdline", process.pid))
        .is_ok_and(|line| line.split(|&byte| byte == 0).nth(1) == Some(b"__agent"))
}

/// A cgroup can be removed a moment after its last process was reaped by somebody else.
async fn remove_traces(welcome: &Welcome, deadline: Instant) {
    if let Some(path) = &welcome.cgroup {
        // Whatever is still in it is ours, marked or not.
        let _removal_fails_then = cgroup::kill(path);
        while cgroup::remove(path).is_err() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    // What cannot be removed is found and replaced by the next keeper of this job.
    let _next_keeper_does = std::fs::remove_dir_all(&welcome.runtime_dir);
}
