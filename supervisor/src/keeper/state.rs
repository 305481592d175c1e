// SPDX-License-Identifier: Apache-2.0
//! What the keeper holds, and what it does at each turn of its loop.

mod fencing;
mod generation;
mod stopping;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use steadfast_process::cgroup::Cgroup;
use steadfast_process::memory_file;

use super::agent_process::AgentProcess;
use super::companion::Companion;
use super::fence::Fence;
use super::interrupts::Interrupts;
use super::ladder::Ladder;
use super::lookout::Lookout;
use super::probes::Probes;
use super::protocol::{CompanionRequest, ExitRecord, MARK, Notice, Request, Unkillable, Welcome};
use super::rescue;
use super::runtime_dir::RuntimeDir;
use super::workers::Worker;
use crate::clock;
use crate::console_line::say;
use crate::settings::{CgroupUse, Settings};

/// Deaths in a row at which the user is told.
const WORRYING: u32 = 4;
/// How often pipes are looked at while no agent is in charge.
const RESCUE_EVERY: Duration = Duration::from_millis(100);
/// With nothing to do the loop still turns this often.
const IDLE: Duration = Duration::from_secs(30);

/// The keeper.
/// Variables that are for the supervisor alone: the training program has no business with them.
const SECRETS: [&str; 2] = ["STEADFAST_TOKEN", "STEADFAST_COORD_PASSWORD"];

#[derive(Debug)]
pub(super) struct Keeper {
    stop_grace: Duration,
    /// Exit code when the infrastructure is at fault.
    infrastructure_code: u8,
    runtime_dir: RuntimeDir,
    settings_file: File,
    store_memory: File,
    agent: AgentProcess,
    /// What the agent asks for, not dealt with yet.
    requests: VecDeque<(Request, Vec<OwnedFd>)>,
    fence: Fence,
    lookout: Lookout,
    /// The newest generation that the fence has ended.
    fenced: Option<Fenced>,
    interrupts: Interrupts,
    /// The signal that says that the job's time is nearly up, and whether it has come.
    time_up_signal: Option<i32>,
    time_is_up: bool,
    token: String,
    started_ns: u64,
    cgroup: Result<Cgroup, String>,
    environment: Vec<(OsString, OsString)>,
    /// Of the newest generation, and of older ones whose output is still being read.
    workers: Vec<Worker>,
    generation: u64,
    stopped_generation: u64,
    /// When the stop of the newest generation began, if it has, on the monotonic clock.
    stop_began_ns: Option<u64>,
    reserved: Vec<OwnedFd>,
    ladder: Option<Ladder>,
    look_at: Option<Instant>,
    unkillable: Vec<Unkillable>,
    companion: Companion,
    probes: Probes,
    exits: Vec<ExitRecord>,
    next_sequence: u64,
    dropped_bytes: u64,
    rescue_at: Option<Instant>,
    finishing: Option<Finishing>,
}

#[derive(Debug, Clone, Copy)]
struct Fenced {
    generation: u64,
    at_ns: u64,
}

#[derive(Debug, Clone, Copy)]
struct Finishing {
    exit_code: u8,
    agent_leaves_by: Instant,
    probes_leave_by: Instant,
}

impl Keeper {
    pub(super) fn new(
        settings: &Settings,
        runtime_dir: RuntimeDir,
        settings_file: File,
    ) -> io::Result<Keeper> {
        let token = random_token()?;
        let cgroup = match settings.cgroup {
            CgroupUse::Auto => Cgroup::create_below_own(&format!("steadfast-{token}")),
            CgroupUse::Off => Err("turned off by --cgroup off".to_owned()),
        };
        let agent_environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let mut environment = agent_environment.clone();
        environment.retain(|(name, _)| !SECRETS.iter().any(|secret| name == *secret));
        mark(&mut environment, &token);
        let lookout = Lookout::new(
            settings.progress_regex.as_deref(),
            settings.hook.then(|| runtime_dir.path()),
            Instant::now(),
        );
        Ok(Keeper {
            stop_grace: settings.stop_grace,
            infrastructure_code: settings.exit_codes.infrastructure,
            runtime_dir,
            settings_file,
            store_memory: memory_file::create("steadfast-store")?,
            agent: AgentProcess::new(agent_environment, settings.agent_watchdog)?,
            requests: VecDeque::new(),
            fence: Fence::new(settings.coordination.is_fenced()),
            lookout,
            fenced: None,
            interrupts: Interrupts::default(),
            time_up_signal: settings.time_limit.signal,
            time_is_up: false,
            token,
            started_ns: clock::monotonic_ns(),
            cgroup,
            environment,
            workers: Vec::new(),
            generation: 0,
            stopped_generation: 0,
            stop_began_ns: None,
            reserved: Vec::new(),
            ladder: None,
            look_at: None,
            unkillable: Vec::new(),
            companion: Companion::default(),
            probes: Probes::default(),
            exits: Vec::new(),
            next_sequence: 1,
            dropped_bytes: 0,
            rescue_at: None,
            finishing: None,
        })
    }

