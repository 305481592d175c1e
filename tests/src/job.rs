// SPDX-License-Identifier: Apache-2.0
//! A running job.

mod files;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::PipeReader;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

pub use self::files::json_lines;
use crate::binaries::steadfast;
use crate::capture::Capture;
use crate::launch::command;
use crate::leftovers::{cgroup_of, entries};
use crate::outcome::Outcome;
use crate::patience::{DEADLINE, eventually, pause};
use crate::processes::{Found, is_alive, send, with_mark};

/// How long something may still come after `steadfast` has ended.
const AFTERMATH: Duration = Duration::from_secs(15);

/// A job that was started. Dropping it ends all its processes and removes its directory.
#[derive(Debug)]
pub struct Job {
    parts: Parts,
    ended: Option<ExitStatus>,
}

#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) child: Child,
    pub(crate) stdout: Capture,
    pub(crate) stderr: Capture,
    pub(crate) directory: TempDir,
    pub(crate) runtime_root: PathBuf,
    pub(crate) name: String,
    pub(crate) mark: String,
    pub(crate) environment: BTreeMap<String, OsString>,
    /// The end of a pipe that nobody reads.
    pub(crate) stalled: Option<PipeReader>,
}

impl Job {
    pub(crate) fn new(parts: Parts) -> Job {
        Job { parts, ended: None }
    }

