// SPDX-License-Identifier: Apache-2.0
//! The console: two threads that write, and the order in which the streams' lines reach them.

mod feed;
mod screen;
mod sink;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::fstat;
use tokio::time::Instant;

pub(super) use self::feed::{Feed, Lost};
use self::sink::Sink;
use super::dropped::Ledger;
use super::layout::ConsoleStyle;
use super::{OutputError, Stream, StreamKind};

/// A console that accepts nothing for this long counts as stalled.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);

/// Where the console's two streams lead.
#[derive(Debug)]
pub(crate) struct ConsoleTargets {
    /// Gets the workers' standard output.
    pub(crate) stdout: OwnedFd,
    /// Gets the workers' standard error and the supervisor's own messages.
    pub(crate) stderr: OwnedFd,
}

impl ConsoleTargets {
    /// This process's own standard output and standard error.
    ///
    /// # Errors
    ///
    /// When one of them is closed.
    pub(crate) fn inherited() -> io::Result<Self> {
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        let stderr = io::stderr().as_fd().try_clone_to_owned()?;
        Ok(Self { stdout, stderr })
    }
}

/// The console as all streams see it.
#[derive(Debug)]
pub(super) struct Console {
    stdout: Arc<Sink>,
    stderr: Arc<Sink>,
}

impl Console {
    /// Starts the threads: one if both streams lead to the same place, so that lines do not mix there either.
    pub(super) fn start(
        targets: ConsoleTargets,
        ledger: &Arc<Ledger>,
    ) -> Result<Self, OutputError> {
        let same = match (fstat(&targets.stdout), fstat(&targets.stderr)) {
            (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
            _ => false,
        };
        let stderr = Arc::new(Sink::start(
            "standard error",
            targets.stderr,
            Arc::clone(ledger),
        )?);
        let stdout = if same {
            Arc::clone(&stderr)
        } else {
            Arc::new(Sink::start(
                "standard output",
                targets.stdout,
                Arc::clone(ledger),
            )?)
        };
        Ok(Self { stdout, stderr })
    }

    /// The way to the console for one stream.
    pub(super) fn line(&self, stream: Stream, style: ConsoleStyle, prefix: String) -> Feed {
        let sink = match stream.kind {
            StreamKind::Stdout => &self.stdout,
            StreamKind::Stderr => &self.stderr,
        };
        Feed::new(Arc::clone(sink), stream, style, prefix)
    }

    /// Queues a line of the supervisor's own.
    pub(super) fn say(&self, line: &str) {
        self.stderr.say(line);
    }

    /// Waits until everything queued is written, or until `deadline`.
    pub(super) async fn flushed(&self, deadline: Instant) {
        for sink in [&self.stdout, &self.stderr] {
            // Late is as good as never here.
            let _late = tokio::time::timeout_at(deadline, sink.flushed()).await;
        }
    }
}
