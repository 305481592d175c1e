// SPDX-License-Identifier: Apache-2.0
//! Running another program for its answer, with a deadline.
//!
//! The program is ended with everything below it when it takes too long, and never waited for longer than that: a process
//! that not even SIGKILL ends is left to whoever reaps it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use steadfast_process::exit::{Exit, reap};
use steadfast_process::pipe::Pipe;
use steadfast_process::spawn::{ExecFailure, ReportState, SpawnError, SpawnRequest, spawn};
use steadfast_process::tree::{Process, descendants};

use crate::clock;

/// More than any answer that is of use; what comes beyond it is dropped.
const LONGEST_ANSWER: usize = 1 << 20;
/// How long a program that was killed may take to be gone.
const BURIAL: Duration = Duration::from_secs(1);

/// What to run.
#[derive(Debug)]
pub(crate) struct ProgramCall<'a> {
    /// The file to execute.
    pub(crate) program: &'a Path,
    /// All arguments but the program's own name; none of them is looked at by a shell.
    pub(crate) arguments: &'a [OsString],
    /// The whole environment.
    pub(crate) environment: &'a [(OsString, OsString)],
    /// How long it may take.
    pub(crate) patience: Duration,
}

/// How it ended, and what it said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// How it ended.
    pub(crate) exit: Exit,
    /// Standard output and standard error, as they came.
    pub(crate) output: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// No process could be created.
    #[error("no process could be created")]
    Start(#[source] SpawnError),
    /// What every process may have was refused.
    #[error("the call could not be prepared")]
    Prepare(#[source] io::Error),
    /// The program could not be executed.
    #[error("{0}")]
    Execute(ExecFailure),
    /// It could not be listened to.
    #[error("its answer could not be read")]
    Read(#[source] io::Error),
    /// It took too long, and was killed.
    #[error("it did not answer within {:.1} s and was killed", patience.as_secs_f64())]
    TooLate {
        /// How long it was waited for.
        patience: Duration,
    },
}

impl ProgramCall<'_> {
    /// Runs it to its end, or to the deadline.
    ///
    /// # Errors
    ///
    /// [`CallError`]; a program that ends with another code than 0 is an answer.
    pub(crate) fn run(&self) -> Result<Answer, CallError> {
        let deadline = clock::monotonic_ns().saturating_add(nanos(self.patience));
        let null = OpenOptions::new()
            .read(true)
            .open("/dev/null")
            .map_err(CallError::Prepare)?;
        let pipe = Pipe::with_capacity(1 << 16).map_err(CallError::Prepare)?;
        let name = self.program.file_name().unwrap_or_default().to_owned();
        let mut arguments = vec![name];
        arguments.extend_from_slice(self.arguments);
        let spawned = spawn(&SpawnRequest {
            program: self.program,
            arguments: &arguments,
            environment: self.environment,
            directory: Some(Path::new("/")),
            stdio: [null.as_fd(), pipe.write.as_fd(), pipe.write.as_fd()],
            descriptor_three: None,
            // So that nothing that is sent to our own group hits it half way, and its whole group can be ended.
            own_session: true,
            parent_death_signal: Some(Signal::SIGKILL),
            core_limit: Some(0),
            cgroup: None,
        })
        .map_err(CallError::Start)?;
        drop(pipe.write);
        let mut running = Running {
            pid: spawned.pid,
            report: spawned.report,
            output: File::from(pipe.read),
            said: Vec::new(),
            at_end: false,
        };
        let ended = running.listen(deadline);
        match ended {
            Ok(Some(exit)) => running.answer(exit),
            Ok(None) => {
                running.end();
                Err(CallError::TooLate {
                    patience: self.patience,
                })
            }
            Err(error) => {
                running.end();
                Err(CallError::Read(error))
            }
        }
    }
}

struct Running {
    pid: Pid,
    report: OwnedFd,
    output: File,
    said: Vec<u8>,
    at_end: bool,
}

impl Running {
    /// Reads until the program has ended; `None` at the deadline. What it has left behind may hold its output open: that is
    /// not waited for.
    fn listen(&mut self, deadline: u64) -> io::Result<Option<Exit>> {
        rustix::fs::fcntl_setfl(&self.output, rustix::fs::OFlags::NONBLOCK)?;
        let number = rustix::process::Pid::from_raw(self.pid.as_raw())
            .ok_or_else(|| io::Error::other("a process without a number"))?;
        let process = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty())?;
        loop {
            let left = deadline.saturating_sub(clock::monotonic_ns());
            if left == 0 {
                return Ok(None);
            }
            let patience = PollTimeout::try_from(Duration::from_nanos(left).min(BURIAL))
                .unwrap_or(PollTimeout::ZERO);
            let mut ready = vec![PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            if !self.at_end {
                ready.push(PollFd::new(self.output.as_fd(), PollFlags::POLLIN));
            }
            match poll(&mut ready, patience) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.read()?;
            if let Some(exit) = reap(self.pid)? {
                self.read()?;
                return Ok(Some(exit));
            }
        }
    }

    /// Takes what is there.
    fn read(&mut self) -> io::Result<()> {
        let mut part = [0; 8192];
        while !self.at_end {
            match self.output.read(&mut part) {
                Ok(0) => self.at_end = true,
                Ok(length) => {
                    let room = LONGEST_ANSWER.saturating_sub(self.said.len());
                    self.said
                        .extend_from_slice(part.get(..length.min(room)).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn answer(self, exit: Exit) -> Result<Answer, CallError> {
        match ExecFailure::read(self.report.as_fd()).map_err(CallError::Read)? {
            ReportState::Failed(failure) => Err(CallError::Execute(failure)),
            ReportState::Executed | ReportState::Pending => Ok(Answer {
                exit,
                output: String::from_utf8_lossy(&self.said).into_owned(),
            }),
        }
    }

    /// Kills it with everything below it, and reaps it if it is soon gone.
    fn end(&self) {
        let own = std::collections::BTreeSet::new();
        let mut doomed = descendants(self.pid.as_raw(), &own);
        doomed.extend(Process::read(self.pid.as_raw()));
        for process in doomed {
            process.signal(Signal::SIGKILL);
        }
        let deadline = clock::monotonic_ns().saturating_add(nanos(BURIAL));
        while clock::monotonic_ns() < deadline && matches!(reap(self.pid), Ok(None)) {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration) -> Result<Answer, CallError> {
        ProgramCall {
            program: Path::new("/bin/sh"),
            arguments: &["-c".into(), script.into()],
            environment: &[("WORD".into(), "from outside".into())],
            patience,
        }
        .run()
    }

    const GENEROUS: Duration = Duration::from_mins(1);

    #[test]
    fn both_streams_and_the_code_come_back() {
        let answer = shell("echo \"$WORD\"; echo wrong >&2; exit 3", GENEROUS).unwrap();
        assert_eq!(answer.output, "from outside\nwrong\n");
        assert_eq!(answer.exit, Exit::Code(3));
    }

    #[test]
    fn a_long_answer_is_cut_and_a_signal_is_told() {
        let answer = shell("head -c 3000000 /dev/zero; kill -9 $$", GENEROUS).unwrap();
        assert_eq!(answer.output.len(), LONGEST_ANSWER);
        assert!(matches!(answer.exit, Exit::Signal { signal: 9, .. }));
    }

    #[test]
    fn one_that_takes_too_long_is_killed_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("child");
        let script = format!("sleep 600 & echo $! > {}; wait", file.display());
        let error = shell(&script, Duration::from_secs(2)).unwrap_err();
        assert!(matches!(error, CallError::TooLate { .. }), "{error}");
        let child: i32 = std::fs::read_to_string(file)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let gone = |pid| Process::read(pid).is_none_or(|process| process.is_dead());
        let deadline = clock::monotonic_ns() + nanos(GENEROUS);
        while !gone(child) {
            assert!(clock::monotonic_ns() < deadline, "{child} lives");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_it_leaves_behind_is_not_waited_for() {
        let answer = shell("sleep 5 & echo done", GENEROUS).unwrap();
        assert_eq!(answer.output, "done\n");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let call = ProgramCall {
            program: Path::new("/nowhere/scontrol"),
            arguments: &[],
            environment: &[],
            patience: GENEROUS,
        };
        let error = call.run().unwrap_err();
        assert!(matches!(error, CallError::Execute(_)), "{error}");
    }
}
