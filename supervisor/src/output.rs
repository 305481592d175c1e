// SPDX-License-Identifier: Apache-2.0
//! The workers' output: to log files, to the console, and to whoever looks for step numbers and last lines.
//!
//! One task per stream ([`pump`]) looks at what waits in the worker's pipe without taking it (tee), shows it, and only
//! then moves it (splice) into the stream's spool pipe, from which a thread ([`writers`]) moves it into the file. The
//! keeper holds both pipes, so whatever was not yet written survives this process.
//!
//! Invariants:
//! - OUT-1: a log file holds exactly the bytes that the worker wrote, in order, whenever this process is killed, unless
//!   the file could not take them in time; then it says where and how many are missing.
//! - OUT-2: no worker waits for a console or a disk that accepts nothing for longer than [`console::PATIENCE`] or
//!   [`log_file::PATIENCE`], and then only once per stall.
//! - OUT-3: on the console, lines of two streams never mix within a line.
//! - OUT-4: no system call that can hang (open, write, splice to a file, write to a terminal) runs on the async thread.
//!   That includes a splice into a pipe that another thread is splicing out of: the kernel holds the pipe's lock
//!   while it writes to the file. Hence a spool is touched by one of the two at a time.

mod console;
mod dropped;
mod filtered;
mod inlet;
mod layout;
mod lines;
mod log_file;
mod peek;
mod prefix;
mod pump;
mod reader;
mod spool;
mod tail;
#[cfg(test)]
mod tests;
mod writers;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use regex::bytes::Regex;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use self::console::Console;
pub(crate) use self::console::ConsoleTargets;
use self::dropped::{Ledger, in_bytes};
use self::filtered::Filtered;
use self::layout::Destination;
pub(crate) use self::layout::{error_file, stream_log, worker_dir};
pub(crate) use self::lines::{Assembler, End};
pub(crate) use self::peek::{Peeked, Peeker};
use self::prefix::Prefixes;
use self::pump::{Pump, PumpParts};
use self::tail::Tail;
use self::writers::Writers;
use crate::settings::{LogSettings, Mode};

/// One of a worker's two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum StreamKind {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Which stream of which worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Stream {
    /// Generation of the worker, from 1.
    pub(crate) generation: u64,
    /// Restarts of the job before this generation: names the directory `attempt_<restart_count>`.
    pub(crate) restart_count: u32,
    /// Rank in the whole job.
    pub(crate) rank: u32,
    /// Rank on this node.
    pub(crate) local_rank: u32,
    /// Which of the two streams.
    pub(crate) kind: StreamKind,
}

/// The ends that the agent needs of a stream's two pipes. The keeper holds duplicates of all of them.
#[derive(Debug)]
pub(crate) struct StreamPipes {
    /// Read end of the pipe that the worker writes to.
    pub(crate) worker: OwnedFd,
    /// Read end of the spool pipe. Must be in blocking mode.
    pub(crate) spool_read: OwnedFd,
    /// Write end of the spool pipe. Is put into non-blocking mode.
    pub(crate) spool_write: OwnedFd,
}

/// How output is treated.
#[derive(Debug)]
pub(crate) struct OutputSettings {
    /// What goes where.
    pub(crate) log: LogSettings,
    /// Whose conventions the console follows.
    pub(crate) mode: Mode,
    /// Workers on this node.
    pub(crate) workers: u32,
    /// Role name, for prefixes.
    pub(crate) role: String,
    /// This host's name, for prefixes.
    pub(crate) hostname: String,
    /// The user's own expression for step numbers: the group named `step`, or else the first one.
    pub(crate) progress_regex: Option<Regex>,
}

/// What the agent is told about output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OutputEvent {
    /// A training step number was seen. Sent when it changes, at most once per piece of output that was read.
    Step {
        /// Generation of the worker.
        generation: u64,
        /// Rank of the worker on this node.
        local_rank: u32,
        /// The step.
        step: u64,
    },
    /// A loss was seen. Sent at most once per piece of output that was read: for one that is no number, where there is one.
    Loss {
        /// Generation of the worker.
        generation: u64,
        /// Rank of the worker on this node.
        local_rank: u32,
        /// The last step that was seen.
        step: Option<u64>,
        /// The loss; it may be infinite, or no number.
        loss: f64,
    },
    /// Output had to be dropped. Sent when a stall begins to cost something, not for each line.
    Dropped {
        /// The stream that lost something.
        stream: Stream,
        /// From where and why, in words.
        reason: String,
    },
    /// A log file cannot be written; it is tried again. Sent once per file and kind of error.
    LogError {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: String,
    },
}

