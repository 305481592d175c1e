// SPDX-License-Identifier: Apache-2.0
//! What the kernel says about processes, read from /proc.

use std::fs;
use std::path::Path;

use crate::failure::Failure;

/// What a process has used up to now.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Usage {
    /// Seconds of CPU time, all threads, in user mode and in the kernel.
    pub(super) cpu_seconds: f64,
    /// Bytes of memory in use, those that are shared counted in part.
    pub(super) pss_bytes: u64,
    /// Bytes of memory in use, those that are shared counted in full.
    pub(super) rss_bytes: u64,
}

/// What the process has used.
pub(super) fn usage(pid: u32) -> Result<Usage, Failure> {
    let directory = Path::new("/proc").join(pid.to_string());
    let read = |name: &str| {
        let path = directory.join(name);
        fs::read_to_string(&path).map_err(|error| Failure::read(path.display(), error))
    };
    let (stat, rollup) = (read("stat")?, read("smaps_rollup")?);
    let ticks = cpu_ticks(&stat)
        .ok_or_else(|| Failure::Unexpected(format!("/proc/{pid}/stat is not as expected")))?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Ok(Usage {
        cpu_seconds: std::time::Duration::from_millis(ticks * 1_000 / per_second).as_secs_f64(),
        pss_bytes: kilobytes(&rollup, "Pss:").unwrap_or(0) * 1024,
        rss_bytes: kilobytes(&rollup, "Rss:").unwrap_or(0) * 1024,
    })
}

/// The children of a process whose command line contains this word.
pub(super) fn children_with(parent: u32, word: &str) -> Vec<u32> {
    let is_child = |pid: &u32| parent_of(&read(*pid, "stat")) == Some(parent);
    let has_word = |pid: &u32| {
        read(*pid, "cmdline")
            .split('\0')
            .any(|argument| argument == word)
    };
    all().filter(|pid| is_child(pid) && has_word(pid)).collect()
}

/// All processes whose command line mentions this path.
pub(super) fn mentioning(path: &Path) -> Vec<u32> {
    let path = path.to_string_lossy();
    all()
        .filter(|pid| read(*pid, "cmdline").contains(path.as_ref()))
        .collect()
}

/// A process and all its descendants.
pub(super) fn tree(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, Option<u32>)> = all()
        .map(|pid| (pid, parent_of(&read(pid, "stat"))))
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let children = parents.iter().filter(|(_, of)| *of == Some(parent));
        found.extend(children.map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// A file of a process; empty once the process is gone.
fn read(pid: u32, name: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default()
}

/// One minute's load average, as text.
pub(super) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}

/// Fields of `stat` after the program's name, which may contain anything.
fn fields(stat: &str) -> Option<std::str::SplitWhitespace<'_>> {
    Some(stat.rsplit_once(')')?.1.split_whitespace())
}

fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = fields(stat)?.skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn parent_of(stat: &str) -> Option<u32> {
    fields(stat)?.nth(1)?.parse().ok()
}

fn kilobytes(rollup: &str, name: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_spaces_and_brackets_do_not_shift_the_fields() {
        let stat = "42 (a) b (c) S 7 42 42 0 -1 4194560 100 200 0 0 31 11 5 6 20 0 1 0 99 1000 50";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(parent_of(stat), Some(7));
        assert_eq!(cpu_ticks("nonsense"), None);
    }

    #[test]
    fn memory_is_read_in_kilobytes() {
        let rollup =
            "00400000-7ffd [rollup]\nRss:     2048 kB\nPss:     1024 kB\nPss_Dirty: 1 kB\n";
        assert_eq!(kilobytes(rollup, "Pss:"), Some(1024));
        assert_eq!(kilobytes(rollup, "Swap:"), None);
    }

    #[test]
    fn a_tree_holds_its_root_and_what_is_below_it() {
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        let tree = tree(u32::try_from(parent).unwrap());
        assert!(tree.len() > 1 && tree.contains(&std::process::id()));
    }

    #[test]
    fn this_process_has_used_something() {
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.rss_bytes >= usage.pss_bytes && usage.pss_bytes > 0);
    }
}
