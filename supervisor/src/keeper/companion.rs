// SPDX-License-Identifier: Apache-2.0
//! A process that the job needs on this node beside its workers: its member of a managed etcd.
//!
//! It outlives the agent that asked for it and every generation of workers: it is in no worker's session and not in their
//! cgroup, and stopping a generation passes it by. It ends when it is asked to, when the job is over, or with the
//! keeper. It is never started again by the keeper, who cannot know whether that would be right.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use steadfast_process::exit::Exit;
use steadfast_process::spawn::{ExecFailure, ReportState, SpawnRequest, spawn};

use super::protocol::{CompanionRequest, CompanionView};

/// How long after SIGKILL it is no longer waited for: it sleeps uninterruptibly, and dies when it wakes.
const UNKILLABLE_AFTER: Duration = Duration::from_secs(10);

/// The companion, if there ever was one.
#[derive(Debug, Default)]
pub(crate) struct Companion {
    view: Option<CompanionView>,
    report: Option<OwnedFd>,
    stopping: Option<Stopping>,
}

#[derive(Debug, Clone, Copy)]
struct Stopping {
    kill_at: Instant,
    killed_at: Option<Instant>,
}

impl Companion {
    /// Starts it, unless that was done before or one is still running; the view says what is the case. `output` gets
    /// what it prints, and `mark` marks it as one of ours.
    pub(crate) fn start(
        &mut self,
        request: &CompanionRequest,
        output: Option<&OwnedFd>,
        mark: Option<&(OsString, OsString)>,
    ) {
        let started_before = self
            .view
            .as_ref()
            .is_some_and(|view| request.launch <= view.launch);
        if started_before || self.lives() {
            return;
        }
        let mut view = CompanionView {
            launch: request.launch,
            pid: 0,
            exit: None,
            spawn_error: None,
        };
        self.stopping = None;
        self.report = None;
        match create(request, output, mark) {
            Ok((pid, report)) => {
                view.pid = pid.as_raw();
                self.report = Some(report);
            }
            Err(reason) => {
                view.exit = Some(Exit::Code(127));
                view.spawn_error = Some(reason);
            }
        }
        self.view = Some(view);
    }

    /// SIGTERM, and SIGKILL when the grace is over. A second request can only shorten the grace.
    pub(crate) fn stop(&mut self, grace: Duration, now: Instant) {
        let Some(pid) = self.pid() else { return };
        let kill_at = now + grace;
        if let Some(stopping) = &mut self.stopping {
            stopping.kill_at = stopping.kill_at.min(kill_at);
        } else {
            self.stopping = Some(Stopping {
                kill_at,
                killed_at: None,
            });
            send(pid, Signal::SIGTERM);
        }
        self.step(now);
    }

    /// Does what is due.
    pub(crate) fn step(&mut self, now: Instant) {
        let Some(pid) = self.pid() else { return };
        if let Some(stopping) = &mut self.stopping
            && stopping.killed_at.is_none()
            && now >= stopping.kill_at
        {
            stopping.killed_at = Some(now);
            send(pid, Signal::SIGKILL);
        }
    }

    /// When something is due next.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.pid()?;
        let stopping = self.stopping?;
        match stopping.killed_at {
            Some(at) => Some(at + UNKILLABLE_AFTER),
            None => Some(stopping.kill_at),
        }
    }

    /// Whether it is not to be waited for any more.
    pub(crate) fn is_gone(&self, now: Instant) -> bool {
        let killed_at = self.stopping.and_then(|stopping| stopping.killed_at);
        !self.lives() || killed_at.is_some_and(|at| now >= at + UNKILLABLE_AFTER)
    }

    /// Takes note of a reaped process. Returns whether it was this one.
    pub(crate) fn reaped(&mut self, pid: Pid, exit: Exit) -> bool {
        if self.pid() != Some(pid) {
            return false;
        }
        let failure =
            self.report
                .take()
                .and_then(|report| match ExecFailure::read(report.as_fd()) {
                    Ok(ReportState::Failed(failure)) => Some(failure.to_string()),
                    Ok(ReportState::Pending | ReportState::Executed) | Err(_) => None,
                });
        if let Some(view) = &mut self.view {
            view.exit = Some(exit);
            view.spawn_error = failure;
        }
        self.stopping = None;
        true
    }

    /// Its process, as long as it was not reaped.
    pub(crate) fn pid(&self) -> Option<Pid> {
        let view = self.view.as_ref()?;
        (view.pid != 0 && view.exit.is_none()).then(|| Pid::from_raw(view.pid))
    }

    pub(crate) fn view(&self) -> Option<&CompanionView> {
        self.view.as_ref()
    }

    fn lives(&self) -> bool {
        self.pid().is_some()
    }
}

/// Not reaped yet, so the number is still its own; an error means that it has just ended.
fn send(pid: Pid, signal: Signal) {
    let _just_ended = kill(pid, signal);
}

fn create(
    request: &CompanionRequest,
    output: Option<&OwnedFd>,
    mark: Option<&(OsString, OsString)>,
) -> Result<(Pid, OwnedFd), String> {
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|error| format!("could not open /dev/null: {error}"))?;
    let environment: Vec<_> = request.environment.iter().chain(mark).cloned().collect();
    let output = output.map_or(null.as_fd(), AsFd::as_fd);
    let spawned = spawn(&SpawnRequest {
        program: &request.program,
        arguments: &request.arguments,
        environment: &environment,
        directory: Some(&request.directory),
        stdio: [null.as_fd(), output, output],
        descriptor_three: None,
        // Out of reach of the terminal, and of what stops the workers' sessions.
        own_session: true,
        parent_death_signal: Some(Signal::SIGKILL),
        core_limit: Some(0),
        cgroup: None,
    })
    .map_err(|error| match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    })?;
    Ok((spawned.pid, spawned.report))
}