    pub(super) fn agent_channel(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.agent
            .channel()
            .map(|channel| (channel, self.agent.has_backlog()))
    }

    /// Does everything that is due. Returns the exit code when the job is over and nothing is left.
    pub(super) fn step(&mut self, now: Instant) -> Option<u8> {
        self.agent.watch(now);
        self.agent.flush();
        if self.finishing.is_none() && self.agent.should_start(now) {
            self.start_agent(now);
        }
        if let Some(signal) = self.interrupts.take_overdue(now) {
            self.stop_without_agent(signal, now);
        }
        if self.look_at.is_some_and(|at| now >= at) {
            self.climb(now);
        }
        // Before anything is thrown away of what there is to see.
        self.look_out(now);
        self.companion.step(now);
        self.rescue_output(now);
        self.end_without_agent(now);
        self.is_over(now)
    }

    pub(super) fn next_deadline(&self) -> Instant {
        let leaving = self
            .finishing
            .map(|finishing| match self.agent.pid() {
                Some(_) => finishing.agent_leaves_by,
                None => finishing.probes_leave_by,
            })
            // What is past is no reason to wake.
            .filter(|at| *at > Instant::now());
        let agent = if self.finishing.is_some() {
            None
        } else {
            self.agent.next_deadline()
        };
        [
            agent,
            self.interrupts.deadline(),
            self.look_at,
            self.rescue_at,
            self.fence_deadline(),
            self.lookout_due(),
            self.companion.next_deadline(),
            leaving,
        ]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or_else(|| Instant::now() + IDLE)
    }

    /// The keeper itself did not run for a while: nobody's silence counts.
    pub(super) fn was_away(&mut self, lapse: Duration, now: Instant) {
        self.agent.forgive_silence(now);
        // What the fence has ended gets no time back.
        let is_fenced = self.is_fenced();
        if let Some(ladder) = self.ladder.as_mut().filter(|_| !is_fenced) {
            ladder.postpone(lapse);
        }
    }

    pub(super) fn on_signal(&mut self, signal: Signal, now: Instant) {
        match signal {
            Signal::SIGCHLD => self.reap(now),
            told if Some(told as i32) == self.time_up_signal => {
                // Without an agent nothing is done: the scheduler itself ends the job if need be.
                if !std::mem::replace(&mut self.time_is_up, true) {
                    self.agent.tell(&Notice::TimeUp, &[]);
                }
            }
            Signal::SIGUSR1 | Signal::SIGUSR2 => {
                self.signal_workers(signal);
                self.agent.tell(
                    &Notice::Forwarded {
                        signal: signal as i32,
                    },
                    &[],
                );
            }
            Signal::SIGTSTP => self.suspend(),
            Signal::SIGCONT => self.resume(now),
            interrupt => self.interrupt(interrupt, now),
        }
    }

    pub(super) fn on_requests(&mut self, now: Instant) {
        self.receive(now);
        while let Some((request, descriptors)) = self.requests.pop_front() {
            match request {
                // What there is to them was dealt with when they came.
                Request::Alive | Request::Fence { .. } => {}
                Request::InCharge => {
                    self.agent.mark_in_charge(now);
                    self.rescue_at = None;
                }
                Request::Start(start) => self.start(&start, descriptors, now),
                Request::Stop(stop) => self.stop(stop, now),
                Request::Postpone { within_ms } => {
                    let within = Duration::from_millis(within_ms);
                    self.interrupts.postponed(now + within);
                }
                Request::StartCompanion(request) => {
                    self.start_companion(&request, descriptors.first());
                }
                Request::StopCompanion { grace_ms } => {
                    self.companion.stop(Duration::from_millis(grace_ms), now);
                }
                Request::Acknowledge { sequence } => {
                    self.exits.retain(|exit| exit.sequence > sequence);
                }
                Request::Release { generation } => self.release(generation),
                Request::Probe { pid } => self.probes.note(pid),
                Request::Finish { exit_code } => self.finish(exit_code, now),
            }
        }
    }

