// SPDX-License-Identifier: Apache-2.0
//! One page, as a file that somebody else writes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::Page;
use super::layout::{self, Bytes, PAGE_SIZE, REQUEST_AT};

/// How often a page is read anew that was being written.
const TRIES: u32 = 4;
/// A process cannot have done anything later than now; clocks of one machine are one clock.
const FUTURE_NS: u64 = 1_000_000_000;

/// An open page.
#[derive(Debug)]
pub struct PageFile {
    file: File,
}

/// Why a page is ignored.
#[derive(Debug, thiserror::Error)]
pub enum PageFault {
    /// The file cannot be opened or read.
    #[error("cannot be read")]
    Io(#[source] io::Error),
    /// It is a link, a directory, a pipe or the like.
    #[error("is not a plain file")]
    NoFile,
    /// It is shorter than a page.
    #[error("has {length} bytes where a page has {PAGE_SIZE}")]
    Short {
        /// Its length.
        length: u64,
    },
    /// It does not begin like a page.
    #[error("is not a progress page")]
    NoPage,
    /// It is a page of another version.
    #[error("has version {version}, which this program does not know")]
    Version {
        /// The version.
        version: u32,
    },
    /// It tells of things that have not happened yet.
    #[error("tells of a time that has not come yet")]
    Future,
}

impl PageFile {
    /// Opens a page. Never waits: not for the writer of a pipe either.
    ///
    /// # Errors
    ///
    /// [`PageFault::Io`] and [`PageFault::NoFile`].
    pub fn open(path: &Path) -> Result<PageFile, PageFault> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let flags = i32::from_ne_bytes(flags.bits().to_ne_bytes());
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(path);
        let file = match opened {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
                return Err(PageFault::NoFile);
            }
            opened => opened.map_err(PageFault::Io)?,
        };
        if !file.metadata().map_err(PageFault::Io)?.is_file() {
            return Err(PageFault::NoFile);
        }
        Ok(PageFile { file })
    }

    /// Reads the page. `None` when it was being written at every try; `now_ns` is the time of the monotonic clock.
    ///
    /// # Errors
    ///
    /// [`PageFault`]: the page makes no sense.
    pub fn read(&self, now_ns: u64) -> Result<Option<Page>, PageFault> {
        let mut last = self.copy()?;
        layout::check(&last)?;
        for _ in 0..TRIES {
            // Two copies that are the same were not made while somebody wrote, in whatever order the bytes came.
            let next = self.copy()?;
            if next == last
                && let Some(page) = layout::read(&next)
            {
                let newest = page.changed_ns.max(page.phase_ns);
                let newest = newest.max(page.step.map_or(0, |step| step.at_ns));
                let future = newest > now_ns.saturating_add(FUTURE_NS);
                return if future {
                    Err(PageFault::Future)
                } else {
                    Ok(Some(page))
                };
            }
            last = next;
        }
        Ok(None)
    }

    /// Asks the process for a checkpoint at the first step that is `step` or later; 0 takes that back. All ranks of a job
    /// save together, so the step must be one that none of them has reached. Until `hold_until_ns` of the monotonic clock,
    /// or until it is taken back, a process that has saved makes no further step; 0: it goes on.
    ///
    /// # Errors
    ///
    /// What the system says when the page cannot be written.
    pub fn request_checkpoint(&self, step: u64, hold_until_ns: u64) -> io::Result<()> {
        let mut request = [0; 16];
        request[..8].copy_from_slice(&step.to_le_bytes());
        request[8..].copy_from_slice(&hold_until_ns.to_le_bytes());
        self.file.write_all_at(&request, REQUEST_AT as u64)
    }

    fn copy(&self) -> Result<Bytes, PageFault> {
        let mut bytes = [0; PAGE_SIZE];
        match self.file.read_exact_at(&mut bytes, 0) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let length = self.file.metadata().map_err(PageFault::Io)?.len();
                Err(PageFault::Short { length })
            }
            Err(error) => Err(PageFault::Io(error)),
        }
    }
}