/// Whether a generation's output is complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    /// Streams that some process still holds open, or whose output could not be written before the deadline.
    pub(crate) unfinished: Vec<Stream>,
}

/// The last lines of a worker, oldest first, without line ends; bounded in number and length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastLines {
    /// Of standard output.
    pub(crate) stdout: Vec<String>,
    /// Of standard error.
    pub(crate) stderr: Vec<String>,
}

/// Why a stream could not be taken on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    /// The pipes could not be watched.
    #[error("failed to watch the output of local rank {local_rank}")]
    Watch {
        /// The worker.
        local_rank: u32,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The thread that writes a log file or the console could not be started.
    #[error("failed to start the thread that writes {what}")]
    Thread {
        /// What it would have written.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The pipe through which output is looked at, or `/dev/null`, could not be opened.
    #[error("failed to prepare for reading the workers' output")]
    Prepare {
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// The output of all workers of this node. Dropping it abandons whatever was not written yet (it stays in the pipes).
#[derive(Debug)]
pub(crate) struct Outputs {
    settings: OutputSettings,
    prefixes: Prefixes,
    console: Console,
    filtered: Filtered,
    peeker: Arc<Mutex<Peeker>>,
    writers: Arc<Writers>,
    ledger: Arc<Ledger>,
    events: mpsc::UnboundedSender<OutputEvent>,
    /// The highest generation whose end is awaited.
    ending: watch::Sender<u64>,
    streams: BTreeMap<Stream, Attached>,
}

#[derive(Debug)]
struct Attached {
    tail: Arc<Mutex<Tail>>,
    finished: watch::Receiver<bool>,
    /// The log file, and how many of the worker's bytes are not in it.
    log: Option<PathBuf>,
    unwritten: Arc<AtomicU64>,
    task: AbortHandle,
}

impl Outputs {
    /// Starts the console's threads. Must be called within a tokio runtime with I/O and time enabled.
    pub(crate) fn new(
        settings: OutputSettings,
        targets: ConsoleTargets,
        events: mpsc::UnboundedSender<OutputEvent>,
    ) -> Result<Self, OutputError> {
        let ledger = Arc::new(Ledger::default());
        let peeker = Peeker::new().map_err(|source| OutputError::Prepare { source })?;
        let writers = Writers::start().map_err(|source| OutputError::Thread {
            what: "log files".to_owned(),
            source,
        })?;
        Ok(Self {
            prefixes: Prefixes::new(&settings),
            console: Console::start(targets, &ledger)?,
            filtered: Filtered::new(&settings.log),
            peeker: Arc::new(Mutex::new(peeker)),
            writers: Arc::new(writers),
            ledger,
            events,
            ending: watch::Sender::new(0),
            streams: BTreeMap::new(),
            settings,
        })
    }

    /// Takes on a stream. What waits in its spool from before goes to the log file first.
    ///
    /// Attaching the same stream again (with duplicates of the same pipes) is for a new process, after the one that had
    /// it is gone.
    pub(crate) fn attach(&mut self, stream: Stream, pipes: StreamPipes) -> Result<(), OutputError> {
        let destination = Destination::of(&self.settings, stream);
        let tail = Arc::new(Mutex::new(Tail::default()));
        let (finished_sender, finished) = watch::channel(false);
        let log = destination
            .file
            .then(|| stream_log(&self.settings.log.run_dir, stream));
        let unwritten = Arc::new(AtomicU64::new(0));
        let pump = Pump::new(PumpParts {
            stream,
            pipes,
            log: log.clone(),
            console: destination
                .console
                .map(|style| self.console.line(stream, style, self.prefixes.of(stream))),
            filtered: self.filtered.open(
                &self.settings.log.run_dir,
                stream,
                self.prefixes.of(stream),
                &self.ledger,
            )?,
            progress_regex: self.settings.progress_regex.clone(),
            peeker: Arc::clone(&self.peeker),
            writers: Arc::clone(&self.writers),
            ledger: Arc::clone(&self.ledger),
            events: self.events.clone(),
            tail: Arc::clone(&tail),
            unwritten: Arc::clone(&unwritten),
            ending: self.ending.subscribe(),
        })?;
        let task = tokio::spawn(async move {
            pump.run().await;
            finished_sender.send_replace(true);
        });
        let attached = Attached {
            tail,
            finished,
            log,
            unwritten,
            task: task.abort_handle(),
        };
        if let Some(old) = self.streams.insert(stream, attached) {
            old.task.abort();
        }
        Ok(())
    }

    /// Waits until every stream of `generation` is at its end and everything is written, or until `deadline`. The future
    /// borrows nothing: the caller can go on with other things meanwhile.
    ///
    /// A process that a worker left behind may hold a pipe open for ever: that is what the deadline is for.
    pub(crate) fn drained(
        &self,
        generation: u64,
        deadline: Instant,
    ) -> impl Future<Output = Drained> + Send + use<> {
        self.ending.send_if_modified(|ending| {
            let later = generation > *ending;
            *ending = generation.max(*ending);
            later
        });
        let streams: Vec<_> = self
            .streams
            .iter()
            .filter(|(stream, _)| stream.generation == generation)
            .map(|(stream, attached)| (*stream, attached.finished.clone()))
            .collect();
        async move {
            let mut unfinished = Vec::new();
            for (stream, mut finished) in streams {
                // A closed channel means that the task is gone: the stream is not finished, and never will be.
                let waited =
                    tokio::time::timeout_at(deadline, finished.wait_for(|finished| *finished))
                        .await;
                if !matches!(waited, Ok(Ok(_))) {
                    unfinished.push(stream);
                }
            }
            Drained { unfinished }
        }
    }

    /// The last lines of a worker, among them the last one without a line end.
    pub(crate) fn tail(&self, generation: u64, local_rank: u32) -> LastLines {
        let mut last = LastLines::default();
        for (stream, attached) in &self.streams {
            if stream.generation == generation && stream.local_rank == local_rank {
                let lines = lock(&attached.tail).lines();
                match stream.kind {
                    StreamKind::Stdout => last.stdout = lines,
                    StreamKind::Stderr => last.stderr = lines,
                }
            }
        }
        last
    }

    /// What could not be shown or written, by cause, in words; empty when nothing was dropped. At the end of a job, what
    /// still waits for a log file belongs to it.
    pub(crate) fn dropped(&self) -> Vec<String> {
        let mut words = self.ledger.in_words();
        for attached in self.streams.values() {
            let bytes = attached.unwritten.load(Ordering::Relaxed);
            if let Some(path) = attached.log.as_ref().filter(|_| bytes > 0) {
                words.push(format!(
                    "{} not yet written to {}",
                    in_bytes(bytes),
                    path.display()
                ));
            }
        }
        words
    }

    /// Writes a line of the supervisor's own to standard error, between the workers' lines. Never waits.
    pub(crate) fn say(&self, line: &str) {
        self.console.say(line);
    }

    /// Waits until what was said and shown so far has reached the console, or until `deadline`.
    pub(crate) async fn shown(&self, deadline: Instant) {
        self.console.flushed(deadline).await;
    }

    /// Lets go of the streams and last lines of `generation` and of those before it, finished or not.
    pub(crate) fn forget(&mut self, generation: u64) {
        let kept = self.streams.split_off(&Stream {
            generation: generation + 1,
            restart_count: 0,
            rank: 0,
            local_rank: 0,
            kind: StreamKind::Stdout,
        });
        for attached in std::mem::replace(&mut self.streams, kept).into_values() {
            attached.task.abort();
            let bytes = attached.unwritten.load(Ordering::Relaxed);
            if let Some(path) = &attached.log {
                self.ledger
                    .add(&format!("from {} (given up)", path.display()), bytes, 0);
            }
        }
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        for attached in self.streams.values() {
            attached.task.abort();
        }
    }
}

impl StreamKind {
    /// `stdout` or `stderr`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Locks, and goes on with what is there if a thread panicked while it held the lock: output is never worth an abort.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
