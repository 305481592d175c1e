// SPDX-License-Identifier: Apache-2.0
//! A disk that can stop answering: a file system of its own in a file, which is frozen.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bench::launch::{Out, Program, on_path, temporary_directory, words};
use crate::failure::Failure;

const SIZE: u64 = 16 << 20;
const DONE_WITHIN: Duration = Duration::from_secs(30);

/// A mounted file system. It is thawed and unmounted when this is dropped.
#[derive(Debug)]
pub(super) struct Disk {
    directory: tempfile::TempDir,
}

impl Disk {
    /// Makes it; root may.
    pub(super) fn new() -> Result<Self, Failure> {
        let disk = Self {
            directory: temporary_directory()?,
        };
        let image = disk.directory.path().join("image");
        File::create(&image)
            .and_then(|file| file.set_len(SIZE))
            .map_err(|error| Failure::write(image.display(), error))?;
        fs::create_dir(disk.path())
            .map_err(|error| Failure::write(disk.path().display(), error))?;
        disk.run("mkfs.ext4", words([&"-q", &"-F", &image]))?;
        disk.run("mount", words([&"-o", &"loop", &image, &disk.path()]))?;
        Ok(disk)
    }

    /// Where it is mounted.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join("mount")
    }

    /// From now on whoever writes sleeps until it thaws.
    pub(super) fn freeze(&self) -> Result<(), Failure> {
        self.run("fsfreeze", words([&"--freeze", &self.path()]))
    }

    /// It answers again.
    pub(super) fn thaw(&self) -> Result<(), Failure> {
        self.run("fsfreeze", words([&"--unfreeze", &self.path()]))
    }

    fn run(&self, name: &str, arguments: Vec<OsString>) -> Result<(), Failure> {
        let program = find(name).ok_or_else(|| Failure::NotFound(name.to_owned()))?;
        let command: Vec<OsString> = std::iter::once(program.into()).chain(arguments).collect();
        Program::start(&command, self.directory.path(), Out::Nowhere)?.wait(DONE_WITHIN)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // It may not be frozen, or not even mounted.
        let _not_frozen = self.thaw();
        let _not_mounted = self.run("umount", words([&"--lazy", &self.path()]));
    }
}

/// Such programs are not on everybody's `PATH`.
fn find(name: &str) -> Option<PathBuf> {
    let usual = ["/usr/sbin", "/sbin"].map(|directory| Path::new(directory).join(name));
    on_path(name).or_else(|| usual.into_iter().find(|path| path.is_file()))
}
