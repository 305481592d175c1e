// SPDX-License-Identifier: Apache-2.0
//! The keeper is dead: its workers have died with it (the kernel saw to that), and what they left behind must follow.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use steadfast_process::{cgroup, tree};

use crate::keeper::protocol::{MARK, Welcome};

/// Gives up on processes that do not die for this long.
const PATIENCE: Duration = Duration::from_secs(10);

/// Ends every process of the job on this node, and removes the keeper's traces. Returns what is still there, in words.
pub(super) async fn end_what_is_left(welcome: &Welcome) -> Vec<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(path) = &welcome.cgroup {
            // Without it the processes are found one by one below.
            let _one_by_one_instead = cgroup::kill(path);
        }
        let left: Vec<_> = tree::with_mark(MARK, &welcome.token)
            .into_iter()
            .filter(|process| !process.is_dead())
            .collect();
        for process in &left {
            process.signal(Signal::SIGKILL);
        }
        if left.is_empty() || Instant::now() >= deadline {
            remove_traces(welcome.cgroup.as_deref(), &welcome.runtime_dir, deadline).await;
            return left
                .iter()
                .map(|process| format!("pid {} ({})", process.pid, process.name))
                .collect();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A cgroup can be removed a moment after its last process was reaped by somebody else.
async fn remove_traces(cgroup: Option<&Path>, runtime_dir: &Path, deadline: Instant) {
    if let Some(path) = cgroup {
        while std::fs::remove_dir(path).is_err() && path.exists() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    // What cannot be removed is found and replaced by the next keeper of this job.
    let _next_keeper_does = std::fs::remove_dir_all(runtime_dir);
}
