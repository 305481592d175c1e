// SPDX-License-Identifier: Apache-2.0
//! The way of a stream's bytes from the worker's pipe through the spool to the log file, and what happens when the
//! file does not take them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::dropped::{Ledger, in_bytes};
use super::log_file::{LogFile, PATIENCE, Reply};
use super::peek::{Peeker, move_some};
use super::writers::Writers;
use super::{OutputEvent, Stream, StreamPipes};

/// Room that a spool is given, if the kernel agrees.
const SPOOL_BYTES: usize = 256 * 1024;
/// A reply that takes this long may be held up by another file that hangs.
const OVERDUE: Duration = Duration::from_millis(50);
/// How long output may gather in the spool, which outlives us, before a thread is woken to write it.
const GATHER: Duration = Duration::from_millis(300);
/// With this much in it, the spool is written at once.
const GATHERED_BYTES: u64 = 64 * 1024;
/// How soon a file that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The spool and the log file of one stream.
#[derive(Debug)]
pub(super) struct Spool {
    stream: Stream,
    file: LogFile,
    write: OwnedFd,
    state: State,
    /// Bytes in the spool.
    spooled: u64,
    /// Bytes thrown away since the file last said so.
    lost: u64,
    /// Why the file takes nothing, while that is so.
    trouble: Option<String>,
    /// Kinds of errors that were told already.
    told: Vec<io::ErrorKind>,
    ledger: Arc<Ledger>,
    events: mpsc::UnboundedSender<OutputEvent>,
}

#[derive(Debug)]
enum State {
    /// The spool is ours, and empty.
    Idle,
    /// The spool is ours, and what is in it can wait until then.
    Gathering { until: Instant },
    /// The thread has the spool.
    Writing {
        progress: u64,
        since: Instant,
        relieved: bool,
    },
    /// The spool is ours; the file failed and is tried again at this time.
    Resting { until: Instant },
}

impl Spool {
    /// Prepares both ends of the spool and writes what is in it from before.
    pub(super) fn start(
        stream: Stream,
        path: std::path::PathBuf,
        (read, write): (OwnedFd, OwnedFd),
        writers: Arc<Writers>,
        ledger: Arc<Ledger>,
        events: mpsc::UnboundedSender<OutputEvent>,
    ) -> Result<Self, super::OutputError> {
        let prepare = |source| super::OutputError::Watch {
            local_rank: stream.local_rank,
            source,
        };
        if fcntl_getpipe_size(&write).map_err(|error| prepare(error.into()))? < SPOOL_BYTES {
            // A user has only so many pipe pages; a smaller spool does as well.
            let _refused = fcntl_setpipe_size(&write, SPOOL_BYTES);
        }
        let flags = fcntl_getfl(&write).map_err(|error| prepare(error.into()))?;
        fcntl_setfl(&write, flags | OFlags::NONBLOCK).map_err(|error| prepare(error.into()))?;
        let spooled = rustix::io::ioctl_fionread(&read).map_err(|error| prepare(error.into()))?;
        let file = LogFile::new(path, read, writers);
        let state = State::Idle;
        let mut spool = Self {
            stream,
            file,
            write,
            state,
            spooled,
            lost: 0,
            trouble: None,
            told: Vec::new(),
            ledger,
            events,
        };
        spool.lend();
        Ok(spool)
    }

    /// Takes `bytes` from the head of the worker's pipe. Returns how many are gone from there; the rest must wait.
    ///
    /// `pressed` says that the worker's pipe is filling up, so that what a stalled file cannot take is thrown away.
    pub(super) fn take(
        &mut self,
        worker: impl AsFd,
        bytes: usize,
        pressed: bool,
        peeker: &Peeker,
    ) -> io::Result<usize> {
        if bytes == 0 {
            return Ok(0);
        }
        let mut moved = 0;
        if !matches!(self.state, State::Writing { .. }) && self.say_what_is_lost()? {
            moved = move_some(&worker, &self.write, bytes)?;
            self.spooled += moved as u64;
            self.gather();
        }
        if moved < bytes && pressed && self.trouble.is_some() {
            let thrown = peeker.discard(&worker, bytes - moved)?;
            self.throw(thrown as u64);
            moved += thrown;
        }
        Ok(moved)
    }

    /// Writes at once what was left to gather: nothing more comes.
    pub(super) fn hurry(&mut self) {
        if matches!(self.state, State::Gathering { .. }) {
            self.lend();
        }
    }

    /// Waits for the thread, if it has the spool.
    pub(super) async fn reply(&mut self) -> Reply {
        self.file.reply().await
    }

