// SPDX-License-Identifier: Apache-2.0
//! The node's memory of drains, on disk, and the lock that lets one hook at a time decide about the node.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::decision::Memory;
use crate::clock;

/// How long a hook waits for another one that is deciding. The other's calls have deadlines of their own.
const PATIENCE: Duration = Duration::from_secs(15);

/// What stands in the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// The memory counts for one start of the machine.
    boot_id: String,
    /// When it last changed, on the monotonic clock.
    #[serde(default)]
    changed_ns: u64,
    memory: Memory,
}

/// The memory, locked for as long as this lives.
#[derive(Debug)]
pub(crate) struct LockedMemory {
    file: PathBuf,
    boot_id: String,
    _lock: File,
}

/// Why the memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    /// The file system refused.
    #[error("cannot use {}", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another hook is deciding.
    #[error("another hook has held {} for too long", path.display())]
    Busy {
        /// The lock.
        path: PathBuf,
    },
}

impl LockedMemory {
    /// Waits for the lock of this node.
    pub(crate) fn lock(state_dir: &Path, node: &str) -> Result<LockedMemory, MemoryError> {
        let directory = state_dir.join("nodes");
        let path = directory.join(format!("{node}.lock"));
        let failed = |source| MemoryError::Io {
            path: path.clone(),
            source,
        };
        make_directory(&directory).map_err(failed)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        let deadline = clock::monotonic_ns() + nanos(PATIENCE);
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if clock::monotonic_ns() < deadline => {
                    std::thread::park_timeout(Duration::from_millis(20));
                }
                Err(TryLockError::WouldBlock) => return Err(MemoryError::Busy { path }),
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
        }
        Ok(LockedMemory {
            file: directory.join(format!("{node}.json")),
            boot_id: boot_id(),
            _lock: lock,
        })
    }

    /// What was remembered since the machine started.
    pub(crate) fn read(&self) -> Memory {
        self.kept().map(|kept| kept.memory).unwrap_or_default()
    }

    /// For how long it has been as it is; `None` when nothing was remembered since the machine started.
    pub(crate) fn unchanged_for(&self) -> Option<Duration> {
        let kept = self.kept()?;
        let age = clock::monotonic_ns().saturating_sub(kept.changed_ns);
        Some(Duration::from_nanos(age))
    }

    fn kept(&self) -> Option<Kept> {
        read_json::<Kept>(&self.file).filter(|kept| kept.boot_id == self.boot_id)
    }

    /// Remembers.
    pub(crate) fn write(&self, memory: &Memory) -> Result<(), MemoryError> {
        let kept = Kept {
            boot_id: self.boot_id.clone(),
            changed_ns: clock::monotonic_ns(),
            memory: memory.clone(),
        };
        if self.kept().is_some_and(|known| known.memory == kept.memory) {
            return Ok(());
        }
        write_json(&self.file, &kept).map_err(|source| MemoryError::Io {
            path: self.file.clone(),
            source,
        })
    }
}

/// Makes a directory that only its owner writes.
pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
}

/// Reads a file; one that is damaged or not there is none.
pub(super) fn read_json<T: DeserializeOwned>(file: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

/// Writes a file in one step.
pub(super) fn write_json(file: &Path, value: &impl Serialize) -> io::Result<()> {
    let new = file.with_extension(format!("new-{}", std::process::id()));
    fs::write(&new, serde_json::to_vec(value).map_err(io::Error::other)?)?;
    fs::rename(new, file)
}

/// Identity of this start of the machine.
pub(super) fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_for_this_boot_and_damage_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let locked = LockedMemory::lock(directory.path(), "n1").unwrap();
        assert_eq!(locked.read(), Memory::default());
        let memory = Memory {
            drained_for: [("xid:1".to_owned(), 5)].into(),
            ..Memory::default()
        };
        locked.write(&memory).unwrap();
        assert_eq!(locked.read(), memory);
        drop(locked);
        let other = LockedMemory {
            boot_id: "another".to_owned(),
            ..LockedMemory::lock(directory.path(), "n1").unwrap()
        };
        assert_eq!(other.read(), Memory::default());
        fs::write(directory.path().join("nodes/n1.json"), "{").unwrap();
        assert_eq!(other.read(), Memory::default());
    }

    #[test]
    fn nodes_do_not_wait_for_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let _one = LockedMemory::lock(directory.path(), "n1").unwrap();
        let _other = LockedMemory::lock(directory.path(), "n2").unwrap();
    }
}
