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
        self.arguments
            .get(1)
            .is_some_and(|argument| argument == "__agent")
    }

    /// Whether it is a probe of an agent.
    pub fn is_probe(&self) -> bool {
        self.arguments
            .get(1)
            .is_some_and(|argument| argument == "__probe")
    }
}

/// Sends a signal. Returns whether there was such a process.
pub fn send(pid: i32, signal: Signal) -> bool {
    kill(Pid::from_raw(pid), signal).is_ok()
}

/// Whether there is such a process and it is no zombie.
pub fn is_alive(pid: i32) -> bool {
    process_state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The state letter of a process, if there is one of this number.
pub fn process_state(pid: i32) -> Option<char> {
    stat(pid)?.first()?.chars().next()
}

/// The children of a process, zombies among them.
pub fn children(parent: i32) -> Vec<Found> {
    let is_child =
        |&pid: &i32| stat(pid).is_some_and(|fields| fields.get(1) == Some(&parent.to_string()));
    let found = all().filter(is_child).filter_map(|pid| {
        Some(Found {
            pid,
            arguments: arguments(pid)?,
            state: process_state(pid)?,
        })
    });
    found.collect()
}

/// The living processes whose initial environment holds this mark.
pub(crate) fn with_mark(mark: &str) -> Vec<Found> {
    with_variable(MARK, mark)
}

/// The living processes in whose initial environment a variable has this value.
pub(crate) fn with_variable(name: &str, value: &str) -> Vec<Found> {
    let wanted = format!("{name}={value}");
    all()
        .filter(|&pid| {
            fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
                environment
                    .split(|&byte| byte == 0)
                    .any(|pair| pair == wanted.as_bytes())
            })
        })
        .filter_map(read)
        .collect()
}

fn all() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn read(pid: i32) -> Option<Found> {
    let state = process_state(pid).filter(|state| !matches!(state, 'Z' | 'X'))?;
    Some(Found {
        pid,
        arguments: arguments(pid)?,
        state,
    })
}

fn arguments(pid: i32) -> Option<Vec<String>> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = line
        .split(|&byte| byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned());
    Some(words.collect())
}

/// The fields after the name, the state first.
fn stat(pid: i32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace();
    Some(fields.map(str::to_owned).collect())
}
