// SPDX-License-Identifier: Apache-2.0
//! What NCCL says of itself: every process that uses it answers questions about the whole job (its RAS subsystem, NCCL 2.24
//! and later), on a port that all processes of a node share.
//!
//! A question may land on a process that hangs, so each try is short, and another one lands elsewhere. Nobody proves who he
//! is on that port: it is asked on this machine alone, and the answer is evidence, no more.

mod report;
mod text;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

pub use report::{RasPeer, RasProblem, RasReport};

/// Where NCCL answers unless `NCCL_RAS_ADDR` says otherwise.
pub const DEFAULT_ADDRESS: &str = "localhost:28028";

/// The protocol that is spoken here. Servers of another version answer with theirs and understand the same commands.
const PROTOCOL: u32 = 2;
/// How long one process is waited for until it says its first word, and how often another one is tried.
const FIRST_WORD_WITHIN: Duration = Duration::from_millis(400);
const TRIES: u32 = 4;
/// An answer is no larger.
const LARGEST_ANSWER: u64 = 8 * 1024 * 1024;
/// Nor is a line in which a command is confirmed.
const LONGEST_LINE: usize = 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum RasError {
    /// The address means nothing.
    #[error("failed to find {address}")]
    Address {
        /// As it was given.
        address: String,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// Nobody listens there: no process uses NCCL, or its RAS is off.
    #[error("nothing answers at {address}")]
    Nobody {
        /// As it was given.
        address: String,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// The connection broke, or took too long.
    #[error("failed to {doing}")]
    Broken {
        /// What was being done.
        doing: &'static str,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// Somebody answers who is not NCCL.
    #[error("the answer `{0}` is not NCCL's")]
    Stranger(String),
}

/// Asks for the state of the whole job, for at most so long.
///
/// # Errors
///
/// [`RasError`].
pub fn ask(address: &str, within: Duration) -> Result<RasReport, RasError> {
    let deadline = Instant::now() + within;
    let resolved: Vec<SocketAddr> = address
        .to_socket_addrs()
        .map_err(|source| RasError::Address {
            address: address.to_owned(),
            source,
        })?
        .collect();
    let mut last = RasError::Nobody {
        address: address.to_owned(),
        source: io::Error::from(io::ErrorKind::AddrNotAvailable),
    };
    for _ in 0..TRIES {
        for place in &resolved {
            if Instant::now() >= deadline {
                return Err(last);
            }
            match converse(place, deadline) {
                Ok(report) => return Ok(report),
                Err(RasError::Nobody { source, .. }) => {
                    last = RasError::Nobody {
                        address: address.to_owned(),
                        source,
                    };
                }
                Err(stranger @ RasError::Stranger(_)) => return Err(stranger),
                Err(other) => last = other,
            }
        }
        if matches!(last, RasError::Nobody { .. }) {
            return Err(last);
        }
    }
    Err(last)
}

fn converse(place: &SocketAddr, deadline: Instant) -> Result<RasReport, RasError> {
    let stream = TcpStream::connect_timeout(place, FIRST_WORD_WITHIN).map_err(|source| {
        RasError::Nobody {
            address: place.to_string(),
            source,
        }
    })?;
    let mut line = Line { stream, deadline };
    let hello = line.command(&format!("CLIENT PROTOCOL {PROTOCOL}"), FIRST_WORD_WITHIN)?;
    if !hello.to_ascii_uppercase().starts_with("SERVER PROTOCOL") {
        return Err(RasError::Stranger(hello));
    }
    // How long it may itself wait for other processes; older versions do not know the command, which does no harm.
    let left = deadline.saturating_duration_since(Instant::now());
    let seconds = left.as_secs().max(1);
    line.command(&format!("TIMEOUT {seconds}"), FIRST_WORD_WITHIN)?;
    let format = line.command("SET FORMAT json", FIRST_WORD_WITHIN)?;
    let is_json = format.eq_ignore_ascii_case("OK");
    line.send("VERBOSE STATUS")?;
    let answer = line.rest()?;
    Ok(RasReport::read(&answer, is_json))
}

/// A conversation that ends in time.
struct Line {
    stream: TcpStream,
    deadline: Instant,
}

impl Line {
    fn send(&mut self, command: &str) -> Result<(), RasError> {
        let sent = self.stream.write_all(format!("{command}\n").as_bytes());
        sent.map_err(|source| RasError::Broken {
            doing: "send a command to NCCL",
            source,
        })
    }

    /// Sends a command, and returns the line with which it is answered.
    fn command(&mut self, command: &str, within: Duration) -> Result<String, RasError> {
        self.send(command)?;
        let until = self.deadline.min(Instant::now() + within);
        let mut line = Vec::new();
        while line.len() < LONGEST_LINE {
            let mut byte = [0];
            if self.read(&mut byte, until)? == 0 || byte[0] == b'\n' {
                break;
            }
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line).trim().to_owned())
    }

    /// Everything until the other end closes.
    fn rest(&mut self) -> Result<String, RasError> {
        let mut answer = Vec::new();
        let mut piece = vec![0; 16 * 1024];
        loop {
            let length = self.read(&mut piece, self.deadline)?;
            answer.extend_from_slice(&piece[..length]);
            let is_full = u64::try_from(answer.len()).is_ok_and(|length| length > LARGEST_ANSWER);
            if length == 0 || is_full {
                return Ok(String::from_utf8_lossy(&answer).into_owned());
            }
        }
    }

    fn read(&mut self, buffer: &mut [u8], until: Instant) -> Result<usize, RasError> {
        let broken = |source| RasError::Broken {
            doing: "read NCCL's answer",
            source,
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(broken(io::Error::from(io::ErrorKind::TimedOut)));
        }
        self.stream.set_read_timeout(Some(left)).map_err(broken)?;
        self.stream.read(buffer).map_err(broken)
    }
}

#[cfg(test)]
mod tests;
