// SPDX-License-Identifier: Apache-2.0
//! The kernel log, read by a thread of its own: from the node service where there is one, else from the log itself.
//!
//! Every agent reads it from its oldest record, so that a new one knows what its predecessors knew. How far they had got
//! is kept in a small file beside the control socket: what was told to the user is not told again.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, io};

use serde::{Deserialize, Serialize};
use steadfast_health::incidents::{Reporter, Sighting};
use steadfast_health::kernel_log::{FollowError, Follower, KernelLog, Line, Next, Stamp};
use steadfast_health::nvml::Report;
use tokio::sync::mpsc;

use crate::clock;
use crate::health_service::{ServiceError, ServiceLog, ServiceNews, USUAL_SOCKET};
use crate::settings::{KernelLogSource, Settings};

/// The log of the kernel itself.
const DEVICE: &str = "/dev/kmsg";
/// Events that may wait for the dispatcher. Beyond that the thread waits, and the kernel's own buffer fills.
const QUEUE: usize = 1024;
/// How long the log is silent before the place in it is noted.
const SILENCE: Duration = Duration::from_millis(200);
/// How long the thread waits at most for the next line.
const PATIENCE: Duration = Duration::from_mins(1);
/// Between two looks for a node service that is not there, or not any more.
const PAUSE: Duration = Duration::from_secs(2);

/// What the thread tells.
#[derive(Debug)]
pub(super) enum FromKernelLog {
    /// The log can be read.
    Opened(PathBuf),
    /// It cannot, or no longer.
    Failed(PathBuf, LogError),
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
    /// What the node service says of the GPUs.
    Nvml(Report),
    /// The node service has nothing to say of them (any more).
    NoNvml(String),
}

/// Why nothing more comes.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogError {
    /// The log itself cannot be read.
    #[error(transparent)]
    Follow(FollowError),
    /// The node service is of no use.
    #[error(transparent)]
    Service(ServiceError),
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
    let source = match &settings.kernel_log {
        KernelLogSource::Off => return Ok(receiver),
        KernelLogSource::Auto => Wanted::Auto,
        KernelLogSource::Path(path) if is_socket(path) => Wanted::Service(path.clone()),
        KernelLogSource::Path(path) => Wanted::Log(path.clone()),
    };
    let reader = Reader {
        source,
        bookmark: Bookmark::default(),
        file: runtime_dir.join("kernel-log.json"),
        trusts_anyone: settings.kernel_log_trusts_anyone,
        log: KernelLog::new(),
        last: None,
        known_until: None,
        caught_up: false,
        newest_told: 0,
        done: Arc::default(),
        sender,
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
    source: Wanted,
    file: PathBuf,
    bookmark: Bookmark,
    trusts_anyone: bool,
    log: KernelLog,
    /// The place of the newest line, and the log that it is a place in.
    last: Option<(PathBuf, u64)>,
    /// Up to here the log was read from another source; absent once that is behind.
    known_until: Option<u64>,
    caught_up: bool,
    /// The newest place that was told.
    newest_told: u64,
    done: Arc<AtomicU64>,
    sender: mpsc::Sender<FromKernelLog>,
}

/// What is to be read.
#[derive(Debug)]
enum Wanted {
    /// The node service, or the kernel's own log where there is none.
    Auto,
    /// The node service at this socket.
    Service(PathBuf),
    /// A log.
    Log(PathBuf),
}

/// What is read.
enum Source {
    Service(Box<ServiceLog>),
    Log(Follower),
}

impl Source {
    fn next(&mut self, patience: Duration) -> Result<ServiceNews, LogError> {
        match self {
            Self::Service(service) => service.next(patience).map_err(LogError::Service),
            Self::Log(follower) => follower
                .next(patience)
                .map(ServiceNews::Log)
                .map_err(LogError::Follow),
        }
    }
}

/// The dispatcher does not listen any more.
struct Gone;

