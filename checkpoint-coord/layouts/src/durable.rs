// SPDX-License-Identifier: Apache-2.0
//! Files that are there whole or not at all, whatever happens to the machine.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use crate::find::Found;
use crate::listing::Listing;

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

/// Makes a directory for good, unless it is there already.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => flush_directory(path),
    }
}

/// Makes `path` a file with these bytes, unless it is there already.
pub(crate) fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}.tmp", unique()));
    let made = File::create_new(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        // Unlike a rename, it replaces nothing.
        match fs::hard_link(&temporary, path) {
            // A file system without links: a reader may see it half made, and looks again.
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                let mut file = File::create_new(path)?;
                file.write_all(bytes)?;
                file.sync_all()
            }
            linked => linked,
        }
    });
    drop(fs::remove_file(&temporary));
    made?;
    flush_directory(path)
}

/// Brings everything of a checkpoint to stable storage that is not there yet: the files of the listing, and the directories
/// that they are in. What changes meanwhile is not vouched for.
///
/// # Errors
///
/// What the system says of the first file that cannot be; [`io::ErrorKind::ResourceBusy`] where the files are not those of
/// the listing any more.
pub fn flush(found: &Found, listing: &Listing) -> io::Result<()> {
    if found.path.is_dir() {
        let mut directories = BTreeSet::from([found.path.clone()]);
        for name in listing.files.keys() {
            let path = found.path.join(name);
            File::open(&path)?.sync_all()?;
            let inner = path.ancestors().skip(1);
            directories.extend(
                inner
                    .take_while(|inner| *inner != found.path)
                    .map(Path::to_owned),
            );
        }
        for directory in directories {
            File::open(directory)?.sync_all()?;
        }
    } else {
        File::open(&found.path)?.sync_all()?;
    }
    flush_directory(&found.path)?;
    if Listing::read(&found.path)?.files != listing.files {
        let text = "it was written to meanwhile";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
    }
    Ok(())
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
