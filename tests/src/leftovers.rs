// SPDX-License-Identifier: Apache-2.0
//! What a job must not leave behind.

use std::fs;
use std::path::{Path, PathBuf};

/// The cgroup that a keeper with this token makes for its workers, wherever it can make one.
pub fn cgroup_of(token: &str) -> Option<PathBuf> {
    Some(own_cgroup()?.join(format!("steadfast-{token}")))
}

/// The cgroup v2 of this process.
pub(crate) fn own_cgroup() -> Option<PathBuf> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    let inside = membership
        .lines()
        .find_map(|line| line.strip_prefix("0::"))?
        .to_owned();
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mounted_at = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let path = fields.next()?;
        (fields.next()? == "cgroup2").then(|| path.to_owned())
    })?;
    Some(Path::new(&mounted_at).join(inside.trim_start_matches('/')))
}

/// Names of what is in a directory; empty when there is none.
pub(crate) fn entries(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}
