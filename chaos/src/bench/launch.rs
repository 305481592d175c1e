// SPDX-License-Identifier: Apache-2.0
//! Starting programs, and ending them whatever happens.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use super::waiting::{not_interrupted, now_ns, poll_for, wait_for, with_open_signals};
use crate::failure::Failure;

/// How long a launcher may take to end its job after SIGTERM.
const END_WITHIN: Duration = Duration::from_secs(45);
/// How long Python may take to say where it is.
const PYTHON_WITHIN: Duration = Duration::from_mins(1);
/// Bytes of a program's output that a failure shows.
const TAIL_BYTES: usize = 2_000;

/// Where a program's output goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Out<'a> {
    Nowhere,
    /// Standard output to a file; standard error to the same place as for [`Out::Nowhere`].
    File(&'a Path),
}

/// A program that was started here. Dropping it ends it, and its process group.
#[derive(Debug)]
pub(super) struct Program {
    name: String,
    child: Child,
    errors: PathBuf,
    pub(super) started_ns: u64,
    ended: Option<ExitStatus>,
}

impl Program {
    /// Starts a command in a process group of its own. Its standard error goes to a file in
    /// `directory`.
    pub(super) fn start(
        command: &[OsString],
        directory: &Path,
        out: Out<'_>,
    ) -> Result<Self, Failure> {
        Self::start_with(command, directory, out, Stdio::null())
    }

    /// The same for a program that is told what to do over its standard input, which ends when this program does.
    pub(super) fn start_listening(
        command: &[OsString],
        directory: &Path,
        out: Out<'_>,
    ) -> Result<Self, Failure> {
        Self::start_with(command, directory, out, Stdio::piped())
    }

