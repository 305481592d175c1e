// SPDX-License-Identifier: Apache-2.0
//! A file system that can be made to fail: what is done on it is passed on to a directory beside it (FUSE), as long as it is well.
//!
//! Its threads belong to this program. When that is killed, the kernel answers everybody who waits for the file system with an
//! error, so nothing hangs that `clean` could not unmount.

mod handles;
mod names;
mod pass_through;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fuser::{BackgroundSession, Config, Errno, MountOption, SessionACL, spawn_mount};

use self::pass_through::PassThrough;
use crate::bench::waiting::pause;
use crate::scenario::DiskCall;

/// A disk that is slow for one must not be slower for many.
const THREADS: usize = 4;

/// What a file system does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ailment {
    /// Calls of this kind fail with EIO.
    Fails(DiskCall),
    /// Only the first half of what is written at once is taken, as the system allows.
    ShortWrites,
    /// Calls that write or flush take so much longer.
    Slow(Duration),
}

/// How a file system is: shared by what mounts it and those who answer for it.
#[derive(Debug, Default)]
pub(crate) struct Sickness {
    ailment: Mutex<Option<Ailment>>,
    hits: AtomicU64,
}

/// A file system that is mounted.
#[derive(Debug)]
pub(crate) struct SickDisk {
    /// How it is.
    pub(crate) sickness: Arc<Sickness>,
    session: BackgroundSession,
}

impl SickDisk {
    /// Mounts one at `path`, in front of the directory `behind`.
    pub(crate) fn mount(behind: &Path, path: &Path) -> io::Result<Self> {
        let sickness = Arc::new(Sickness::default());
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("steadfast-chaos".to_owned()),
            MountOption::DefaultPermissions,
        ];
        config.acl = SessionACL::All;
        config.n_threads = Some(THREADS);
        let all = PassThrough::new(behind.to_owned(), Arc::clone(&sickness));
        let session = spawn_mount(all, path, &config)?;
        Ok(Self { sickness, session })
    }

    /// Unmounts it, and waits until its threads have ended.
    pub(crate) fn unmount(self) -> io::Result<()> {
        self.session.umount_and_join()
    }
}

impl Sickness {
    /// From now on it has this, or is well.
    pub(crate) fn set(&self, ailment: Option<Ailment>) {
        *self.ailment.lock().unwrap_or_else(PoisonError::into_inner) = ailment;
    }

    /// How many calls have gone wrong so far.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// What becomes of a call of this kind: how much of `length` bytes is done.
    fn on(&self, call: DiskCall, length: usize) -> Result<usize, Errno> {
        let ailment = *self.ailment.lock().unwrap_or_else(PoisonError::into_inner);
        match ailment {
            Some(Ailment::Fails(ill)) if ill == call => {
                self.hit();
                Err(Errno::EIO)
            }
            Some(Ailment::ShortWrites) if call == DiskCall::Write && length > 1 => {
                self.hit();
                Ok(length / 2)
            }
            Some(Ailment::Slow(more)) if call != DiskCall::Read => {
                self.hit();
                // Whoever interrupts the harness need not wait for a disk.
                let _interrupted = pause(more);
                Ok(length)
            }
            _ => Ok(length),
        }
    }

    fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
