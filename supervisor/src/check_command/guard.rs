// SPDX-License-Identifier: Apache-2.0
//! Makes the checks in a process of its own, so that whoever asks gets an answer in time whatever happens: a process one of
//! whose threads sleeps in the kernel beyond any signal cannot even end.
//!
//! That process has none of our streams. Whoever started us may wait until all of them are closed, as Slurm does with its
//! hooks, and one that is left behind would hold them open.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use steadfast_checks::Report;
use steadfast_process::channel::{Channel, Received};
use steadfast_process::exit::reap;
use steadfast_process::spawn::{SpawnRequest, spawn};

use super::outside::Executable;
use super::{CheckError, FAILED, Inquiry, check_here, work};
use crate::exit_code::ExitCode;

/// How much longer than the checks themselves the process may take.
const BEYOND: Duration = Duration::from_secs(1);
/// How long it is waited for once it has said all.
const FAREWELL: Duration = Duration::from_millis(200);

/// Why there is no answer from the process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Silence {
    /// It does not exist.
    #[error("the process that makes the checks could not be started: {0}")]
    NotStarted(io::Error),
    /// It was killed, or has crashed.
    #[error("the process that makes the checks ended without a result")]
    Ended,
    /// It hangs.
    #[error("the process that makes the checks did not end within {0:?}, and was left behind")]
    Late(Duration),
    /// What it says is not understood.
    #[error("the process that makes the checks and this one do not understand each other: {0}")]
    Foreign(#[from] serde_json::Error),
}

/// What the process says.
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Report(Report),
    /// The inquiry cannot be answered, for this reason.
    Refused(String),
}

/// A process that makes checks. It is killed with the thread that started it.
struct Line {
    channel: Channel,
    pid: Pid,
}

/// Has the checks made.
pub(super) fn check(inquiry: &Inquiry) -> Result<Report, CheckError> {
    let patience = inquiry.profile.limit() + BEYOND;
    let until = Instant::now() + patience;
    let line = begin(inquiry)?;
    let reply = next(&line.channel, until)?.ok_or(Silence::Late(patience))?;
    farewell(&line);
    match reply {
        Reply::Report(report) => Ok(report),
        Reply::Refused(why) => Err(CheckError::Refused(why)),
    }
}

fn begin(inquiry: &Inquiry) -> Result<Line, Silence> {
    let question = serde_json::to_vec(inquiry)?;
    start(&question).map_err(Silence::NotStarted)
}

fn start(question: &[u8]) -> io::Result<Line> {
    let (channel, theirs) = Channel::pair()?;
    let executable = Executable::open()?;
    let input = File::open("/dev/null")?;
    let output = OpenOptions::new().write(true).open("/dev/null")?;
    let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let spawned = spawn(&SpawnRequest {
        program: Path::new(&executable.path()),
        arguments: &work::whole(),
        environment: &environment,
        directory: Some(Path::new("/")),
        stdio: [input.as_fd(), output.as_fd(), output.as_fd()],
        descriptor_three: Some(theirs.as_fd()),
        own_session: false,
        parent_death_signal: Some(Signal::SIGKILL),
        core_limit: Some(0),
        cgroup: None,
    })
    .map_err(io::Error::other)?;
    channel.send(question, &[])?;
    Ok(Line {
        channel,
        pid: spawned.pid,
    })
}

/// Waits for the next word; none when it has not come until then.
fn next<Word: DeserializeOwned>(
    channel: &Channel,
    until: Instant,
) -> Result<Option<Word>, Silence> {
    loop {
        match channel.receive() {
            Ok(Received::Message(message)) => {
                return Ok(Some(serde_json::from_slice(&message.body)?));
            }
            Ok(Received::Closed) | Err(_) => return Err(Silence::Ended),
            Ok(Received::Nothing) => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        ready(channel.as_fd(), left);
    }
}

/// It has said everything; it is waited for only so that it does not outlive us if it can help it.
fn farewell(line: &Line) {
    let process = rustix::process::Pid::from_raw(line.pid.as_raw());
    let process = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    if let Some(process) = process {
        ready(process.as_fd(), FAREWELL);
    }
    // One that has not ended by now is left behind.
    let _ended = reap(line.pid);
}

/// Waits until there is something to read, and no longer than this.
fn ready(descriptor: BorrowedFd<'_>, left: Duration) {
    let milliseconds = left.as_millis().saturating_add(1);
    let timeout = PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX);
    let mut watched = [PollFd::new(descriptor, PollFlags::POLLIN)];
    // An interrupted poll is a short one.
    let _looked_at_anyway = poll(&mut watched, timeout);
}

/// The process itself: is asked, and answers.
pub(super) fn inside() -> u8 {
    let Ok(channel) = Channel::inherited() else {
        return FAILED;
    };
    let Ok(Some(inquiry)) = next::<Inquiry>(&channel, Instant::now() + BEYOND) else {
        return FAILED;
    };
    let reply = match check_here(&inquiry) {
        Ok(report) => Reply::Report(report),
        Err(error) => Reply::Refused(error.to_string()),
    };
    let Ok(body) = serde_json::to_vec(&reply) else {
        return FAILED;
    };
    // One that is gone does not want to know.
    let _unheard = channel.send(&body, &[]);
    ExitCode::Success as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    #[test]
    fn an_answer_comes_is_late_is_lost_or_is_not_understood() {
        let (ours, theirs) = Channel::pair().unwrap();
        assert!(matches!(next::<u32>(&ours, soon()), Ok(None)));
        theirs.send(b"7", &[]).unwrap();
        assert!(matches!(next::<u32>(&ours, soon()), Ok(Some(7))));
        theirs.send(b"seven", &[]).unwrap();
        assert!(matches!(
            next::<u32>(&ours, soon()),
            Err(Silence::Foreign(_))
        ));
        drop(theirs);
        assert!(matches!(next::<u32>(&ours, soon()), Err(Silence::Ended)));
    }
}