impl Reader {
    fn read(mut self) -> Result<(), Gone> {
        let mut told = false;
        loop {
            let (path, error) = match self.open() {
                Ok((path, source)) => {
                    told = false;
                    let error = self.follow(path.clone(), source)?;
                    (path, error)
                }
                Err(failed) => failed,
            };
            let may_come = !matches!(self.source, Wanted::Log(_));
            if !told {
                told = true;
                self.tell(FromKernelLog::Failed(path, error))?;
            }
            if !may_come {
                return Ok(());
            }
            std::thread::park_timeout(PAUSE);
            if self.sender.is_closed() {
                return Err(Gone);
            }
        }
    }

    /// Opens what is wanted. An error comes with the name of what could not be opened.
    fn open(&mut self) -> Result<(PathBuf, Source), (PathBuf, LogError)> {
        let (path, source) = match &self.source {
            Wanted::Service(socket) => (socket.clone(), Self::service(socket)?),
            Wanted::Log(path) => (path.clone(), Self::log(path)?),
            Wanted::Auto => {
                let socket = Path::new(USUAL_SOCKET);
                match Self::service(socket) {
                    Ok(source) => (socket.to_owned(), source),
                    // Most nodes have none: then it is the log that is missed.
                    Err(_) => (PathBuf::from(DEVICE), Self::log(Path::new(DEVICE))?),
                }
            }
        };
        // Places are those of the log, whoever reads it.
        let log = match &source {
            Source::Service(service) => service.log(),
            Source::Log(_) => path.as_path(),
        };
        let last = self.last.as_ref().filter(|(known, _)| known == log);
        self.known_until = last.map(|(_, position)| *position);
        if self.bookmark.log != log {
            self.bookmark = Bookmark::read(&self.file, log);
        }
        Ok((path, source))
    }

    fn service(socket: &Path) -> Result<Source, (PathBuf, LogError)> {
        ServiceLog::connect(socket)
            .map(|service| Source::Service(Box::new(service)))
            .map_err(|error| (socket.to_owned(), LogError::Service(error)))
    }

    fn log(path: &Path) -> Result<Source, (PathBuf, LogError)> {
        Follower::open(path, clock::monotonic_ns)
            .map(Source::Log)
            .map_err(|error| (path.to_owned(), LogError::Follow(error)))
    }

    /// Reads until that is not possible any more, and returns why.
    fn follow(&mut self, path: PathBuf, mut source: Source) -> Result<LogError, Gone> {
        self.tell(FromKernelLog::Opened(path))?;
        loop {
            // What was told is noted when the dispatcher has done all that follows from it.
            let noted = self.bookmark.position >= self.newest_told;
            let patience = if self.caught_up && noted {
                PATIENCE
            } else {
                SILENCE
            };
            match source.next(patience) {
                Ok(ServiceNews::Log(Next::Line(line))) if self.is_known(&line) => {}
                Ok(ServiceNews::Log(Next::Line(line))) => self.line(&line)?,
                Ok(ServiceNews::Log(Next::Gap { lost })) => self.tell(FromKernelLog::Gap(lost))?,
                Ok(ServiceNews::Log(Next::Nothing)) => {
                    self.known_until = None;
                    self.silence()?;
                }
                Ok(ServiceNews::Nvml(report)) => self.tell(FromKernelLog::Nvml(report))?,
                Ok(ServiceNews::NoNvml(reason)) => self.tell(FromKernelLog::NoNvml(reason))?,
                Err(error) => return Ok(error),
            }
        }
    }

    fn silence(&mut self) -> Result<(), Gone> {
        if self.caught_up {
            self.set_bookmark();
            return Ok(());
        }
        self.caught_up = true;
        self.tell(FromKernelLog::CaughtUp)
    }

    /// Whether it was read already, from another source of the same log.
    fn is_known(&mut self, line: &Line) -> bool {
        let Some(position) = line.position else {
            return false;
        };
        let known = self.known_until.is_some_and(|until| position <= until);
        if !known {
            self.last = Some((self.bookmark.log.clone(), position));
        }
        known
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
        self.newest_told = position.unwrap_or(0).max(self.newest_told);
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

/// Whether a node service may be heard.
pub(super) fn may_be_served(settings: &Settings) -> bool {
    match &settings.kernel_log {
        KernelLogSource::Off => false,
        KernelLogSource::Auto => is_socket(Path::new(USUAL_SOCKET)),
        KernelLogSource::Path(path) => is_socket(path),
    }
}

fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
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
