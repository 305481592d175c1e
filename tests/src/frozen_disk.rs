// SPDX-License-Identifier: Apache-2.0
//! A disk that can stop answering: a file system of its own in a file, which is frozen.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A mounted file system. It is thawed and unmounted when this is dropped.
#[derive(Debug)]
pub struct FrozenDisk {
    directory: TempDir,
}

impl FrozenDisk {
    /// Makes it; root may.
    #[track_caller]
    pub fn new() -> FrozenDisk {
        let directory = tempfile::Builder::new().prefix("disk-").tempdir().unwrap();
        let disk = FrozenDisk { directory };
        let image = disk.directory.path().join("image");
        File::create(&image).unwrap().set_len(16 << 20).unwrap();
        std::fs::create_dir(disk.path()).unwrap();
        let (image, path) = (image.to_str().unwrap(), disk.path());
        run(&["mkfs.ext4", "-q", "-F", image]);
        run(&["mount", "-o", "loop", image, path.to_str().unwrap()]);
        disk
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("mount")
    }

    /// From now on whoever writes sleeps until it thaws.
    #[track_caller]
    pub fn freeze(&self) {
        run(&["fsfreeze", "--freeze", self.path().to_str().unwrap()]);
    }

    /// It answers again.
    #[track_caller]
    pub fn thaw(&self) {
        run(&["fsfreeze", "--unfreeze", self.path().to_str().unwrap()]);
    }
}

impl Default for FrozenDisk {
    fn default() -> FrozenDisk {
        FrozenDisk::new()
    }
}

impl Drop for FrozenDisk {
    fn drop(&mut self) {
        // It may not be frozen, or not even mounted; a failure here would hide the test's own.
        quietly(&["fsfreeze", "--unfreeze"], &self.path());
        quietly(&["umount", "--lazy"], &self.path());
    }
}

fn quietly(words: &[&str], path: &Path) {
    let mut command = command(words);
    command.arg(path).stderr(Stdio::null());
    drop(command.status());
}

#[track_caller]
fn run(words: &[&str]) {
    let output = command(words).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {stderr}");
}

#[expect(clippy::disallowed_methods, reason = "tests create processes")]
fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    command
}