    fn start_with(
        command: &[OsString],
        directory: &Path,
        out: Out<'_>,
        stdin: Stdio,
    ) -> Result<Self, Failure> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Failure::Unexpected(
                "there is no command to start".to_owned(),
            ));
        };
        let name = program.to_string_lossy().into_owned();
        let errors = directory.join("stderr.txt");
        let create =
            |path: &Path| File::create(path).map_err(|error| Failure::write(path.display(), error));
        let stdout = match out {
            Out::Nowhere => Stdio::null(),
            Out::File(path) => create(path)?.into(),
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "the harness starts what it measures, here and nowhere else"
        )]
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(directory)
            .stdin(stdin)
            .stdout(stdout)
            .stderr(create(&errors)?)
            .process_group(0);
        not_interrupted()?;
        let started_ns = now_ns();
        let child = with_open_signals(|| command.spawn()).map_err(|reason| Failure::Start {
            name: name.clone(),
            reason,
        })?;
        Ok(Self {
            name,
            child,
            errors,
            started_ns,
            ended: None,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its standard input.
    pub(super) fn tell(&mut self, line: &str) -> Result<(), Failure> {
        let Some(stdin) = &mut self.child.stdin else {
            return Err(Failure::Unexpected(format!(
                "{} does not listen",
                self.name
            )));
        };
        writeln!(stdin, "{line}").map_err(|error| Failure::write(&self.name, error))
    }

    /// Whether its end has not been seen yet; its process id means nothing afterwards.
    pub(super) fn may_run(&self) -> bool {
        self.ended.is_none()
    }

    /// An error with its last words if the program has ended.
    pub(super) fn must_run(&mut self) -> Result<(), Failure> {
        match self.look()? {
            None => Ok(()),
            Some(status) => Err(self.ended_badly(status)),
        }
    }

    /// Whether it has ended, however.
    pub(super) fn has_ended(&mut self) -> Result<bool, Failure> {
        Ok(self.look()?.is_some())
    }

    /// Waits for the end; anything but exit code 0 is an error.
    pub(super) fn wait(&mut self, at_most: Duration) -> Result<(), Failure> {
        let what = format!("{} to end", self.name);
        let status = wait_for(&what, at_most, || self.look())?;
        if status.success() {
            Ok(())
        } else {
            Err(self.ended_badly(status))
        }
    }

    /// Waits for the end, whatever it is, and gives the time at which it was seen.
    pub(super) fn end_ns(&mut self, at_most: Duration) -> Result<u64, Failure> {
        let pid = pid_of(self.pid())
            .ok_or_else(|| Failure::Unexpected(format!("{} has no process id", self.name)))?;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| {
            Failure::Unexpected(format!("{} cannot be watched: {error}", self.name))
        })?;
        poll_for(&mut [PollFd::new(&process, PollFlags::IN)], at_most);
        let end = now_ns();
        self.wait(at_most)?;
        Ok(end)
    }

    /// Asks it to end, and makes sure that it does.
    pub(super) fn stop(&mut self) -> Result<(), Failure> {
        if self.look()?.is_none() {
            self.signal(Signal::TERM);
            let what = format!("{} to end after SIGTERM", self.name);
            wait_for(&what, END_WITHIN, || self.look())?;
        }
        Ok(())
    }

    /// Ends it, and its process group, in good order or not.
    pub(super) fn end(&mut self) {
        if self.stop().is_err() && self.ended.is_none() {
            if let Some(group) = pid_of(self.child.id()) {
                let _already_gone = kill_process_group(group, Signal::KILL);
            }
            self.ended = self.child.wait().ok();
        }
    }

    fn look(&mut self) -> Result<Option<ExitStatus>, Failure> {
        if self.ended.is_none() {
            self.ended = self
                .child
                .try_wait()
                .map_err(|error| Failure::read(&self.name, error))?;
        }
        Ok(self.ended)
    }

    pub(super) fn signal(&self, signal: Signal) {
        if self.ended.is_none()
            && let Some(pid) = pid_of(self.child.id())
        {
            // It may have ended by itself meanwhile, which is as good.
            let _already_gone = kill_process(pid, signal);
        }
    }

    fn ended_badly(&self, status: ExitStatus) -> Failure {
        Failure::Ended {
            name: self.name.clone(),
            status: status.to_string(),
            last_words: tail(&self.errors),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
    }
}

/// A process id as the system's calls want it.
pub(crate) fn pid_of(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// The program with this name in the directories of `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// The `steadfast` to measure: the one that is named, else the one beside this program, else the
/// one on `PATH`.
pub(crate) fn steadfast_or_default(named: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let beside = || {
        let path = std::env::current_exe().ok()?.with_file_name("steadfast");
        path.is_file().then_some(path)
    };
    let found = named.or_else(beside).or_else(|| on_path("steadfast"));
    let path = found.ok_or_else(|| Failure::NotFound("steadfast".to_owned()))?;
    // Programs are started in other directories than this one.
    fs::canonicalize(&path).map_err(|error| Failure::read(path.display(), error))
}

/// The Python that runs the workers: the one that is named, else `python3`. Asks it where it really
/// is, since what is on `PATH` may be a script that first looks for the right one, which takes
/// longer than Python itself.
pub(crate) fn python(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let python = match named {
        Some(path) => path.to_owned(),
        None => on_path("python3").ok_or_else(|| Failure::NotFound("python3".to_owned()))?,
    };
    let directory = temporary_directory()?;
    let answer = directory.path().join("python.txt");
    let ask = words([&python, &"-c", &"import sys; print(sys.executable)"]);
    Program::start(&ask, directory.path(), Out::File(&answer))?.wait(PYTHON_WITHIN)?;
    let text =
        fs::read_to_string(&answer).map_err(|error| Failure::read(answer.display(), error))?;
    Ok(PathBuf::from(text.trim_end()))
}

/// A command line from its words.
pub(super) fn words<const N: usize>(words: [&dyn AsRef<OsStr>; N]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().to_owned()).collect()
}

/// A directory that is removed when it is dropped.
pub(super) fn temporary_directory() -> Result<tempfile::TempDir, Failure> {
    tempfile::Builder::new()
        .prefix("steadfast-chaos-")
        .tempdir()
        .map_err(|error| Failure::write("a temporary directory", error))
}

/// Writes a file.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| Failure::write(path.display(), error))
}

fn tail(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let start = bytes.len().saturating_sub(TAIL_BYTES);
    String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_ended_when_it_is_dropped() {
        let directory = temporary_directory().unwrap();
        let sleep = on_path("sleep").unwrap();
        let program =
            Program::start(&words([&sleep, &"600"]), directory.path(), Out::Nowhere).unwrap();
        let pid = pid_of(program.pid()).unwrap();
        drop(program);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn last_words_are_part_of_the_failure() {
        let directory = temporary_directory().unwrap();
        let shell = on_path("sh").unwrap();
        let command = words([&shell, &"-c", &"echo no luck >&2; exit 3"]);
        let mut program = Program::start(&command, directory.path(), Out::Nowhere).unwrap();
        let failure = program
            .wait(Duration::from_mins(1))
            .unwrap_err()
            .to_string();
        assert!(
            failure.contains("no luck") && failure.contains('3'),
            "{failure}"
        );
    }
}
