// SPDX-License-Identifier: Apache-2.0
//! The processes of the node, from what the kernel tells of them without asking them anything.

use crate::context::{Context, Unread};

/// One process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Cut to 15 bytes by the kernel.
    pub(crate) name: String,
    /// R, S, D, T, Z, X and so on.
    pub(crate) state: char,
    pub(crate) parent: u32,
    /// Its start, in clock ticks since boot.
    pub(crate) start_ticks: u64,
}

/// The parent of all threads of the kernel.
const KERNEL: u32 = 2;

impl Process {
    /// Whether it is a thread of the kernel.
    pub(crate) const fn is_of_kernel(&self) -> bool {
        self.pid == KERNEL || self.parent == KERNEL
    }

    /// Seconds since it began, at this time since boot; 0 for one of the future.
    pub(crate) fn age_s(&self, since_boot_s: u64) -> u64 {
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        since_boot_s.saturating_sub(self.start_ticks / per_second)
    }
}

/// All processes.
pub(crate) fn all(context: &Context<'_>) -> Result<Vec<Process>, Unread> {
    let names = context.names("proc");
    let pids: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    if pids.is_empty() {
        return Err(Unread {
            absent: true,
            why: "no process is seen in /proc".to_owned(),
        });
    }
    Ok(pids
        .into_iter()
        .filter_map(|pid| one(context, pid))
        .collect())
}

/// One process, if it is there.
pub(crate) fn one(context: &Context<'_>, pid: u32) -> Option<Process> {
    parse(&context.read(format!("proc/{pid}/stat")).ok()?)
}

/// The name stands in parentheses and may itself hold parentheses and blanks.
fn parse(text: &str) -> Option<Process> {
    let (pid, rest) = text.split_once('(')?;
    let (name, rest) = rest.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Process {
        pid: pid.trim().parse().ok()?,
        name: name.to_owned(),
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_is_read_and_anything_else_is_no_process() {
        let line = "42 (a) b (c) D 2 42 41 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 999 1000 200";
        let process = parse(line).unwrap();
        assert_eq!((process.pid, process.state, process.parent), (42, 'D', 2));
        assert_eq!(
            (process.name.as_str(), process.start_ticks),
            ("a) b (c", 999)
        );
        assert!(process.is_of_kernel());
        for text in [
            "",
            "42",
            "42 (x",
            "42 (x) ",
            "x (y) S 1 2",
            "42 (x) S 1 2 3",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(process.age_s(0), 0);
    }
}