    /// Whether the thread has the spool.
    pub(super) fn is_lent(&self) -> bool {
        matches!(self.state, State::Writing { .. })
    }

    /// Whether the file takes nothing.
    pub(super) fn is_in_trouble(&self) -> bool {
        self.trouble.is_some()
    }

    /// Whether everything taken is in the file.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle) && self.spooled == 0
    }

    /// Bytes taken that are not in the file.
    pub(super) fn unwritten(&self) -> u64 {
        self.spooled
    }

    /// When [`Spool::expire`] wants to be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Idle => None,
            State::Gathering { until } => Some(until),
            State::Writing { .. } if self.trouble.is_some() => None,
            State::Writing {
                since,
                relieved: false,
                ..
            } => Some(since + OVERDUE),
            State::Writing { since, .. } => Some(since + PATIENCE),
            State::Resting { until } => Some(until),
        }
    }

    /// Notices a stall, or tries a failed file again.
    pub(super) fn expire(&mut self, now: Instant) {
        match &mut self.state {
            State::Writing {
                since, relieved, ..
            } if !*relieved && now >= *since + OVERDUE => {
                *relieved = true;
                self.file.relieve();
            }
            State::Writing {
                progress, since, ..
            } if now >= *since + PATIENCE => {
                let written = self.file.progress();
                if written != *progress {
                    (*progress, *since) = (written, now);
                } else if self.trouble.is_none() {
                    self.trouble = Some("the disk does not respond".to_owned());
                }
            }
            State::Resting { until } | State::Gathering { until } if now >= *until => self.lend(),
            _ => {}
        }
    }

    /// Takes the thread's reply, and the spool back.
    pub(super) fn returned(&mut self, reply: Reply) -> io::Result<()> {
        self.file.returned(reply.writer);
        self.spooled = reply.unwritten;
        match reply.error {
            None => {
                self.trouble = None;
                self.state = State::Idle;
                // Said now, since nothing more may come.
                if self.lost > 0 && self.say_what_is_lost()? {
                    self.lend();
                }
            }
            Some(error) => self.fail(error.to_string(), error.kind()),
        }
        Ok(())
    }

    fn fail(&mut self, reason: String, kind: io::ErrorKind) {
        self.state = State::Resting {
            until: Instant::now() + RETRY,
        };
        if !self.told.contains(&kind) {
            self.told.push(kind);
            let path = self.file.path().to_owned();
            // Nobody listens while the agent shuts down.
            let _nobody = self.events.send(OutputEvent::LogError {
                path,
                error: reason.clone(),
            });
        }
        self.trouble = Some(reason);
    }

    fn gather(&mut self) {
        if matches!(self.state, State::Idle) && self.spooled > 0 {
            self.state = State::Gathering {
                until: Instant::now() + GATHER,
            };
        }
        if self.spooled >= GATHERED_BYTES {
            self.hurry();
        }
    }

    fn lend(&mut self) {
        if self.spooled == 0 {
            self.state = State::Idle;
            return;
        }
        self.state = State::Writing {
            progress: self.file.progress(),
            since: Instant::now(),
            relieved: false,
        };
        self.file.request(self.spooled);
    }

    fn throw(&mut self, bytes: u64) {
        let what = self.loss();
        self.ledger.add(&what, bytes, 0);
        if self.lost == 0 && bytes > 0 {
            let _nobody = self.events.send(OutputEvent::Dropped {
                stream: self.stream,
                reason: what,
            });
        }
        self.lost += bytes;
    }

    fn loss(&self) -> String {
        let reason = self.trouble.as_deref().unwrap_or("it was too slow");
        format!("from {} ({reason})", self.file.path().display())
    }

    /// Leaves a line in the file where output is missing. Returns false if there is no room for it yet.
    fn say_what_is_lost(&mut self) -> io::Result<bool> {
        if self.lost == 0 {
            return Ok(true);
        }
        let notice = format!(
            "\n[steadfast] {} of output are missing here\n",
            in_bytes(self.lost)
        );
        match rustix::io::write(&self.write, notice.as_bytes()) {
            Ok(written) => {
                self.spooled += written as u64;
                self.lost = 0;
                Ok(true)
            }
            Err(rustix::io::Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Splits a stream's pipes into the worker's and the spool's.
pub(super) fn split(pipes: StreamPipes) -> (OwnedFd, (OwnedFd, OwnedFd)) {
    (pipes.worker, (pipes.spool_read, pipes.spool_write))
}