    pub(super) fn clean_up(&mut self) {
        if let Ok(cgroup) = &self.cgroup
            && let Err(error) = cgroup.remove()
        {
            say(&format!(
                "the cgroup {} could not be removed: {error}",
                cgroup.path().display()
            ));
        }
        if let Err(error) = self.runtime_dir.remove() {
            say(&format!(
                "{} could not be removed: {error}",
                self.runtime_dir.path().display()
            ));
        }
    }

    fn start_agent(&mut self, now: Instant) {
        if self.agent.deaths_in_a_row == WORRYING {
            let death = self.agent.last_death.clone().unwrap_or_default();
            say(&format!(
                "the agent died {WORRYING} times in a row (the last one {death}). The training goes on; until an agent \
                 stays up there are no restarts, no log files and no status. Trying again, less and less often"
            ));
        }
        if let Err(error) = self.agent.start(&self.settings_file, now) {
            self.agent
                .start_failed(format!("could not be started: {error}"), now);
            return;
        }
        self.rescue_at = Some(now + Duration::from_secs(1));
        let welcome = Notice::Welcome(self.welcome());
        self.agent.tell(&welcome, &[self.store_memory.as_fd()]);
        for worker in &self.workers {
            if !worker.streams.is_empty() {
                self.agent
                    .tell(&Notice::Attached(worker.view()), &worker.descriptors());
            }
        }
        if self.is_fenced() {
            self.tell_fenced();
        }
        for exit in &self.exits {
            self.agent.tell(&Notice::Exited(exit.clone()), &[]);
        }
        // Last: what the workers have printed must be in the agent's hands before it hears that nothing more comes.
        if self.generation > 0 && self.stopped_generation >= self.generation {
            self.tell_stopped(self.generation);
        }
        if self.is_fenced() && self.stopped_generation > self.generation {
            self.tell_stopped(self.stopped_generation);
        }
    }

    /// Tells the agent that nothing of this generation runs any more; it is the newest, or was never started.
    fn tell_stopped(&mut self, generation: u64) {
        let notice = Notice::Stopped {
            generation,
            unkillable: self.unkillable.clone(),
        };
        self.agent.tell(&notice, &[]);
    }

    fn welcome(&self) -> Welcome {
        let newest = self
            .workers
            .iter()
            .filter(|worker| worker.generation == self.generation);
        Welcome {
            incarnation: self.agent.incarnation,
            predecessor: self.agent.last_death.clone(),
            started_ns: self.started_ns,
            keeper_pid: Pid::this().as_raw(),
            runtime_dir: self.runtime_dir.path().to_owned(),
            token: self.token.clone(),
            cgroup: self
                .cgroup
                .as_ref()
                .ok()
                .map(|cgroup| cgroup.path().to_owned()),
            cgroup_reason: self.cgroup.as_ref().err().cloned(),
            workers: newest.map(Worker::view).collect(),
            stop_began_ns: self.stop_began_ns,
            interrupts: self.interrupts.received().to_vec(),
            time_is_up: self.time_is_up,
            companion: self.companion.view().cloned(),
            dropped_bytes: self.dropped_bytes,
        }
    }

    fn start_companion(&mut self, request: &CompanionRequest, output: Option<&OwnedFd>) {
        if self.finishing.is_none() {
            let mark = self.environment.iter().find(|(name, _)| name == MARK);
            self.companion.start(request, output, mark);
        }
        self.tell_companion();
    }

    fn tell_companion(&mut self) {
        if let Some(view) = self.companion.view() {
            self.agent.tell(&Notice::Companion(view.clone()), &[]);
        }
    }

    fn rescue_output(&mut self, now: Instant) {
        if self.agent.is_in_charge() {
            self.rescue_at = None;
        } else if self.rescue_at.is_none_or(|at| now >= at) {
            self.dropped_bytes += rescue::make_room(&mut self.workers);
            self.rescue_at = Some(now + RESCUE_EVERY);
        }
    }
}

/// Marks the processes that will have this environment as ours, beside whose they are already.
fn mark(environment: &mut Vec<(OsString, OsString)>, token: &str) {
    if let Some((_, outer)) = environment.iter_mut().find(|(name, _)| name == MARK) {
        outer.push(",");
        outer.push(token);
    } else {
        environment.push((MARK.into(), token.into()));
    }
}

/// Sixteen hexadecimal digits that nobody can guess.
fn random_token() -> io::Result<String> {
    use std::fmt::Write;
    let mut bytes = [0_u8; 8];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut bytes)?;
    let mut token = String::new();
    for byte in bytes {
        write!(token, "{byte:02x}").map_err(io::Error::other)?;
    }
    Ok(token)
}

#[cfg(test)]
mod tests;
