// SPDX-License-Identifier: Apache-2.0
//! Where lines come from while a job runs: `/dev/kmsg`, a named pipe, or a file that grows.
//!
//! What has to be known of `/dev/kmsg` (`Documentation/ABI/testing/dev-kmsg` of Linux): one read gives one record, from the
//! oldest that is left; a reader that is overtaken gets `EPIPE` once and goes on at the oldest again, so that what was lost
//! shows in the numbers; a record that does not fit into the buffer is skipped.

mod growing;
mod records;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use growing::Growing;
use records::{Records, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub type Clock = fn() -> u64;

/// How often a file is looked at for more.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Reads a log as it grows. Blocks its thread, so it wants one of its own.
#[derive(Debug)]
pub struct Follower {
    source: Source,
    clock: Clock,
    /// When everything that there was had been read: what comes later was logged later.
    idle_ns: u64,
    /// A line that waits behind the gap before it.
    held: Option<Line>,
}

#[derive(Debug)]
enum Source {
    Records(Records<File>),
    Stream(Stream),
    Growing(Growing),
}

/// Why a log cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// It cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The log.
        path: PathBuf,
        /// Why.
        #[source]
        reason: io::Error,
    },
    /// It is neither a device, nor a pipe, nor a file.
    #[error("{} is neither a device, nor a named pipe, nor a file", path.display())]
    Kind {
        /// What was named.
        path: PathBuf,
    },
    /// It cannot be read any more.
    #[error("cannot read the log")]
    Read(#[source] io::Error),
}

/// What a look at the log gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A record or a line.
    Line(Line),
    /// Records are gone that were never read: what they said is unknown.
    Gap {
        /// How many, where it is known.
        lost: Option<u64>,
    },
    /// Nothing came for as long as was waited.
    Nothing,
}

/// A record of `/dev/kmsg`, or a line without its end.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its place in the log: number of the record, or bytes of the file up to its end. Absent for a pipe, which cannot be
    /// read twice.
    pub position: Option<u64>,
    /// When it was read.
    pub read_ns: u64,
    /// It was logged after this instant; 0 for what was there before the log was opened.
    pub after_ns: u64,
}

/// Whether a line was there before following began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was.
    Backlog,
    /// It came since.
    Live,
}

impl Follower {
    /// Opens the log at `path`. What is in it already comes first.
    pub fn open(path: &Path, clock: Clock) -> Result<Self, FollowError> {
        let failed = |reason| FollowError::Open {
            path: path.to_owned(),
            reason,
        };
        let kind = std::fs::metadata(path).map_err(failed)?.file_type();
        let non_blocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(non_blocking);
        let mut idle_ns = 0;
        let source = if kind.is_char_device() {
            Source::Records(Records::new(options.open(path).map_err(failed)?))
        } else if kind.is_fifo() {
            idle_ns = clock();
            // Held open for writing as well, so that it does not end when a writer goes.
            let pipe = options.write(true).open(path).map_err(failed)?;
            Source::Stream(Stream::new(pipe))
        } else if kind.is_file() {
            Source::Growing(Growing::open(path).map_err(failed)?)
        } else {
            let path = path.to_owned();
            return Err(FollowError::Kind { path });
        };
        Ok(Self {
            source,
            clock,
            idle_ns,
            held: None,
        })
    }

    /// Waits for the next line, at most for `patience`.
    pub fn next(&mut self, patience: Duration) -> Result<Next, FollowError> {
        if let Some(line) = self.held.take() {
            return Ok(Next::Line(line));
        }
        let deadline = (self.clock)().saturating_add(nanos(patience));
        loop {
            let asked_ns = (self.clock)();
            let found = match &mut self.source {
                Source::Records(records) => records.read(),
                Source::Stream(stream) => stream.read(),
                Source::Growing(growing) => growing.read(),
            };
            match found.map_err(FollowError::Read)? {
                Found::Line {
                    bytes,
                    position,
                    lost,
                } => {
                    let line = Line {
                        bytes,
                        position,
                        read_ns: (self.clock)(),
                        after_ns: self.idle_ns,
                    };
                    if lost == 0 {
                        return Ok(Next::Line(line));
                    }
                    self.held = Some(line);
                    return Ok(Next::Gap { lost: Some(lost) });
                }
                Found::Lost => return Ok(Next::Gap { lost: None }),
                Found::Nothing => self.idle_ns = asked_ns,
            }
            let left = deadline.saturating_sub((self.clock)());
            if left == 0 {
                return Ok(Next::Nothing);
            }
            self.wait(Duration::from_nanos(left))
                .map_err(FollowError::Read)?;
        }
    }

    fn wait(&self, patience: Duration) -> io::Result<()> {
        let (mut ready, patience) = match &self.source {
            Source::Records(records) => (vec![readable(&records.reader)], patience),
            Source::Stream(stream) => (vec![readable(&stream.pipe)], patience),
            Source::Growing(_) => (Vec::new(), patience.min(LOOK_EVERY)),
        };
        let timeout = Timespec::try_from(patience).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        match poll(&mut ready, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Line {
    /// Whether it was there before following began.
    pub fn origin(&self) -> Origin {
        if self.after_ns == 0 {
            Origin::Backlog
        } else {
            Origin::Live
        }
    }

    /// When it was logged, given the time since the start of the machine that it carries itself. That clock is not
    /// disciplined and drifts from the monotonic one by seconds in weeks, but a line that came while the log was
    /// followed was logged between two looks at it.
    pub fn logged_ns(&self, stamp: Option<Duration>) -> u64 {
        match stamp {
            Some(stamp) => nanos(stamp).clamp(self.after_ns.min(self.read_ns), self.read_ns),
            None if self.origin() == Origin::Live => self.read_ns,
            None => 0,
        }
    }
}

/// What one look at a source gave.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Line {
        bytes: Vec<u8>,
        position: Option<u64>,
        /// Records before it that were never read.
        lost: u64,
    },
    Lost,
    Nothing,
}

/// Bytes that are not a whole line yet.
#[derive(Default)]
struct Unended(Vec<u8>);

impl Unended {
    /// The longest line that is kept; what comes beyond it is dropped.
    const LONGEST: usize = 16 << 10;

    /// Takes bytes up to the first line end. Gives the line if it has ended, and how many bytes were taken.
    fn take(&mut self, bytes: &[u8]) -> (Option<Vec<u8>>, usize) {
        let end = memchr::memchr(b'\n', bytes);
        let part = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or(bytes);
        let room = Self::LONGEST.saturating_sub(self.0.len());
        self.0
            .extend_from_slice(part.get(..room.min(part.len())).unwrap_or(part));
        let line = end.map(|_| std::mem::take(&mut self.0));
        (line, end.map_or(bytes.len(), |end| end + 1))
    }
}

impl fmt::Debug for Unended {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Unended({} bytes)", self.0.len())
    }
}

fn readable(file: &File) -> PollFd<'_> {
    PollFd::new(file, PollFlags::IN)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
