// SPDX-License-Identifier: Apache-2.0
//! The kernel log, read by a thread of its own.
//!
//! Every agent reads it from its oldest record, so that a new one knows what its predecessors knew. How far they had got
//! is kept in a small file beside the control socket: what was told to the user is not told again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, io};

use serde::{Deserialize, Serialize};
use steadfast_health::incidents::{Reporter, Sighting};
use steadfast_health::kernel_log::{FollowError, Follower, KernelLog, Line, Next, Stamp};
use tokio::sync::mpsc;

use crate::clock;
use crate::settings::{KernelLogSource, Settings};

/// The log of the kernel itself.
const DEVICE: &str = "/dev/kmsg";
/// Events that may wait for the dispatcher. Beyond that the thread waits, and the kernel's own buffer fills.
const QUEUE: usize = 1024;
/// How long the log is silent before the place in it is noted.
const SILENCE: Duration = Duration::from_millis(200);
/// How long the thread waits at most for the next line.
const PATIENCE: Duration = Duration::from_mins(1);

/// What the thread tells.
#[derive(Debug)]
pub(super) enum FromKernelLog {
    /// The log can be read.
    Opened(PathBuf),
    /// It cannot, or no longer.
    Failed(PathBuf, FollowError),
    /// It says something.
    Seen {
        /// What, and when.
        sighting: Box<Sighting>,
        /// Where, to be handed back once everything that follows from it is done.
        place: Place,
        /// Whether an earlier agent has told the user.
        told: bool,
    },
    /// Some records were overwritten before they could be read.
    Gap(Option<u64>),
    /// A program wrote a line that would mean something if it came from the kernel.
    Injected(String),
    /// Everything that was there at the start has been told.
    CaughtUp,
}

/// A place in the log.
#[derive(Debug)]
pub(super) struct Place {
    position: Option<u64>,
    done: Arc<AtomicU64>,
}

/// How far the log was dealt with, as it is kept for the next agent. Numbers begin anew with each start of the machine.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Bookmark {
    boot_id: String,
    log: PathBuf,
    position: u64,
}

impl Place {
    /// Everything that follows from what stands there is done.
    pub(super) fn done(self) {
        if let Some(position) = self.position {
            self.done.fetch_max(position, Ordering::Relaxed);
        }
    }
}

/// Starts to read the log, if there is to be one. `runtime_dir` holds the bookmark.
///
/// # Errors
///
/// When no thread can be started. A log that cannot be read is told over the channel.
pub(super) fn start(
    settings: &Settings,
    runtime_dir: &Path,
) -> io::Result<mpsc::Receiver<FromKernelLog>> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let path = match &settings.kernel_log {
        KernelLogSource::Off => return Ok(receiver),
        KernelLogSource::Auto => PathBuf::from(DEVICE),
        KernelLogSource::Path(path) => path.clone(),
    };
    let reader = Reader {
        bookmark: Bookmark::read(&runtime_dir.join("kernel-log.json"), &path),
        file: runtime_dir.join("kernel-log.json"),
        trusts_anyone: settings.kernel_log_trusts_anyone,
        log: KernelLog::new(),
        done: Arc::default(),
        sender,
        path,
    };
    std::thread::Builder::new()
        .name("kernel-log".to_owned())
        .stack_size(256 * 1024)
        .spawn(move || {
            // The receiver goes when the agent does.
            let _agent_is_gone = reader.read();
        })?;
    Ok(receiver)
}

struct Reader {
    path: PathBuf,
    file: PathBuf,
    bookmark: Bookmark,
    trusts_anyone: bool,
    log: KernelLog,
    done: Arc<AtomicU64>,
    sender: mpsc::Sender<FromKernelLog>,
}

/// The dispatcher does not listen any more.
struct Gone;

impl Reader {
    fn read(mut self) -> Result<(), Gone> {
        let mut follower = match Follower::open(&self.path, clock::monotonic_ns) {
            Ok(follower) => follower,
            Err(error) => return self.tell(FromKernelLog::Failed(self.path.clone(), error)),
        };
        self.tell(FromKernelLog::Opened(self.path.clone()))?;
        let mut caught_up = false;
        loop {
            let noted = self.bookmark.position >= self.done.load(Ordering::Relaxed);
            let patience = if caught_up && noted {
                PATIENCE
            } else {
                SILENCE
            };
            match follower.next(patience) {
                Ok(Next::Line(line)) => self.line(&line)?,
                Ok(Next::Gap { lost }) => self.tell(FromKernelLog::Gap(lost))?,
                Ok(Next::Nothing) if !caught_up => {
                    caught_up = true;
                    self.tell(FromKernelLog::CaughtUp)?;
                }
                Ok(Next::Nothing) => self.set_bookmark(),
                Err(error) => return self.tell(FromKernelLog::Failed(self.path.clone(), error)),
            }
        }
    }

    fn line(&mut self, line: &Line) -> Result<(), Gone> {
        let Some(event) = self.log.push(&line.bytes) else {
            return Ok(());
        };
        if event.header.injected() && !self.trusts_anyone {
            return self.tell(FromKernelLog::Injected(event.title()));
        }
        let stamp = match event.header.stamp {
            Some(Stamp::SinceBoot(time)) => Some(time),
            _ => None,
        };
        let position = line.position;
        self.tell(FromKernelLog::Seen {
            sighting: Box::new(Sighting {
                at_ns: line.logged_ns(stamp),
                event,
                reporter: Reporter::KernelLog,
            }),
            place: Place {
                position,
                done: Arc::clone(&self.done),
            },
            told: position.is_some_and(|position| position <= self.bookmark.position),
        })
    }

    fn tell(&self, news: FromKernelLog) -> Result<(), Gone> {
        self.sender.blocking_send(news).map_err(|_| Gone)
    }

    fn set_bookmark(&mut self) {
        let position = self.done.load(Ordering::Relaxed);
        if position > self.bookmark.position {
            self.bookmark.position = position;
            // Without it the next agent repeats itself, which is the lesser evil.
            let _repeats_itself = self.bookmark.write(&self.file);
        }
    }
}

impl Bookmark {
    /// What an earlier agent of this job has left, if that was about the same log since the same start of the machine.
    fn read(file: &Path, log: &Path) -> Self {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let fresh = Self {
            boot_id: boot_id.trim().to_owned(),
            log: log.to_owned(),
            position: 0,
        };
        let left: Option<Self> = fs::read(file)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        left.filter(|left| left.boot_id == fresh.boot_id && left.log == fresh.log)
            .unwrap_or(fresh)
    }

    fn write(&self, file: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        let new = file.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(new, file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bookmark_counts_for_its_own_log_and_boot_only() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kernel-log.json");
        let log = Path::new("/dev/kmsg");
        let mut bookmark = Bookmark::read(&file, log);
        assert_eq!(bookmark.position, 0);
        bookmark.position = 41;
        bookmark.write(&file).unwrap();
        assert_eq!(Bookmark::read(&file, log), bookmark);
        assert_eq!(Bookmark::read(&file, Path::new("/other")).position, 0);
        bookmark.boot_id = "another".to_owned();
        bookmark.write(&file).unwrap();
        assert_eq!(Bookmark::read(&file, log).position, 0);
        fs::write(&file, "{").unwrap();
        assert_eq!(Bookmark::read(&file, log).position, 0);
    }
}
