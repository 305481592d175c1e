// SPDX-License-Identifier: Apache-2.0
//! A cgroup v2 for the workers, where this user may make one: it ends a whole tree in one stroke.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A cgroup that this process made. Dropping it does not remove it: see [`Cgroup::remove`].
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes a cgroup called `name` below this process's own.
    ///
    /// # Errors
    ///
    /// In words, when there is no cgroup v2 here, it is not writable, or the kernel (before 5.14) cannot kill one.
    pub fn create_below_own(name: &str) -> Result<Cgroup, String> {
        let mounts = read("/proc/self/mountinfo")?;
        let membership = read("/proc/self/cgroup")?;
        let own = own_cgroup(&mounts, &membership).ok_or("no cgroup v2 is mounted here")?;
        Self::create(&own.join(name))
    }

    fn create(path: &Path) -> Result<Cgroup, String> {
        match fs::create_dir(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(format!(
                    "could not make the cgroup {}: {error}",
                    path.display()
                ));
            }
        }
        let group = Cgroup {
            path: path.to_owned(),
        };
        let usable = group.path.join("cgroup.kill").exists() && group.can_be_joined();
        if usable {
            return Ok(group);
        }
        let reason = format!("the cgroup {} cannot be joined or killed", path.display());
        match group.remove() {
            Ok(()) => Err(reason),
            Err(error) => Err(format!("{reason}, nor removed: {error}")),
        }
    }

    /// Where it is in the file system.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its directory, open: what a child is born into it by.
    ///
    /// # Errors
    ///
    /// When it cannot be opened.
    pub fn directory(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    fn can_be_joined(&self) -> bool {
        OpenOptions::new()
            .write(true)
            .open(self.path.join("cgroup.procs"))
            .is_ok()
    }

    /// Sends SIGKILL to every process in it and below, in one stroke.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn kill(&self) -> io::Result<()> {
        kill(&self.path)
    }

    /// Removes it, as [`remove`] does.
    ///
    /// # Errors
    ///
    /// When a process is still in it, or it is not ours to remove.
    pub fn remove(&self) -> io::Result<()> {
        remove(&self.path)
    }
}

/// Removes the cgroup at `path` and those that its former members have made inside it; no process may be left in any.
///
/// # Errors
///
/// When a process is still in it, or it is not ours to remove.
pub fn remove(path: &Path) -> io::Result<()> {
    // One that cannot be looked into is told by the removal.
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path())?;
        }
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Sends SIGKILL to every process in the cgroup at `path` and below.
///
/// # Errors
///
/// When the kernel refuses.
pub fn kill(path: &Path) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .open(path.join("cgroup.kill"))?
        .write_all(b"1")
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("could not read {path}: {error}"))
}

/// Finds the directory of the caller's cgroup v2 from `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn own_cgroup(mounts: &str, membership: &str) -> Option<PathBuf> {
    let inside = membership
        .lines()
        .find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        if right.split(' ').next()? != "cgroup2" {
            return None;
        }
        let fields: Vec<&str> = left.split(' ').collect();
        let (root, mounted_at) = (fields.get(3)?, fields.get(4)?);
        // In a container the mount may show only a part of the hierarchy.
        let relative = Path::new(inside).strip_prefix(root).ok()?;
        Some(Path::new(mounted_at).join(relative))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "30 24 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        35 24 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_own_cgroup_is_found_beside_version_one() {
        let membership = "4:memory:/a\n0::/user.slice/b\n";
        let own = own_cgroup(MOUNTS, membership);
        assert_eq!(
            own,
            Some(PathBuf::from("/sys/fs/cgroup/unified/user.slice/b"))
        );
    }

    #[test]
    fn a_mount_that_shows_only_a_part_is_respected() {
        let mounts = "1 2 0:3 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(
            own_cgroup(mounts, "0::/docker/x/job\n"),
            Some(PathBuf::from("/sys/fs/cgroup/job"))
        );
        assert_eq!(own_cgroup(mounts, "0::/elsewhere\n"), None);
    }

    #[test]
    fn what_was_made_inside_is_removed_too() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("job");
        fs::create_dir_all(path.join("inner/innermost")).unwrap();
        fs::create_dir(path.join("other")).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists());
        remove(&path).unwrap();
    }

    #[test]
    fn without_version_two_there_is_none() {
        assert_eq!(
            own_cgroup("30 24 0:26 / /x rw - cgroup cgroup rw", "4:memory:/a\n"),
            None
        );
    }
}
