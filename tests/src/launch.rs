// SPDX-License-Identifier: Apache-2.0
//! A job that is about to be started.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::PipeReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::binaries::{fake_worker, steadfast};
use crate::capture::Capture;
use crate::job::{Job, Parts};
use crate::processes::MARK;

/// Variables of the tests' own environment that a job gets too.
const INHERITED: [&str; 3] = ["LANG", "USER", "STEADFAST_TEST_RUN"];

/// Where the job's console goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Console {
    /// It is collected.
    #[default]
    Collected,
    /// Standard output is a pipe that nobody reads.
    Stalled,
    /// Standard output and standard error are `/dev/full`.
    Full,
}

/// Command line, environment and directory of a job.
#[derive(Debug)]
#[must_use = "a launch does nothing until it is started"]
pub struct Launch {
    directory: TempDir,
    runtime_root: PathBuf,
    wrapper: Vec<OsString>,
    subcommand: &'static str,
    name: String,
    options: Vec<OsString>,
    command: Vec<OsString>,
    environment: BTreeMap<String, OsString>,
    console: Console,
}

impl Launch {
    /// `steadfast run` with these options.
    pub fn run(options: &[&str]) -> Launch {
        Launch::new("run", options)
    }

    /// `steadfast torchrun` with these flags.
    pub fn torchrun(options: &[&str]) -> Launch {
        Launch::new("torchrun", options)
    }

    fn new(subcommand: &'static str, options: &[&str]) -> Launch {
        let directory = tempfile::Builder::new().prefix("e2e-").tempdir().unwrap();
        for name in ["work", "home", "tmp"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        Launch {
            runtime_root: directory.path().join("run"),
            directory,
            wrapper: Vec::new(),
            subcommand,
            name: "job".to_owned(),
            options: options.iter().map(Into::into).collect(),
            command: Vec::new(),
            environment: BTreeMap::new(),
            console: Console::default(),
        }
    }

    /// The workers are `fake-worker` with these steps.
    pub fn worker(self, steps: &[&str]) -> Launch {
        let worker = fake_worker().to_str().unwrap();
        let mut command = if self.subcommand == "run" {
            vec!["--"]
        } else {
            vec!["--no-python"]
        };
        command.push(worker);
        command.extend(steps);
        self.command(&command)
    }

    /// What comes after the options, as it is.
    pub fn command(mut self, words: &[&str]) -> Launch {
        self.command = words.iter().map(Into::into).collect();
        self
    }

    /// Another name than `job`.
    pub fn named(mut self, name: &str) -> Launch {
        name.clone_into(&mut self.name);
        self
    }

    /// Uses the runtime directory of another job.
    pub fn beside(mut self, other: &Job) -> Launch {
        other.runtime_root().clone_into(&mut self.runtime_root);
        self
    }

    /// Sets a variable.
    pub fn env(mut self, name: &str, value: &str) -> Launch {
        self.environment.insert(name.to_owned(), value.into());
        self
    }

    /// Runs `steadfast` inside another command.
    pub fn inside(mut self, wrapper: &[&str]) -> Launch {
        self.wrapper = wrapper.iter().map(Into::into).collect();
        self
    }

    /// Where the console goes.
    pub fn console(mut self, console: Console) -> Launch {
        self.console = console;
        self
    }

    /// The job's own directory. Workers start in `work` below it, logs are in `logs`.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts the job.
    pub fn start(self) -> Job {
        let mark = self.directory.path().to_str().unwrap().to_owned();
        let environment = self.full_environment(&mark);
        let mut words: Vec<OsString> = self.wrapper;
        words.push(steadfast().into());
        words.push(self.subcommand.into());
        words.extend(self.options);
        words.extend(self.command);
        let mut command = command(&words, &environment, self.directory.path());
        let stalled = redirect(&mut command, self.console);
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{words:?} could not be started: {error}"));
        // The parent's copies of the pipes' write ends are in the builder.
        drop(command);
        Job::new(Parts {
            stdout: Capture::start(child.stdout.take()),
            stderr: Capture::start(child.stderr.take()),
            child,
            directory: self.directory,
            runtime_root: self.runtime_root,
            name: self.name,
            mark,
            environment,
            stalled,
        })
    }

    /// Starts the job, and waits until this many workers have come to the step `record:ready` and the agent answers.
    #[track_caller]
    pub fn start_ready(self, workers: usize) -> Job {
        let job = self.start();
        job.eventually("all workers", |job| {
            (job.records_of("ready").len() == workers).then_some(())
        });
        job.eventually("the agent", Job::status);
        job
    }

    fn full_environment(&self, mark: &str) -> BTreeMap<String, OsString> {
        let inherited = INHERITED
            .iter()
            .filter_map(|&name| Some((name.to_owned(), std::env::var_os(name)?)));
        let mut environment: BTreeMap<String, OsString> = inherited.collect();
        let path = std::env::var("PATH").unwrap_or_default();
        // The system's Python goes first: others may be wrapper scripts that depend on what is not handed on.
        environment.insert(
            "PATH".to_owned(),
            format!("/usr/bin:/bin:/usr/sbin:/sbin:{path}").into(),
        );
        environment.insert(MARK.to_owned(), mark.into());
        environment.insert("STEADFAST_JOB".to_owned(), self.name.clone().into());
        environment.insert("STEADFAST_NODE_NAME".to_owned(), "node".into());
        environment.insert(
            "STEADFAST_RUNTIME_DIR".to_owned(),
            self.runtime_root.clone().into(),
        );
        for (name, place) in [
            ("HOME", "home"),
            ("TMPDIR", "tmp"),
            ("STEADFAST_LOG_DIR", "logs"),
            ("STEADFAST_TEST_RECORDS", "records.jsonl"),
        ] {
            environment.insert(name.to_owned(), self.directory.path().join(place).into());
        }
        environment.extend(self.environment.clone());
        environment
    }
}

/// A process with exactly this environment, in the job's working directory.
#[expect(clippy::disallowed_methods, reason = "tests create processes")]
pub(crate) fn command(
    words: &[OsString],
    environment: &BTreeMap<String, OsString>,
    directory: &Path,
) -> Command {
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .env_clear()
        .envs(environment)
        .current_dir(directory.join("work"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Returns the end that nobody reads.
fn redirect(command: &mut Command, console: Console) -> Option<PipeReader> {
    let full = || {
        std::fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap()
    };
    match console {
        Console::Collected => None,
        Console::Full => {
            command.stdout(full()).stderr(full());
            None
        }
        Console::Stalled => {
            let (reader, writer) = std::io::pipe().unwrap();
            command.stdout(writer);
            Some(reader)
        }
    }
}
