// SPDX-License-Identifier: Apache-2.0
//! The ways to undo something. Each can be carried out twice.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use steadfast_process::tree::{Process, with_mark};

use super::MARK;
use crate::bench::waiting::wait_for;
use crate::tools;

/// How long processes may take to be gone after SIGKILL, and a cgroup until it is empty.
const GONE_WITHIN: Duration = Duration::from_secs(20);

/// How to undo something that a run does to the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "undo", rename_all = "kebab-case")]
pub(crate) enum Undo {
    /// Kill all processes that carry the mark of the run.
    Kill {
        /// The mark.
        mark: String,
    },
    /// Let the processes of a cgroup go on.
    Thaw {
        /// The file that freezes it.
        file: PathBuf,
        /// What thaws it.
        word: String,
    },
    /// Remove a cgroup; processes that are still in it go back to its parent.
    RemoveCgroup {
        /// The cgroup.
        path: PathBuf,
    },
    /// Let a file system take writes again.
    ThawFileSystem {
        /// Where it is mounted.
        path: PathBuf,
    },
    /// Unmount a file system.
    Unmount {
        /// Where it is mounted.
        path: PathBuf,
    },
    /// Remove a directory and all that is in it.
    RemoveDirectory {
        /// The directory.
        path: PathBuf,
    },
}

impl Undo {
    /// Whether it lets processes go on that nothing could end before.
    pub(super) fn sets_free(&self) -> bool {
        matches!(self, Self::Thaw { .. } | Self::ThawFileSystem { .. })
    }

    /// Whether it ends processes.
    pub(super) fn ends_processes(&self) -> bool {
        matches!(self, Self::Kill { .. })
    }

    /// Does it. Tells what stands in the way if it cannot be done.
    pub(crate) fn carry_out(&self) -> Result<(), String> {
        match self {
            Self::Kill { mark } => kill(mark),
            Self::Thaw { file, word } => match fs::write(file, word) {
                Err(error) if file.exists() => Err(format!("{}: {error}", file.display())),
                _ => Ok(()),
            },
            Self::RemoveCgroup { path } => remove_cgroup(path),
            Self::ThawFileSystem { path } => {
                if is_mounted(path) {
                    // One that is not frozen refuses, which is as good.
                    let _not_frozen = tools::run(&["fsfreeze", "-u", &path.to_string_lossy()], "");
                }
                Ok(())
            }
            Self::Unmount { path } => unmount(path),
            Self::RemoveDirectory { path } => match fs::remove_dir_all(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(format!("{}: {error}", path.display()))
                }
                _ => Ok(()),
            },
        }
    }
}

/// Kills all processes with the mark until there are none.
pub(crate) fn kill(mark: &str) -> Result<(), String> {
    let living = || {
        let mut living = with_mark(MARK, mark);
        living.retain(|process| !process.is_dead());
        living
    };
    // A supervisor that is killed cannot remove the cgroup that it has made for its workers.
    let cgroups: BTreeSet<PathBuf> = living().iter().filter_map(supervised_cgroup).collect();
    let gone = wait_for("the end of the processes of a run", GONE_WITHIN, || {
        let processes = living();
        for process in &processes {
            process.signal(Signal::SIGKILL);
        }
        Ok(processes.is_empty().then_some(()))
    });
    gone.map_err(|error| {
        let left: Vec<String> = living()
            .iter()
            .map(|process| format!("{} ({})", process.pid, process.name))
            .collect();
        format!("{error}: {}", left.join(", "))
    })?;
    cgroups.iter().try_for_each(|path| remove_cgroup(path))
}

/// The cgroup of version 2 that a process is in, if a supervisor has made it.
fn supervised_cgroup(process: &Process) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).ok()?;
    let inside = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let name = Path::new(inside).file_name()?.to_str()?;
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
    let mut paths = roots.iter().map(|root| root.join(inside));
    let path = paths.find(|path| path.join("cgroup.procs").exists())?;
    name.starts_with("steadfast-").then_some(path)
}

fn remove_cgroup(path: &Path) -> Result<(), String> {
    let parent = path.parent().map(|parent| parent.join("cgroup.procs"));
    let removed = wait_for("a cgroup to be empty", GONE_WITHIN, || {
        let members = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines() {
            if let Some(parent) = &parent {
                // It may have ended meanwhile.
                let _ended = fs::write(parent, pid);
            }
        }
        match fs::remove_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Ok(None),
            _ => Ok(Some(())),
        }
    });
    removed.map_err(|error| format!("{}: {error}", path.display()))
}

fn unmount(path: &Path) -> Result<(), String> {
    let shown = path.to_string_lossy();
    let unmounted = wait_for("a file system to be unmounted", GONE_WITHIN, || {
        if !is_mounted(path) {
            return Ok(Some(()));
        }
        // It is busy for as long as the last process that had a file open is not gone.
        let _busy = tools::run(&["umount", &shown], "");
        Ok((!is_mounted(path)).then_some(()))
    });
    unmounted.map_err(|error| format!("{shown}: {error}"))
}

/// Whether a file system is mounted there.
fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = path.to_string_lossy();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(path.as_ref()))
}
