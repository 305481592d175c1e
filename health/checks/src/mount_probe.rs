// SPDX-License-Identifier: Apache-2.0
//! Whether a mount answers. Runs in a process of its own: a file server that is gone holds up whoever asks, beyond any signal.

use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What a file system says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountAnswer {
    /// Bytes.
    pub total: u64,
    /// Bytes that an ordinary user can still write.
    pub free: u64,
    /// Files that there can be; 0 where there is no limit.
    pub files: u64,
    /// Files that there still can be.
    pub files_free: u64,
}

impl MountAnswer {
    /// Asks at once, in this process: only for file systems of this machine.
    pub(crate) fn ask(path: &Path) -> io::Result<Self> {
        let said = rustix::fs::statvfs(path)?;
        Ok(Self {
            total: said.f_blocks.saturating_mul(said.f_frsize),
            free: said.f_bavail.saturating_mul(said.f_frsize),
            files: said.f_files,
            files_free: said.f_favail,
        })
    }
}

/// Asks the file system at `path`, reads the beginning of the directory, and, if `write`, writes a file there, brings it to
/// the disk and removes it.
///
/// # Errors
///
/// In words.
pub fn probe_mount(path: &Path, write: bool) -> Result<MountAnswer, String> {
    let answer = MountAnswer::ask(path).map_err(|error| format!("cannot be asked: {error}"))?;
    let mut entries =
        std::fs::read_dir(path).map_err(|error| format!("cannot be listed: {error}"))?;
    if let Some(Err(error)) = entries.next() {
        return Err(format!("cannot be listed: {error}"));
    }
    if write {
        try_to_write(path).map_err(|error| format!("cannot be written to: {error}"))?;
    }
    Ok(answer)
}

fn try_to_write(path: &Path) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .prefix(".steadfast-check-")
        .tempfile_in(path)?;
    file.write_all(b"steadfast check\n")?;
    file.as_file().sync_all()?;
    file.close()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_answers_and_nothing_stays_behind() {
        let directory = tempfile::tempdir().unwrap();
        let answer = probe_mount(directory.path(), true).unwrap();
        assert!(answer.total > 0);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_directory_is_said() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = probe_mount(file.path(), false).unwrap_err();
        assert!(error.starts_with("cannot be listed: "), "{error}");
        let error = probe_mount(Path::new("/nonexistent"), false).unwrap_err();
        assert!(error.starts_with("cannot be asked: "), "{error}");
    }
}
