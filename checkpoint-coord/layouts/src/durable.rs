// SPDX-License-Identifier: Apache-2.0
//! Files that are there whole or not at all, whatever happens to the machine.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// Replaces `path` by a file with these bytes: written beside it, flushed, renamed, and the directory flushed.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Supervisors of other nodes may do the same at the same time, in the same directory.
    let temporary = path.with_file_name(format!(".{name}.{}.tmp", unique()));
    let written = File::create_new(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        // What is left of it may be nothing at all.
        drop(fs::remove_file(&temporary));
    }
    written?;
    flush_directory(path)
}

/// Renames `from` to `to`, in the same directory, for good.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    flush_directory(to)
}

fn flush_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// Differs between nodes and processes, without asking a clock.
fn unique() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    format!("{}-{}", std::process::id(), boot.trim())
}
