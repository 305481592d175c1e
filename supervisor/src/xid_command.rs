// SPDX-License-Identifier: Apache-2.0
//! The command `steadfast xid`: explains a code, lists them all, or reads a kernel log.

mod explain;
mod lines;
mod log;
mod report;
#[cfg(test)]
mod tests;

use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use steadfast_health::xid::{Driver, Judge, Kind, Policy, PolicyError};

use crate::exit_code::ExitCode;

/// How long no line comes before incidents are taken to be over, in milliseconds.
const SILENCE_MS: u16 = 1000;

/// Exit code when the log cannot be read or the answer cannot be written.
const FAILED: u8 = 1;

/// What `steadfast xid` is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// What it is about.
    pub(crate) subject: Subject,
    /// Answer in JSON.
    pub(crate) json: bool,
    /// The driver that renumbered codes are read for.
    pub(crate) driver: Option<Driver>,
    /// File that changes actions; only for a log.
    pub(crate) policy: Option<PathBuf>,
}

/// What `steadfast xid` is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// One code.
    Code(Kind, u32),
    /// All of them.
    All,
    /// The kernel log on standard input.
    Log,
}

/// Why there is no answer, or not the whole of it.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error(transparent)]
    Policy(PolicyError),
    #[error("cannot read the kernel log from standard input: {0}")]
    Read(io::Error),
    #[error("cannot write to standard output: {0}")]
    Write(io::Error),
}

/// Carries out the command, and gives the exit code.
pub(crate) fn run(request: &Request) -> u8 {
    let mut output = BufWriter::new(io::stdout().lock());
    let answered = answer(request, &mut output).and_then(|()| written(output.flush()));
    match answered {
        Ok(()) => ExitCode::Success as u8,
        Err(error) => {
            // There is nowhere left to say that standard error cannot be written.
            drop(writeln!(io::stderr(), "error: {error}"));
            match error {
                CommandError::Policy(_) => ExitCode::Configuration as u8,
                CommandError::Read(_) | CommandError::Write(_) => FAILED,
            }
        }
    }
}

fn answer(request: &Request, output: &mut impl Write) -> Result<(), CommandError> {
    match request.subject {
        Subject::Code(kind, code) => written(explain::code(
            kind,
            code,
            request.driver,
            request.json,
            output,
        )),
        Subject::All => written(explain::all(request.json, output)),
        Subject::Log => {
            let policy = match &request.policy {
                Some(file) => Policy::read(file).map_err(CommandError::Policy)?,
                None => Policy::default(),
            };
            let mut log = log::Log::new(request.driver, Judge::new(policy), request.json);
            log.read(io::stdin().lock(), silent, output)
        }
    }
}

/// Whether nothing more comes on standard input for a while.
fn silent() -> bool {
    let stdin = io::stdin();
    let mut descriptors = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    poll(&mut descriptors, PollTimeout::from(SILENCE_MS)) == Ok(0)
}

/// A reader that went away (`| head`) is no failure.
fn written(result: io::Result<()>) -> Result<(), CommandError> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CommandError::Write(error)),
        _ => Ok(()),
    }
}
