// SPDX-License-Identifier: Apache-2.0
//! Which process of a worker trains: the worker may be a shell or a launcher.

use std::collections::BTreeSet;
use std::path::Path;

use steadfast_health::task_state::{WaitsFor, look_at};
use steadfast_process::tree::{Process, descendants};

use super::Subject;

/// A chain of launchers is no longer.
const MOST_LAUNCHERS: usize = 8;

/// The process that trains, and whether it is the one with the progress page.
pub(super) fn find(subject: &Subject) -> Option<(Process, bool)> {
    let worker = Process::read(subject.pid)?;
    let below = descendants(subject.pid, &BTreeSet::new());
    if let Some((pid, _)) = subject.trains
        && let Ok(pid) = i32::try_from(pid)
    {
        // The number is the process's own idea of it: in a container it may be that of a stranger here.
        let shown = std::iter::once(&worker)
            .chain(&below)
            .find(|process| process.pid == pid);
        if let Some(process) = shown.filter(|process| sees_itself_as(process.pid)) {
            return Some((process.clone(), true));
        }
    }
    Some((behind_launchers(worker, &below), false))
}

/// A process that only waits for its only child stands for that child.
fn behind_launchers(worker: Process, below: &[Process]) -> Process {
    let mut process = worker;
    for _ in 0..MOST_LAUNCHERS {
        let mut children = below.iter().filter(|child| child.parent == process.pid);
        let (Some(child), None) = (children.next(), children.next()) else {
            break;
        };
        if !waits_for_child(process.pid) {
            break;
        }
        process = child.clone();
    }
    process
}

fn waits_for_child(pid: i32) -> bool {
    let state = u32::try_from(pid)
        .ok()
        .and_then(|pid| look_at(Path::new("/proc"), pid));
    let call = state.and_then(|state| state.tasks.into_iter().next()?.call);
    call.is_some_and(|call| call.waits_for == WaitsFor::Child)
}

/// Whether the process has the same number in its own PID namespace as in ours.
fn sees_itself_as(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let innermost = numbers.and_then(|numbers| numbers.split_ascii_whitespace().last());
    innermost.is_none_or(|number| number == pid.to_string())
}