    /// Process id of what was started: the keeper, unless there is a wrapper.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.parts.child.id()).unwrap()
    }

    /// Sends a signal to what was started.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        assert!(
            send(self.pid(), signal),
            "the job has already ended; {}",
            self.describe()
        );
    }

    /// Process id of the agent, if one lives.
    pub fn agent(&self) -> Option<i32> {
        self.processes()
            .iter()
            .find(|process| process.is_agent())
            .map(|process| process.pid)
    }

    /// Kills the agent that there is, if there is one. Returns its process id.
    pub fn kill_agent(&self) -> Option<i32> {
        self.agent().filter(|&agent| send(agent, Signal::SIGKILL))
    }

    /// Waits for an agent other than `old` that answers. Returns its process id.
    #[track_caller]
    pub fn other_agent(&self, old: i32) -> i32 {
        self.eventually("another agent that answers", |job| {
            let agent = i32::try_from(job.status()?["agent_pid"].as_i64()?).ok()?;
            (agent != old).then_some(agent)
        })
    }

    /// All living processes of the job.
    pub fn processes(&self) -> Vec<Found> {
        with_mark(&self.parts.mark)
    }

    /// The job's own directory.
    pub fn directory(&self) -> &Path {
        self.parts.directory.path()
    }

    /// Where the workers start.
    pub fn work(&self) -> PathBuf {
        self.directory().join("work")
    }

    /// Where the control sockets are.
    pub fn runtime_root(&self) -> &Path {
        &self.parts.runtime_root
    }

    /// Makes an empty file for which a worker waits (`wait-file:NAME`).
    pub fn touch(&self, name: &str) {
        std::fs::write(self.work().join(name), "").unwrap();
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        self.parts.stderr.text()
    }

    /// Standard output so far.
    pub fn stdout(&self) -> String {
        self.parts.stdout.text()
    }

    /// Lets the console flow again that was started as [`crate::Console::Stalled`], and throws away what comes.
    pub fn unstall(&mut self) {
        self.parts.stdout = Capture::start(self.parts.stalled.take());
    }

    /// What `steadfast status --json` says; `None` when it fails.
    pub fn status(&self) -> Option<Value> {
        let asked = self.ask("status", &["--job", &self.parts.name, "--json"]);
        if !asked.status.success() {
            return None;
        }
        let reply: Value = serde_json::from_slice(&asked.stdout)
            .unwrap_or_else(|error| panic!("{error} in the status: {asked}"));
        Some(reply["jobs"][0].clone())
    }

    /// Runs a command of `steadfast` in the job's surroundings, though without its name, to its end.
    pub fn ask(&self, subcommand: &str, arguments: &[&str]) -> Outcome {
        let mut words: Vec<OsString> = vec![steadfast().into(), subcommand.into()];
        words.extend(arguments.iter().map(Into::into));
        let mut environment = self.parts.environment.clone();
        environment.remove("STEADFAST_JOB");
        let output = command(&words, &environment, self.directory())
            .output()
            .unwrap();
        Outcome {
            status: output.status,
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Looks at the job until `look` gives a value.
    #[track_caller]
    pub fn eventually<Seen>(&self, what: &str, mut look: impl FnMut(&Job) -> Option<Seen>) -> Seen {
        let deadline = Instant::now() + DEADLINE;
        let mut dead_since = None;
        loop {
            if let Some(seen) = look(self) {
                return seen;
            }
            let now = Instant::now();
            if !is_alive(self.pid()) {
                dead_since.get_or_insert(now);
            }
            let too_late = dead_since.is_some_and(|since: Instant| now - since > AFTERMATH);
            assert!(
                now < deadline && !too_late,
                "gave up waiting for {what}; {}",
                self.describe()
            );
            pause(Duration::from_millis(10));
        }
    }

    /// Waits for the end, and checks that nothing is left behind.
    #[track_caller]
    pub fn wait(&mut self) -> Outcome {
        let outcome = self.wait_leaving_traces();
        let left = self.left_behind();
        assert!(left.is_empty(), "the job left behind: {left:#?}; {outcome}");
        outcome
    }

    /// Waits for the end of a job that cannot clean up.
    #[track_caller]
    pub fn wait_leaving_traces(&mut self) -> Outcome {
        let deadline = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = self.parts.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                Instant::now() < deadline,
                "gave up waiting for the end of the job; {}",
                self.describe()
            );
            pause(Duration::from_millis(5));
        };
        self.ended = Some(status);
        eventually("the ends of the job's output", || {
            let at_end = self.parts.stdout.is_at_end() && self.parts.stderr.is_at_end();
            if at_end {
                Ok(())
            } else {
                Err(format!("it is held open by {:#?}", self.processes()))
            }
        });
        let stdout = self.parts.stdout.so_far().clone();
        Outcome {
            status,
            stdout,
            stderr: self.stderr(),
        }
    }

    /// What is there that should not be, once the job has ended.
    pub fn left_behind(&self) -> Vec<String> {
        let mut left: Vec<String> = self
            .processes()
            .iter()
            .map(|process| format!("process {process:?}"))
            .collect();
        let own = format!("{}@", self.parts.name);
        left.extend(
            entries(&self.parts.runtime_root)
                .into_iter()
                .filter(|name| name.starts_with(&own)),
        );
        left.extend(entries(&self.directory().join("tmp")));
        left.extend(
            self.cgroups()
                .iter()
                .filter(|path| path.exists())
                .map(|path| path.display().to_string()),
        );
        left
    }

    /// Everything that helps to understand a failure.
    pub fn describe(&self) -> String {
        let cut = |text: String| text.chars().take(10_000).collect::<String>();
        let records: Vec<String> = self.records().iter().map(without_environment).collect();
        format!(
            "--- stdout ---\n{}\n--- stderr ---\n{}\n--- processes ---\n{:#?}\n--- records ---\n{}\n--- status ---\n{}",
            cut(self.stdout()),
            cut(self.stderr()),
            self.processes(),
            cut(records.join("\n")),
            self.ask("status", &[])
        )
    }

    /// The cgroups that keepers of this job have made, those of jobs inside the job before their own.
    fn cgroups(&self) -> Vec<PathBuf> {
        let runs = self.run_dirs().into_iter();
        let journals = runs.map(|run| run.join("journal.jsonl"));
        let announced = journals
            .flat_map(|journal| json_lines(&journal))
            .filter_map(|line| {
                (line["kind"] == "job.started").then(|| Some(line["cgroup"].as_str()?.into()))?
            });
        // A keeper that was killed early has announced nothing.
        let starts = self.records_of("start");
        let seen = starts
            .iter()
            .filter_map(|record| cgroup_of(record["environment"]["STEADFAST_KEEPER"].as_str()?));
        let mut paths: Vec<PathBuf> = announced.chain(seen).collect();
        paths.sort_unstable();
        paths.dedup();
        paths.reverse();
        paths
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let processes = self.processes();
            for process in &processes {
                send(process.pid, Signal::SIGKILL);
            }
            if processes.is_empty() || Instant::now() > deadline {
                break;
            }
            pause(Duration::from_millis(10));
        }
        if self.ended.is_none() {
            // It was killed just now; a failure to wait could only hide the test's own message.
            drop(self.parts.child.wait());
        }
        for cgroup in self.cgroups() {
            drop(std::fs::remove_dir(cgroup));
        }
    }
}

fn without_environment(record: &Value) -> String {
    let mut record = record.clone();
    if let Some(fields) = record.as_object_mut() {
        fields.remove("environment");
    }
    record.to_string()
}
