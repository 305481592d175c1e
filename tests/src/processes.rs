// SPDX-License-Identifier: Apache-2.0
//! The processes of a job, found by the mark in their environment.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Name of the variable that holds a job's mark.
pub(crate) const MARK: &str = "STEADFAST_TEST_JOB";

/// One process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Process id.
    pub pid: i32,
    /// Its arguments, the program's name first.
    pub arguments: Vec<String>,
    /// State letter.
    pub state: char,
}

impl Found {
    /// Whether it is the agent of a job.
    pub fn is_agent(&self) -> bool {
        self.arguments.get(1).is_some_and(|argument| argument == "__agent")
    }
}

/// Sends a signal. Returns whether there was such a process.
pub fn send(pid: i32, signal: Signal) -> bool {
    kill(Pid::from_raw(pid), signal).is_ok()
}

/// Whether there is such a process and it is no zombie.
pub fn is_alive(pid: i32) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The living processes whose initial environment holds this mark.
pub(crate) fn with_mark(mark: &str) -> Vec<Found> {
    let wanted = format!("{MARK}={mark}");
    all()
        .filter(|&pid| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environment| environment.split(|&byte| byte == 0).any(|pair| pair == wanted.as_bytes()))
        })
        .filter_map(read)
        .collect()
}

fn all() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn read(pid: i32) -> Option<Found> {
    let state = state(pid).filter(|state| !matches!(state, 'Z' | 'X'))?;
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let arguments = arguments
        .split(|&byte| byte == 0)
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect();
    Some(Found { pid, arguments, state })
}

fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 1..].trim_start().chars().next()
}
