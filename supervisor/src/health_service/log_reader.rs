// SPDX-License-Identifier: Apache-2.0
//! The thread that reads the kernel log for all clients.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use steadfast_health::kernel_log::{Event, Follower, KernelLog, Next};
use tokio::sync::mpsc;

use super::access::process_uid;
use super::protocol::LogLine;
use crate::clock;

/// How long the thread waits at most for the next line.
const PATIENCE: Duration = Duration::from_mins(1);
/// Until the log is silent for as long as this, what comes was there before.
const SILENCE: Duration = Duration::from_millis(50);
/// News that may wait for the server.
const QUEUE: usize = 1024;

/// What the thread tells.
#[derive(Debug)]
pub(super) enum FromLog {
    /// A line that means something.
    Line(Arc<Item>),
    /// Records were overwritten before they could be read.
    Gap(Option<u64>),
    /// What was there at the beginning has been read.
    CaughtUp,
    /// The log cannot be read (any more).
    Failed(String),
}

/// A line, and what decides who sees it.
#[derive(Debug)]
pub(super) struct Item {
    /// The line.
    pub(super) line: LogLine,
    /// What it says.
    pub(super) event: Event,
    /// Whose the process is that it names.
    pub(super) process_uid: Option<u32>,
}

/// Starts to read.
///
/// # Errors
///
/// When no thread can be started.
pub(super) fn start(path: PathBuf) -> io::Result<mpsc::Receiver<FromLog>> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    std::thread::Builder::new()
        .name("kernel-log".to_owned())
        .spawn(move || {
            if let Err(reason) = read(&path, &sender) {
                // The receiver goes when the service ends.
                let _service_is_gone = sender.blocking_send(FromLog::Failed(reason));
            }
        })?;
    Ok(receiver)
}

/// Returns when the service has ended; an error is why the log cannot be read.
fn read(path: &Path, sender: &mpsc::Sender<FromLog>) -> Result<(), String> {
    let in_words = |error: &dyn std::error::Error| match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    let mut follower =
        Follower::open(path, clock::monotonic_ns).map_err(|error| in_words(&error))?;
    let mut log = KernelLog::new();
    let mut caught_up = false;
    loop {
        let patience = if caught_up { PATIENCE } else { SILENCE };
        let news = match follower.next(patience).map_err(|error| in_words(&error))? {
            Next::Line(line) => log.push(&line.bytes).map(|event| {
                FromLog::Line(Arc::new(Item {
                    process_uid: process_uid(&event),
                    event,
                    line: LogLine {
                        text: String::from_utf8_lossy(&line.bytes).into_owned(),
                        position: line.position,
                        read_ns: line.read_ns,
                        after_ns: line.after_ns,
                    },
                }))
            }),
            Next::Gap { lost } => Some(FromLog::Gap(lost)),
            Next::Nothing if !caught_up => {
                caught_up = true;
                Some(FromLog::CaughtUp)
            }
            Next::Nothing => None,
        };
        if let Some(news) = news
            && sender.blocking_send(news).is_err()
        {
            return Ok(());
        }
    }
}
