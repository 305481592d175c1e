// SPDX-License-Identifier: Apache-2.0
//! The processes below another one: finding them, and ending them without ever hitting a stranger.

mod real_time;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

/// One process as `/proc` shows it. Together with the boot, `pid` and `start_ticks` name it for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: i32,
    /// Id of the parent.
    pub parent: i32,
    /// Session.
    pub session: i32,
    /// State letter: R, S, D, T, Z, X and so on.
    pub state: char,
    /// Start, in clock ticks since boot.
    pub start_ticks: u64,
    /// Name of the executable, cut to 15 bytes by the kernel.
    pub name: String,
}

impl Process {
    /// Reads one process; `None` when there is none with this id.
    pub fn read(pid: i32) -> Option<Process> {
        parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Whether it has ended and only waits to be reaped.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Sends a signal if this very process still exists. Returns whether it was sent.
    pub fn signal(&self, signal: Signal) -> bool {
        rustix::process::Signal::from_named_raw(signal as i32)
            .is_some_and(|number| self.send(number))
    }

    /// As [`Process::signal`], for a real-time signal, from 34 to 64. It ends a process that has no handler for it.
    pub fn signal_real_time(&self, number: i32) -> bool {
        real_time::signal(number).is_some_and(|number| self.send(number))
    }

    fn send(&self, signal: rustix::process::Signal) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return false;
        };
        let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else {
            return false;
        };
        // The descriptor now holds the process; only then is it certain whose number this is.
        let same = Process::read(self.pid).is_some_and(|now| now.start_ticks == self.start_ticks);
        same && pidfd_send_signal(descriptor, signal).is_ok()
    }

    /// The kernel function in which it sleeps, if that can be read.
    pub fn waits_in(&self) -> Option<String> {
        let text = fs::read_to_string(format!("/proc/{}/wchan", self.pid)).ok()?;
        let text = text.trim();
        (!text.is_empty() && text != "0").then(|| text.to_owned())
    }
}

/// All living or unreaped descendants of `root`, without those below (and including) the processes in `except`.
pub fn descendants(root: i32, except: &BTreeSet<i32>) -> Vec<Process> {
    if Path::new("/proc/thread-self/children").exists() {
        return descendants_by_children(root, except);
    }
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in all_processes() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut queue = vec![root];
    while let Some(parent) = queue.pop() {
        for process in children.remove(&parent).unwrap_or_default() {
            if !except.contains(&process.pid) {
                queue.push(process.pid);
                found.push(process);
            }
        }
    }
    found
}

/// The processes in whose initial environment `variable` is a list, separated by commas, that holds `mark`.
///
/// Only the caller's own processes can be looked into, unless it is privileged.
pub fn with_mark(variable: &str, mark: &str) -> Vec<Process> {
    let mut found = all_processes();
    found.retain(|process| {
        fs::read(format!("/proc/{}/environ", process.pid))
            .is_ok_and(|environment| is_marked(&environment, variable, mark))
    });
    found
}

fn is_marked(environment: &[u8], variable: &str, mark: &str) -> bool {
    environment
        .split(|&byte| byte == 0)
        .filter_map(|pair| pair.strip_prefix(variable.as_bytes())?.strip_prefix(b"="))
        .any(|list| {
            list.split(|&byte| byte == b',')
                .any(|each| each == mark.as_bytes())
        })
}

fn descendants_by_children(root: i32, except: &BTreeSet<i32>) -> Vec<Process> {
    let mut found = Vec::new();
    let mut queue = vec![root];
    let mut seen = BTreeSet::new();
    while let Some(parent) = queue.pop() {
        for child in children_of(parent) {
            if except.contains(&child) || !seen.insert(child) {
                continue;
            }
            queue.push(child);
            found.extend(Process::read(child));
        }
    }
    found
}

/// Children of all threads of a process.
fn children_of(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let mut children = Vec::new();
    for thread in threads.flatten() {
        let list = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.extend(
            list.split_ascii_whitespace()
                .filter_map(|text| text.parse::<i32>().ok()),
        );
    }
    children
}

/// Every process that `/proc` shows.
pub fn all_processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(Process::read)
        .collect()
}

/// Parses `/proc/PID/stat`; the name stands in parentheses and may itself hold parentheses and spaces.
fn parse_stat(text: &str) -> Option<Process> {
    let open = text.find('(')?;
    let close = text.rfind(')')?;
    let pid = text[..open].trim().parse().ok()?;
    let name = text.get(open + 1..close)?.to_owned();
    let fields: Vec<&str> = text.get(close + 1..)?.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        name,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_parsed() {
        let line = "42 (a) b (c) R 7 42 41 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 999 1000 200";
        let process = parse_stat(line).unwrap();
        assert_eq!((process.pid, process.parent, process.session), (42, 7, 41));
        assert_eq!(process.name, "a) b (c");
        assert_eq!(process.start_ticks, 999);
    }

    #[test]
    fn cut_or_foreign_text_is_no_process() {
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_stat("42 (sleep) S 1"), None);
        assert_eq!(parse_stat("x (sleep) S 1 2 3"), None);
    }

    #[test]
    fn a_mark_is_one_of_a_list_and_no_part_of_another() {
        let environment = b"A=1\0MARK=outer,inner\0B=MARK=x\0";
        assert!(is_marked(environment, "MARK", "outer"));
        assert!(is_marked(environment, "MARK", "inner"));
        for other in ["out", "outer,inner", "x", ""] {
            assert!(!is_marked(environment, "MARK", other), "{other}");
        }
    }

    #[test]
    fn this_process_is_found_and_a_stale_identity_is_not_signalled() {
        let me = Process::read(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(!me.is_dead());
        let stale = Process {
            start_ticks: me.start_ticks + 1,
            ..me
        };
        assert!(
            !stale.signal(Signal::SIGKILL),
            "an older process with this number is gone"
        );
    }
}
