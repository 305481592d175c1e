// SPDX-License-Identifier: Apache-2.0
//! How the threads of a process are, as the kernel has it: state, place in the kernel, system call, time on a processor.
//!
//! Nothing here asks a process for anything, nor reads what waits for its memory (`cmdline`, `environ`, `maps`): it works
//! on one that hangs in the kernel, too. What the kernel does not tell is `None`.

mod system_call;

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use self::system_call::{SystemCall, WaitsFor};

/// More threads than that are not looked at.
const MOST_THREADS: usize = 512;
/// A kernel stack is no longer.
const KERNEL_STACK: usize = 4096;

/// A thread at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its id; that of the process for the main thread.
    pub id: u32,
    /// Its name, cut to 15 bytes by the kernel.
    pub name: String,
    /// State letter: R, S, D, T, t, Z, X, I.
    pub state: char,
    /// Clock ticks that it has spent on a processor.
    pub ticks: u64,
    /// How often it has gone to sleep by itself; known of the main thread only.
    #[serde(default)]
    pub sleeps: Option<u64>,
    /// The kernel function in which it sleeps.
    pub wchan: Option<String>,
    /// The system call that it is in, and what that is about.
    pub call: Option<SystemCall>,
    /// Its stack in the kernel; only root may see it.
    pub kernel_stack: Option<String>,
}

/// What of a process does not belong to a single thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessState {
    /// Its threads, the main thread first.
    pub tasks: Vec<Task>,
    /// Whether its cgroup is frozen: its threads look as if they slept.
    pub frozen: bool,
    /// What is open, counted by kind: `socket`, `pipe`, `anon_inode:[eventpoll]`, and files by name.
    pub open: Vec<(String, usize)>,
}

/// Looks at a process below `proc_root`, which is `/proc` but in tests. `None` when there is no such process.
pub fn look_at(proc_root: &Path, pid: u32) -> Option<ProcessState> {
    let directory = proc_root.join(pid.to_string());
    let mut tasks: Vec<Task> = fs::read_dir(directory.join("task"))
        .ok()?
        .flatten()
        .take(MOST_THREADS)
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            task(&entry.path(), &directory, id)
        })
        .collect();
    tasks.sort_by_key(|task| (task.id != pid, task.id));
    let main = tasks.first_mut()?;
    main.sleeps = sleeps(&directory.join(format!("task/{}", main.id)));
    Some(ProcessState {
        tasks,
        frozen: is_frozen(&directory),
        open: open_files(&directory),
    })
}

/// Whether the process has a handler of its own for the signal: otherwise the signal would end it.
pub fn catches(proc_root: &Path, pid: u32, signal: u32) -> bool {
    let status = fs::read_to_string(proc_root.join(format!("{pid}/status"))).unwrap_or_default();
    let caught = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let bit = signal.checked_sub(1).and_then(|bit| 1u64.checked_shl(bit));
    caught
        .zip(bit)
        .is_some_and(|(caught, bit)| caught & bit != 0)
}

fn task(task: &Path, process: &Path, id: u32) -> Option<Task> {
    let stat = fs::read_to_string(task.join("stat")).ok()?;
    let (name, state, ticks) = parse_stat(&stat)?;
    let wchan = fs::read_to_string(task.join("wchan")).ok();
    let wchan = wchan.map(|text| text.trim().to_owned());
    let call = fs::read_to_string(task.join("syscall")).ok();
    let stack = fs::read(task.join("stack")).ok();
    let stack = stack
        .map(|text| String::from_utf8_lossy(&text[..text.len().min(KERNEL_STACK)]).into_owned());
    Some(Task {
        id,
        name,
        state,
        ticks,
        sleeps: None,
        wchan: wchan.filter(|name| !name.is_empty() && name != "0"),
        call: call.and_then(|text| SystemCall::parse(&text, process)),
        kernel_stack: stack.filter(|text| !text.trim().is_empty()),
    })
}

/// Name, state, and time on a processor. The name stands in parentheses and may hold anything.
fn parse_stat(stat: &str) -> Option<(String, char, u64)> {
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let name = stat.get(open + 1..close)?.to_owned();
    let fields: Vec<&str> = stat.get(close + 1..)?.split_ascii_whitespace().collect();
    let state = fields.first()?.chars().next()?;
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some((name, state, ticks(11)?.saturating_add(ticks(12)?)))
}

fn sleeps(task: &Path) -> Option<u64> {
    let status = fs::read_to_string(task.join("status")).ok()?;
    let count = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    count.trim().parse().ok()
}

/// Whether the cgroup v2 of the process, or one above it, is frozen.
fn is_frozen(process: &Path) -> bool {
    let membership = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
    let Some(path) = membership.lines().find_map(|line| line.strip_prefix("0::")) else {
        return false;
    };
    let events = Path::new("/sys/fs/cgroup")
        .join(path.trim_start_matches('/'))
        .join("cgroup.events");
    fs::read_to_string(events).is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
}

fn open_files(process: &Path) -> Vec<(String, usize)> {
    let Ok(entries) = fs::read_dir(process.join("fd")) else {
        return Vec::new();
    };
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    for entry in entries.flatten().take(4096) {
        // A name in the kernel's tables: this asks no file system.
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        let target = target.to_string_lossy();
        let kind = match target.split_once(":[") {
            Some((kind @ ("socket" | "pipe"), _)) => kind.to_owned(),
            _ => target.into_owned(),
        };
        *counts.entry(kind).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.truncate(64);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_with_its_threads_and_files() {
        let state = look_at(Path::new("/proc"), std::process::id()).unwrap();
        assert_eq!(state.tasks[0].id, std::process::id());
        let mine = own_thread();
        let own = state.tasks.iter().find(|task| task.id == mine).unwrap();
        assert_eq!(own.state, 'R', "it runs while it looks");
        assert!(!state.frozen && !state.open.is_empty());
        assert_eq!(look_at(Path::new("/proc"), u32::MAX), None);
    }

    fn own_thread() -> u32 {
        let link = fs::read_link("/proc/thread-self").unwrap();
        link.file_name().unwrap().to_str().unwrap().parse().unwrap()
    }

    #[test]
    fn a_made_up_process_is_read_whatever_its_name() {
        let root = tempfile::tempdir().unwrap();
        let task = root.path().join("7/task/7");
        fs::create_dir_all(&task).unwrap();
        let stat = "7 (a) R (b) D 1 7 7 0 -1 64 1 2 3 4 30 12 0 0 20 0 1 0 99 1 1";
        fs::write(task.join("stat"), stat).unwrap();
        fs::write(task.join("wchan"), "io_schedule").unwrap();
        fs::write(root.path().join("7/status"), "SigCgt:\t0000080000000000\n").unwrap();
        let switches = "Name:\ta\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        fs::write(task.join("status"), switches).unwrap();
        let state = look_at(root.path(), 7).unwrap();
        let main = &state.tasks[0];
        assert_eq!(
            (main.name.as_str(), main.state, main.ticks),
            ("a) R (b", 'D', 42)
        );
        assert_eq!(main.sleeps, Some(12));
        assert_eq!(main.wchan.as_deref(), Some("io_schedule"));
        assert_eq!((&main.call, &main.kernel_stack), (&None, &None));
        assert!(catches(root.path(), 7, 44));
        assert!(!catches(root.path(), 7, 43) && !catches(root.path(), 8, 44));
        assert!(!catches(root.path(), 7, 0) && !catches(root.path(), 7, 99));
        fs::write(task.join("stat"), "7 (cut").unwrap();
        assert_eq!(look_at(root.path(), 7), None);
    }
}
