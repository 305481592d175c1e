// SPDX-License-Identifier: Apache-2.0
//! A client's end of the socket: the kernel log, as far as the service lets this user see it.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use steadfast_health::kernel_log::{Line, Next};
use steadfast_health::nvml::Report;

use super::protocol::{Hello, LONGEST_MESSAGE, Message, VERSION};
use crate::clock;

/// How long the service may take to begin.
const PATIENCE: Duration = Duration::from_secs(5);

/// A line to the service.
#[derive(Debug)]
pub(crate) struct ServiceLog {
    stream: UnixStream,
    bytes: Vec<u8>,
    log: PathBuf,
    sees: String,
    caught_up: bool,
}

/// What the service says.
#[derive(Debug)]
pub(crate) enum ServiceNews {
    /// Of the kernel log.
    Log(Next),
    /// Of the GPUs.
    Nvml(Report),
    /// That it has nothing to say of the GPUs, and why.
    NoNvml(String),
}

/// Why the service cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    /// Nobody listens.
    #[error("cannot reach the node service at {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Somebody who is neither root nor this user listens there.
    #[error("the node service at {} runs as user {uid}, and is not trusted", path.display())]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// Who.
        uid: u32,
    },
    /// The line broke.
    #[error("the line to the node service broke")]
    Line(#[source] io::Error),
    /// The service has ended, or has closed the line.
    #[error("the node service is gone")]
    Gone,
    /// It says something that is not understood.
    #[error("the node service speaks another language")]
    Language,
    /// It refuses to serve.
    #[error("the node service refuses: {0}")]
    Refused(String),
    /// It cannot read the log itself.
    #[error("the node service cannot read the kernel log: {0}")]
    Failed(String),
}

impl ServiceLog {
    /// Connects, and waits for the welcome.
    pub(crate) fn connect(path: &Path) -> Result<ServiceLog, ServiceError> {
        let failed = |source| ServiceError::Connect {
            path: path.to_owned(),
            source,
        };
        let stream = UnixStream::connect(path).map_err(failed)?;
        let peer = getsockopt(&stream, PeerCredentials).map_err(|error| failed(error.into()))?;
        if peer.uid() != 0 && peer.uid() != nix::unistd::geteuid().as_raw() {
            return Err(ServiceError::Stranger {
                path: path.to_owned(),
                uid: peer.uid(),
            });
        }
        stream
            .set_write_timeout(Some(PATIENCE))
            .map_err(ServiceError::Line)?;
        let mut hello =
            serde_json::to_vec(&Hello { version: VERSION }).map_err(|_| ServiceError::Language)?;
        hello.push(b'\n');
        (&stream).write_all(&hello).map_err(ServiceError::Line)?;
        let mut log = ServiceLog {
            stream,
            bytes: Vec::new(),
            log: PathBuf::new(),
            sees: String::new(),
            caught_up: false,
        };
        match log.message(PATIENCE)? {
            Some(Message::Welcome {
                log: path, sees, ..
            }) => {
                log.log = path.into();
                log.sees = sees;
                Ok(log)
            }
            Some(Message::Refused { reason }) => Err(ServiceError::Refused(reason)),
            Some(_) => Err(ServiceError::Language),
            None => Err(ServiceError::Line(io::ErrorKind::TimedOut.into())),
        }
    }

    /// The log that the service reads, which positions are places in.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// What this user gets to see, in words.
    pub(crate) fn sees(&self) -> &str {
        &self.sees
    }

    /// Waits for what the service says next, at most for `patience`; in the beginning until it has said all that there was.
    pub(crate) fn next(&mut self, patience: Duration) -> Result<ServiceNews, ServiceError> {
        let patience = if self.caught_up {
            patience
        } else {
            patience.max(PATIENCE)
        };
        loop {
            let Some(message) = self.message(patience)? else {
                return Ok(ServiceNews::Log(Next::Nothing));
            };
            return match message {
                Message::CaughtUp => {
                    self.caught_up = true;
                    Ok(ServiceNews::Log(Next::Nothing))
                }
                Message::Line(line) => Ok(ServiceNews::Log(Next::Line(Line {
                    bytes: line.text.into_bytes(),
                    position: line.position,
                    read_ns: line.read_ns,
                    after_ns: line.after_ns,
                }))),
                Message::Gap { lost } => Ok(ServiceNews::Log(Next::Gap { lost })),
                Message::Nvml(report) => Ok(ServiceNews::Nvml(report)),
                Message::NoNvml { reason } => Ok(ServiceNews::NoNvml(reason)),
                Message::Failed { reason } => Err(ServiceError::Failed(reason)),
                Message::Refused { reason } => Err(ServiceError::Refused(reason)),
                Message::Welcome { .. } => continue,
            };
        }
    }

    fn message(&mut self, patience: Duration) -> Result<Option<Message>, ServiceError> {
        let wait = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let deadline = clock::monotonic_ns().saturating_add(wait);
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.bytes) {
                let line: Vec<u8> = self.bytes.drain(..=end).collect();
                let message = serde_json::from_slice(&line).map_err(|_| ServiceError::Language)?;
                return Ok(Some(message));
            }
            if self.bytes.len() > LONGEST_MESSAGE {
                return Err(ServiceError::Language);
            }
            let left = Duration::from_nanos(deadline.saturating_sub(clock::monotonic_ns()));
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut ready = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, left) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(nix::errno::Errno::EINTR) => continue,
                Err(error) => return Err(ServiceError::Line(error.into())),
            }
            let mut part = [0; 8192];
            match self.stream.read(&mut part) {
                Ok(0) => return Err(ServiceError::Gone),
                Ok(length) => self
                    .bytes
                    .extend_from_slice(part.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ServiceError::Line(error)),
            }
        }
    }
}
