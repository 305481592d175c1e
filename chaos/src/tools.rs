// SPDX-License-Identifier: Apache-2.0
//! Running the tools of the system, and starting what lives as long as a scenario.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Signal, kill_process};

use crate::bench::launch::{on_path, pid_of};
use crate::bench::waiting::{not_interrupted, with_open_signals};
use crate::failure::Failure;

/// Dies with the thread that starts it.
const WITH_US: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];

/// Variables of a process.
pub(crate) type Environment = BTreeMap<OsString, OsString>;

/// A process that was started here. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Started {
    child: Child,
    ended: Option<ExitStatus>,
}

/// Whether all of these programs are on the `PATH`.
pub(crate) fn are_there(programs: &[&str]) -> bool {
    programs.iter().all(|program| on_path(program).is_some())
}

/// Runs a tool to its end, which must be a good one, and gives what it printed.
pub(crate) fn run(words: &[&str], input: &str) -> Result<String, Failure> {
    let failed = |reason: String| Failure::Tool {
        command: words.join(" "),
        reason,
    };
    not_interrupted()?;
    let mut command = command(words);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child =
        with_open_signals(|| command.spawn()).map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends before it has read everything says why by its status.
        let _unread = stdin.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty());
    Err(failed(format!(
        "{}: {}",
        output.status,
        last.unwrap_or("no words")
    )))
}

/// What goes before the words of a command that is to run in the namespaces of that process.
pub(crate) fn inside(holder: u32, namespaces: &[&str]) -> Vec<String> {
    let target = holder.to_string();
    let mut words = vec!["nsenter".to_owned(), "--target".to_owned(), target];
    words.extend(namespaces.iter().map(|name| format!("--{name}")));
    words
}

impl Started {
    /// Starts a program that is killed when this one dies. Its output is appended to the files.
    pub(crate) fn new(
        words: &[OsString],
        environment: &Environment,
        directory: &Path,
        (stdout, stderr): (&Path, &Path),
    ) -> Result<Self, Failure> {
        not_interrupted()?;
        let append = |path: &Path| {
            File::options()
                .create(true)
                .append(true)
                .open(path)
                .map_err(|error| Failure::write(path.display(), error))
        };
        let mut command = command(&WITH_US);
        command
            .args(words)
            .env_clear()
            .envs(environment)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(append(stdout)?)
            .stderr(append(stderr)?);
        let child = with_open_signals(|| command.spawn()).map_err(|reason| Failure::Start {
            name: WITH_US[0].to_owned(),
            reason,
        })?;
        Ok(Self { child, ended: None })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it has ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        if self.ended.is_none() {
            self.ended = self
                .child
                .try_wait()
                .map_err(|error| Failure::read("a process that was started here", error))?;
        }
        Ok(self.ended)
    }

    /// Sends a signal. Returns whether it could be sent.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        self.ended.is_none()
            && pid_of(self.pid()).is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        if self.ended.is_none() {
            self.signal(Signal::KILL);
            self.ended = self.child.wait().ok();
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The end of a file, as text.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|mut file| file.read_to_end(&mut text));
    if read.is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all.get(all.len().saturating_sub(lines)..)
        .unwrap_or_default()
        .join("\n")
}

#[expect(
    clippy::disallowed_methods,
    reason = "the harness starts what it tests and the tools for it, here and in the benches"
)]
fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words.first().copied().unwrap_or_default());
    command.args(words.get(1..).unwrap_or_default());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_fails_gives_its_last_words() {
        let failure = run(&["sh", "-c", "echo first >&2; echo last >&2; exit 3"], "").unwrap_err();
        let said = failure.to_string();
        assert!(said.contains("last") && said.contains('3'), "{said}");
        assert_eq!(run(&["cat"], "through").unwrap(), "through");
    }

    #[test]
    fn what_was_started_dies_when_it_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let environment: Environment = std::env::vars_os().collect();
        let words = ["sleep", "600"].map(OsString::from);
        let started = Started::new(&words, &environment, directory.path(), (&out, &out)).unwrap();
        let pid = pid_of(started.pid()).unwrap();
        drop(started);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }
}
