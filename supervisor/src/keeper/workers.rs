// SPDX-License-Identifier: Apache-2.0
//! The workers of one generation, as the keeper owns them: created, watched through their `execve`, reaped.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use steadfast_process::cgroup::Cgroup;
use steadfast_process::exit::Exit;
use steadfast_process::pipe::Pipe;
use steadfast_process::spawn::{ExecFailure, ReportState, SpawnRequest, spawn};

use super::protocol::{WorkerRequest, WorkerView};
use super::sight::Sight;
use crate::clock;

/// Room in the pipe that a worker writes to: time for the agent to be replaced before the worker has to wait.
const WORKER_PIPE_BYTES: usize = 1024 * 1024;
/// Room in the pipe between the agent's reading and the log file.
const SPOOL_BYTES: usize = 512 * 1024;

/// One output stream of a worker.
#[derive(Debug)]
pub(super) struct Stream {
    /// The worker writes to the other end.
    pub(super) output: OwnedFd,
    /// On its way to the log file.
    pub(super) spool: Pipe,
    /// What the keeper itself has seen of it.
    pub(super) sight: Sight,
}

/// One worker.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) generation: u64,
    pub(super) rank: u32,
    pub(super) local_rank: u32,
    /// `None` when the process could not be created.
    pub(super) pid: Option<Pid>,
    pub(super) started_ns: u64,
    pub(super) exit: Option<Exit>,
    pub(super) ended_ns: Option<u64>,
    /// Why its program never ran.
    pub(super) spawn_error: Option<String>,
    /// Standard output, then standard error; empty once the agent has read everything.
    pub(super) streams: Vec<Stream>,
    report: Option<OwnedFd>,
}

/// What all workers of a generation have in common.
#[derive(Debug)]
pub(super) struct Surroundings<'a> {
    pub(super) generation: u64,
    pub(super) cgroup: Option<&'a Cgroup>,
    /// Environment of the keeper, with the marks of the job.
    pub(super) environment: &'a [(OsString, OsString)],
}

impl Worker {
    /// Creates the worker's process. A failure is part of the result, so that it is reported like an exit.
    pub(super) fn start(request: &WorkerRequest, surroundings: &Surroundings<'_>) -> Worker {
        let mut worker = Worker {
            generation: surroundings.generation,
            rank: request.rank,
            local_rank: request.local_rank,
            pid: None,
            started_ns: clock::monotonic_ns(),
            exit: None,
            ended_ns: None,
            spawn_error: None,
            streams: Vec::new(),
            report: None,
        };
        if let Err(reason) = worker.create(request, surroundings) {
            worker.spawn_error = Some(reason);
            worker.ended(Exit::Code(127));
        }
        worker
    }

    fn create(
        &mut self,
        request: &WorkerRequest,
        surroundings: &Surroundings<'_>,
    ) -> Result<(), String> {
        let stdout =
            Pipe::with_capacity(WORKER_PIPE_BYTES).map_err(|error| format!("no pipe: {error}"))?;
        let stderr =
            Pipe::with_capacity(WORKER_PIPE_BYTES).map_err(|error| format!("no pipe: {error}"))?;
        let null = File::open("/dev/null")
            .map_err(|error| format!("could not open /dev/null: {error}"))?;
        let stdin = std::io::stdin();
        let members = surroundings
            .cgroup
            .map(Cgroup::directory)
            .transpose()
            .map_err(|error| format!("could not open the cgroup: {error}"))?;
        let environment = with_additions(surroundings.environment, &request.environment);
        let spawned = spawn(&SpawnRequest {
            program: &request.program,
            arguments: &request.arguments,
            environment: &environment,
            directory: Some(&request.directory),
            stdio: [
                if request.inherit_stdin {
                    stdin.as_fd()
                } else {
                    null.as_fd()
                },
                stdout.write.as_fd(),
                stderr.write.as_fd(),
            ],
            descriptor_three: None,
            own_session: true,
            parent_death_signal: Some(Signal::SIGKILL),
            core_limit: request.core_limit,
            cgroup: members.as_ref().map(AsFd::as_fd),
        })
        .map_err(|error| describe(&error))?;
        self.pid = Some(spawned.pid);
        self.report = Some(spawned.report);
        for pipe in [stdout, stderr] {
            // The write end closes here: end of file must come when the last process of the worker has closed its own.
            let spool =
                Pipe::with_capacity(SPOOL_BYTES).map_err(|error| format!("no pipe: {error}"))?;
            self.streams.push(Stream {
                output: pipe.read,
                spool,
                sight: Sight::default(),
            });
        }
        Ok(())
    }

    /// Reads whether the program could be executed, if the child has said so by now.
    fn read_report(&mut self) {
        let Some(report) = &self.report else { return };
        match ExecFailure::read(report.as_fd()) {
            Ok(ReportState::Pending) => return,
            Ok(ReportState::Executed) => {}
            Ok(ReportState::Failed(failure)) => self.spawn_error = Some(failure.to_string()),
            Err(error) => {
                self.spawn_error = Some(format!("its start could not be followed: {error}"));
            }
        }
        self.report = None;
    }

    /// Its process was reaped (or never came to be).
    pub(super) fn ended(&mut self, exit: Exit) {
        self.read_report();
        self.exit = Some(exit);
        self.ended_ns = Some(clock::monotonic_ns());
    }

    /// Whether its process may still run.
    pub(super) fn lives(&self) -> bool {
        self.pid.is_some() && self.exit.is_none()
    }

    pub(super) fn view(&self) -> WorkerView {
        WorkerView {
            generation: self.generation,
            rank: self.rank,
            local_rank: self.local_rank,
            pid: self.pid.map_or(0, Pid::as_raw),
            started_ns: self.started_ns,
            exit: self.exit,
            ended_ns: self.ended_ns,
            spawn_error: self.spawn_error.clone(),
        }
    }

    /// The descriptors that go with [`super::protocol::Notice::Attached`].
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.streams
            .iter()
            .flat_map(|stream| {
                [
                    stream.output.as_fd(),
                    stream.spool.read.as_fd(),
                    stream.spool.write.as_fd(),
                ]
            })
            .collect()
    }
}

fn with_additions(
    base: &[(OsString, OsString)],
    additions: &[(String, OsString)],
) -> Vec<(OsString, OsString)> {
    let mut environment: Vec<_> = base
        .iter()
        .filter(|(name, _)| {
            !additions
                .iter()
                .any(|(added, _)| name.as_os_str() == added.as_str())
        })
        .cloned()
        .collect();
    environment.extend(
        additions
            .iter()
            .map(|(name, value)| (name.into(), value.clone())),
    );
    environment
}

fn describe(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_replace_variables_of_the_same_name() {
        let base = [("A".into(), "1".into()), ("B".into(), "2".into())];
        let result = with_additions(
            &base,
            &[("B".to_owned(), "3".into()), ("C".to_owned(), "4".into())],
        );
        let expected: Vec<(OsString, OsString)> = vec![
            ("A".into(), "1".into()),
            ("B".into(), "3".into()),
            ("C".into(), "4".into()),
        ];
        assert_eq!(result, expected);
    }
}
