// SPDX-License-Identifier: Apache-2.0
//! Tests on real pipes, with real processes as workers.

mod console;
mod kill;
mod layout;
mod lines;
mod stalls;

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;
use crate::settings::{PerRank, Std};

/// Longer than anything takes on the busiest machine.
const LONG: Duration = Duration::from_secs(100);

/// A job of `workers` whose streams are teed, with pipes in place of a console.
struct Job {
    directory: TempDir,
    settings: OutputSettings,
}

/// A job's output that is running, and what a console would show.
struct Running {
    outputs: Outputs,
    events: mpsc::UnboundedReceiver<OutputEvent>,
    stdout: Option<File>,
    stderr: Option<File>,
}

/// What the keeper holds of one stream.
struct KeptPipes {
    worker_read: OwnedFd,
    worker_write: Option<OwnedFd>,
    spool_read: OwnedFd,
    spool_write: OwnedFd,
}

impl Job {
    fn new(mode: Mode, workers: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = LogSettings {
            run_dir: directory.path().to_owned(),
            redirects: PerRank::all(Std::None),
            tee: PerRank::all(Std::Both),
            local_ranks_filter: None,
            duplicate_stdout_filters: Vec::new(),
            duplicate_stderr_filters: Vec::new(),
            prefix_template: None,
            console: true,
        };
        let settings = OutputSettings {
            log,
            mode,
            workers,
            role: "default".to_owned(),
            hostname: "node1".to_owned(),
            progress_regex: None,
        };
        Self {
            directory,
            settings,
        }
    }

    fn log(&self, stream: Stream) -> PathBuf {
        stream_log(self.directory.path(), stream)
    }

    /// Starts with pipes as the console.
    fn start(&self) -> Running {
        let (stdout, stdout_write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (stderr, stderr_write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut running = self.start_with(ConsoleTargets {
            stdout: stdout_write,
            stderr: stderr_write,
        });
        running.stdout = Some(stdout.into());
        running.stderr = Some(stderr.into());
        running
    }

    /// Starts with a console that takes and forgets everything.
    fn start_unseen(&self) -> Running {
        let null = || OwnedFd::from(File::options().write(true).open("/dev/null").unwrap());
        self.start_with(ConsoleTargets {
            stdout: null(),
            stderr: null(),
        })
    }

    fn start_with(&self, targets: ConsoleTargets) -> Running {
        let (sender, events) = mpsc::unbounded_channel();
        let settings = OutputSettings {
            log: self.settings.log.clone(),
            role: self.settings.role.clone(),
            hostname: self.settings.hostname.clone(),
            progress_regex: self.settings.progress_regex.clone(),
            ..self.settings
        };
        let outputs = Outputs::new(settings, targets, sender).unwrap();
        Running {
            outputs,
            events,
            stdout: None,
            stderr: None,
        }
    }
}

impl Running {
    fn attach(&mut self, stream: Stream, pipes: &KeptPipes) {
        self.outputs.attach(stream, pipes.copies()).unwrap();
    }

    async fn drain(&self) {
        let drained = self.outputs.drained(1, Instant::now() + LONG).await;
        assert_eq!(drained, Drained::default());
        self.outputs.shown(Instant::now() + LONG).await;
    }

    /// Ends the output and returns all that the console's standard output showed.
    fn shown(self) -> String {
        let Self {
            outputs, stdout, ..
        } = self;
        drop(outputs);
        read_all(stdout.unwrap())
    }

    /// The events so far.
    fn events(&mut self) -> Vec<OutputEvent> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }

    async fn event(&mut self, wanted: impl Fn(&OutputEvent) -> bool) -> OutputEvent {
        let deadline = Instant::now() + LONG;
        loop {
            let event = tokio::time::timeout_at(deadline, self.events.recv())
                .await
                .unwrap()
                .unwrap();
            if wanted(&event) {
                return event;
            }
        }
    }
}

impl KeptPipes {
    fn new() -> Self {
        let (worker_read, worker_write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (spool_read, spool_write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        Self {
            worker_read,
            worker_write: Some(worker_write),
            spool_read,
            spool_write,
        }
    }

    fn copies(&self) -> StreamPipes {
        StreamPipes {
            worker: self.worker_read.try_clone().unwrap(),
            spool_read: self.spool_read.try_clone().unwrap(),
            spool_write: self.spool_write.try_clone().unwrap(),
        }
    }

    /// Writes as the worker, and stays open.
    fn write(&self, text: &str) {
        rustix::io::write(self.worker_write.as_ref().unwrap(), text.as_bytes()).unwrap();
    }

    /// The worker's end is closed.
    fn close(&mut self) {
        self.worker_write = None;
    }

    /// Starts a Python program that has the worker's end as its standard output, and nobody else has.
    fn python(&mut self, program: &str) -> Child {
        let stdout = Stdio::from(self.worker_write.take().unwrap());
        command("python3")
            .args(["-c", program])
            .stdout(stdout)
            .spawn()
            .unwrap()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test's worker is a real process"
)]
fn command(program: &str) -> Command {
    Command::new(program)
}

fn stdout_of(local_rank: u32) -> Stream {
    Stream {
        generation: 1,
        restart_count: 0,
        rank: local_rank,
        local_rank,
        kind: StreamKind::Stdout,
    }
}

fn read_all(mut file: File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

/// Waits for a child without blocking the runtime.
async fn finished(child: &mut Child) {
    until("the worker to end", || child.try_wait().unwrap().is_some()).await;
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
