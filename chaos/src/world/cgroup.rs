// SPDX-License-Identifier: Apache-2.0
//! Cgroups that hold workers back, of either version.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::undo::{Undo, UndoJournal};

/// Where controllers of version 1 are mounted, each below its name.
const ROOT: &str = "/sys/fs/cgroup";

/// What a cgroup limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controller {
    /// Memory.
    Memory,
    /// CPU time.
    Cpu,
    /// Whether its processes run at all; version 1 alone has it so that not even SIGKILL gets through.
    Freezer,
}

/// A cgroup that was made here.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
    is_first_version: bool,
}

impl Controller {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Freezer => "freezer",
        }
    }

    /// Where cgroups with it can be made, and whether they are of version 1.
    fn parent(self) -> Option<(PathBuf, bool)> {
        let first = Path::new(ROOT).join(self.name());
        if first.join("cgroup.procs").exists() {
            return Some((first, true));
        }
        if self == Self::Freezer {
            return None;
        }
        let root = Path::new(ROOT);
        let handed_down = fs::read_to_string(root.join("cgroup.subtree_control")).ok()?;
        let has_it = handed_down
            .split_whitespace()
            .any(|name| name == self.name());
        has_it.then(|| (root.to_owned(), false))
    }

    /// What stands in the way of making one.
    pub(crate) fn obstacle(self) -> Option<String> {
        let Some((parent, _)) = self.parent() else {
            return Some(format!("no cgroup with the {} controller", self.name()));
        };
        let probe = parent.join(format!("chaos-probe-{}", std::process::id()));
        match fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe)) {
            Ok(()) => None,
            Err(error) => Some(format!("{}: {error}", parent.display())),
        }
    }
}

impl Group {
    /// Makes one.
    pub(crate) fn new(
        controller: Controller,
        name: &str,
        undo: &mut UndoJournal,
    ) -> Result<Self, Failure> {
        let (parent, is_first_version) = controller.parent().ok_or_else(|| {
            Failure::Unexpected(format!("there is no cgroup with {}", controller.name()))
        })?;
        let path = parent.join(name);
        undo.will_do(Undo::RemoveCgroup { path: path.clone() })?;
        if controller == Controller::Freezer {
            undo.will_do(Undo::Thaw {
                file: path.join("freezer.state"),
                word: "THAWED".to_owned(),
            })?;
        }
        fs::create_dir_all(&path).map_err(|error| Failure::write(path.display(), error))?;
        Ok(Self {
            path,
            is_first_version,
        })
    }

    /// Puts a process into it.
    pub(crate) fn take_in(&self, pid: i32) -> Result<(), Failure> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Limits the memory, to so many bytes.
    pub(crate) fn limit_memory(&self, bytes: u64) -> Result<(), Failure> {
        let name = if self.is_first_version {
            "memory.limit_in_bytes"
        } else {
            "memory.max"
        };
        self.write(name, &bytes.to_string())
    }

    /// Kills for lack of memory so far.
    pub(crate) fn memory_kills(&self) -> u64 {
        let name = if self.is_first_version {
            "memory.oom_control"
        } else {
            "memory.events"
        };
        counter(&self.read(name), "oom_kill")
    }

    /// Limits the CPU time, to so many percent of one core.
    pub(crate) fn limit_cpu(&self, percent: u32) -> Result<(), Failure> {
        let quota = u64::from(percent) * 1_000;
        if self.is_first_version {
            self.write("cpu.cfs_period_us", "100000")?;
            self.write("cpu.cfs_quota_us", &quota.to_string())
        } else {
            self.write("cpu.max", &format!("{quota} 100000"))
        }
    }

    /// How often it was held back.
    pub(crate) fn throttled(&self) -> u64 {
        counter(&self.read("cpu.stat"), "nr_throttled")
    }

    /// Freezes it, or lets it go on.
    pub(crate) fn freeze(&self, frozen: bool) -> Result<(), Failure> {
        self.write("freezer.state", if frozen { "FROZEN" } else { "THAWED" })
    }

    /// Whether it is frozen.
    pub(crate) fn is_frozen(&self) -> bool {
        self.read("freezer.state").trim() == "FROZEN"
    }

    /// Removes it; its processes go back to where they came from.
    pub(crate) fn remove(&self) -> Result<(), Failure> {
        let undo = Undo::RemoveCgroup {
            path: self.path.clone(),
        };
        undo.carry_out().map_err(Failure::Unexpected)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.path.join(name);
        fs::write(&path, text).map_err(|error| Failure::write(path.display(), error))
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path.join(name)).unwrap_or_default()
    }
}

fn counter(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .find(|(key, _)| *key == name)
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_whole_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(counter(text, "oom_kill"), 3);
        assert_eq!(counter(text, "oom"), 0);
    }
}
