// SPDX-License-Identifier: Apache-2.0
//! What the keeper holds, and what it does at each turn of its loop.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use steadfast_process::cgroup::Cgroup;
use steadfast_process::exit::{Exit, reap_one};
use steadfast_process::{memory_file, tree};

use super::agent_process::AgentProcess;
use super::interrupts::{Interrupts, Meaning};
use super::ladder::{Ladder, Outcome, Scene};
use super::protocol::{
    ExitRecord, Notice, Request, StartRequest, StopRequest, Unkillable, Welcome,
};
use super::rescue;
use super::runtime_dir::RuntimeDir;
use super::workers::{Surroundings, Worker};
use crate::clock;
use crate::console_line::say;
use crate::settings::{CgroupUse, Settings};

/// Deaths in a row after which a job without any living worker is ended without an agent.
const HOPELESS: u32 = 8;
/// Deaths in a row at which the user is told.
const WORRYING: u32 = 4;
/// How often pipes are looked at while no agent is in charge.
const RESCUE_EVERY: Duration = Duration::from_millis(100);
/// What daemons that a worker left behind get between SIGTERM and SIGKILL when the job is over.
const LAST_GRACE: Duration = Duration::from_secs(2);
/// How long an agent that announced the end may take to go.
const AGENT_LEAVES_WITHIN: Duration = Duration::from_secs(5);
/// With nothing to do the loop still turns this often.
const IDLE: Duration = Duration::from_secs(30);

/// The keeper.
#[derive(Debug)]
pub(super) struct Keeper {
    stop_grace: Duration,
    runtime_dir: RuntimeDir,
    settings_file: File,
    store_memory: File,
    agent: AgentProcess,
    interrupts: Interrupts,
    token: String,
    started_ns: u64,
    cgroup: Result<Cgroup, String>,
    environment: Vec<(OsString, OsString)>,
    /// Of the newest generation, and of older ones whose output is still being read.
    workers: Vec<Worker>,
    generation: u64,
    stopped_generation: u64,
    reserved: Vec<OwnedFd>,
    ladder: Option<Ladder>,
    look_at: Option<Instant>,
    unkillable: Vec<Unkillable>,
    exits: Vec<ExitRecord>,
    next_sequence: u64,
    dropped_bytes: u64,
    rescue_at: Option<Instant>,
    finishing: Option<Finishing>,
}

#[derive(Debug, Clone, Copy)]
struct Finishing {
    exit_code: u8,
    agent_leaves_by: Instant,
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
        environment.push(("STEADFAST_KEEPER".into(), token.clone().into()));
        Ok(Keeper {
            stop_grace: settings.stop_grace,
            runtime_dir,
            settings_file,
            store_memory: memory_file::create("steadfast-store")?,
            agent: AgentProcess::new(agent_environment, settings.agent_watchdog)?,
            interrupts: Interrupts::default(),
            token,
            started_ns: clock::monotonic_ns(),
            cgroup,
            environment,
            workers: Vec::new(),
            generation: 0,
            stopped_generation: 0,
            reserved: Vec::new(),
            ladder: None,
            look_at: None,
            unkillable: Vec::new(),
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
        self.rescue_output(now);
        self.end_without_agent(now);
        self.is_over(now)
    }

    pub(super) fn next_deadline(&self) -> Instant {
        let leaving = self.finishing.map(|finishing| finishing.agent_leaves_by);
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
        if let Some(ladder) = &mut self.ladder {
            ladder.postpone(lapse);
        }
    }

    pub(super) fn on_signal(&mut self, signal: Signal, now: Instant) {
        match signal {
            Signal::SIGCHLD => self.reap(now),
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
        for (request, descriptors) in self.agent.requests(now) {
            match request {
                Request::Alive => {}
                Request::InCharge => {
                    self.agent.mark_in_charge(now);
                    self.rescue_at = None;
                }
                Request::Start(start) => self.start(&start, descriptors),
                Request::Stop(stop) => self.stop(stop, now),
                Request::Signal { signal } => {
                    if let Ok(signal) = Signal::try_from(signal) {
                        self.signal_workers(signal);
                    }
                }
                Request::Acknowledge { sequence } => {
                    self.exits.retain(|exit| exit.sequence > sequence)
                }
                Request::Release { generation } => self.release(generation),
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
        for exit in &self.exits {
            self.agent.tell(&Notice::Exited(exit.clone()), &[]);
        }
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
            stopped_generation: self.stopped_generation,
            unkillable: self.unkillable.clone(),
            stopping_since_ns: self.ladder.as_ref().map(Ladder::began_ns),
            interrupts: self.interrupts.received().to_vec(),
            dropped_bytes: self.dropped_bytes,
        }
    }

    fn start(&mut self, request: &StartRequest, reserved: Vec<OwnedFd>) {
        let generation = request.generation;
        if let Some(reason) = self.refusal(generation) {
            self.agent.tell(
                &Notice::Started {
                    generation,
                    refused: Some(reason),
                },
                &[],
            );
            return;
        }
        if generation > self.generation {
            self.generation = generation;
            self.unkillable.clear();
            self.reserved = reserved;
            let surroundings = Surroundings {
                generation,
                cgroup: self.cgroup.as_ref().ok(),
                environment: &self.environment,
            };
            let started: Vec<Worker> = request
                .workers
                .iter()
                .map(|worker| Worker::start(worker, &surroundings))
                .collect();
            for worker in started {
                self.agent
                    .tell(&Notice::Attached(worker.view()), &worker.descriptors());
                if let Some(exit) = worker.exit {
                    self.record_exit(&worker, exit);
                }
                self.workers.push(worker);
            }
        }
        self.agent.tell(
            &Notice::Started {
                generation,
                refused: None,
            },
            &[],
        );
    }

    /// Why a generation may not start, if it may not.
    fn refusal(&self, generation: u64) -> Option<String> {
        if generation < self.generation {
            return Some(format!(
                "generation {} has already been started",
                self.generation
            ));
        }
        if generation == self.generation {
            return None;
        }
        if self.finishing.is_some() {
            return Some("the job is over".to_owned());
        }
        if self.ladder.is_some() || self.stopped_generation < self.generation {
            return Some(format!(
                "generation {} has not been stopped",
                self.generation
            ));
        }
        None
    }

    fn stop(&mut self, request: StopRequest, now: Instant) {
        if request.generation < self.generation {
            return;
        }
        self.interrupts.answered();
        if self.stopped_generation >= request.generation && self.generation == request.generation {
            let notice = Notice::Stopped {
                generation: request.generation,
                unkillable: self.unkillable.clone(),
            };
            return self.agent.tell(&notice, &[]);
        }
        match &mut self.ladder {
            Some(ladder) => ladder.hasten(request, now),
            None => self.ladder = Some(Ladder::new(request, now)),
        }
        self.climb(now);
    }

    fn climb(&mut self, now: Instant) {
        self.look_at = None;
        let Some(mut ladder) = self.ladder.take() else {
            return;
        };
        let mut except: BTreeSet<i32> = self.unkillable.iter().map(|process| process.pid).collect();
        except.extend(self.agent.pid().map(Pid::as_raw));
        let numbers = |worker: &Worker| Some((worker.pid?.as_raw(), worker.local_rank));
        let scene = Scene {
            processes: tree::descendants(Pid::this().as_raw(), &except),
            workers: self
                .workers
                .iter()
                .filter(|worker| worker.lives())
                .filter_map(numbers)
                .collect(),
            sessions: self.workers.iter().filter_map(numbers).collect(),
            cgroup: self.cgroup.as_ref().ok(),
        };
        match ladder.climb(now, &scene) {
            Outcome::Going(look_at) => {
                self.look_at = Some(look_at);
                self.ladder = Some(ladder);
            }
            Outcome::Done(unkillable) => {
                self.stopped_generation = ladder.generation();
                self.unkillable.extend(unkillable);
                self.reserved.clear();
                let notice = Notice::Stopped {
                    generation: self.stopped_generation,
                    unkillable: self.unkillable.clone(),
                };
                self.agent.tell(&notice, &[]);
            }
        }
    }

    fn reap(&mut self, now: Instant) {
        // An error other than "no children" cannot happen with these arguments; it would show as a worker that stays.
        while let Ok(Some((pid, exit))) = reap_one() {
            if self.agent.pid() == Some(pid) {
                // What it still asked for counts, above all the end of the job.
                self.on_requests(now);
                self.agent.died(exit, now);
                continue;
            }
            self.unkillable
                .retain(|process| process.pid != pid.as_raw());
            let Some(index) = self
                .workers
                .iter()
                .position(|worker| worker.lives() && worker.pid == Some(pid))
            else {
                continue;
            };
            let mut worker = self.workers.swap_remove(index);
            worker.ended(exit);
            self.record_exit(&worker, exit);
            self.workers.push(worker);
        }
        if self.ladder.is_some() {
            self.climb(now);
        }
    }

    fn record_exit(&mut self, worker: &Worker, exit: Exit) {
        let record = ExitRecord {
            sequence: self.next_sequence,
            generation: worker.generation,
            rank: worker.rank,
            local_rank: worker.local_rank,
            pid: worker.view().pid,
            exit,
            spawn_error: worker.spawn_error.clone(),
            while_stopping: self.ladder.is_some(),
            at_ns: worker.ended_ns.unwrap_or_else(clock::monotonic_ns),
        };
        self.next_sequence += 1;
        self.agent.tell(&Notice::Exited(record.clone()), &[]);
        self.exits.push(record);
    }

    fn release(&mut self, generation: u64) {
        for worker in self
            .workers
            .iter_mut()
            .filter(|worker| worker.generation <= generation)
        {
            worker.streams.clear();
        }
        let newest = self.generation;
        self.workers.retain(|worker| {
            worker.generation == newest || worker.lives() || !worker.streams.is_empty()
        });
    }

    fn signal_workers(&self, signal: Signal) {
        for pid in self
            .workers
            .iter()
            .filter(|worker| worker.lives())
            .filter_map(|worker| worker.pid)
        {
            // Not reaped yet, so the number is still its own; an error means that it has just ended.
            let _just_ended = kill(pid, signal);
        }
    }

    fn interrupt(&mut self, signal: Signal, now: Instant) {
        let meaning = self.interrupts.receive(signal, now);
        let insists = meaning == Meaning::KillNow;
        self.agent.tell(
            &Notice::Interrupt {
                signal: signal as i32,
                insists,
            },
            &[],
        );
        if insists {
            let kill_now = StopRequest {
                generation: self.generation,
                first_signal: Signal::SIGKILL as i32,
                grace_ms: 0,
            };
            self.stop(kill_now, now);
        }
    }

    fn stop_without_agent(&mut self, signal: i32, now: Instant) {
        say("no agent answers: the keeper itself stops the workers");
        let grace_ms = u64::try_from(self.stop_grace.as_millis()).unwrap_or(u64::MAX);
        self.stop(
            StopRequest {
                generation: self.generation,
                first_signal: signal,
                grace_ms,
            },
            now,
        );
    }

    /// Ctrl-Z: everything stops, the keeper last.
    fn suspend(&mut self) {
        let everything = tree::descendants(Pid::this().as_raw(), &BTreeSet::new());
        for process in &everything {
            process.signal(Signal::SIGSTOP);
        }
        // Returns when somebody continues us; SIGCONT then arrives as data.
        let _stops_here = kill(Pid::this(), Signal::SIGSTOP);
    }

    fn resume(&mut self, now: Instant) {
        for process in tree::descendants(Pid::this().as_raw(), &BTreeSet::new()) {
            process.signal(Signal::SIGCONT);
        }
        self.agent.forgive_silence(now);
        self.agent.tell(&Notice::Resumed, &[]);
    }

    fn rescue_output(&mut self, now: Instant) {
        if self.agent.is_in_charge() {
            self.rescue_at = None;
        } else if self.rescue_at.is_none_or(|at| now >= at) {
            self.dropped_bytes += rescue::make_room(&self.workers);
            self.rescue_at = Some(now + RESCUE_EVERY);
        }
    }

    /// Without workers there is nothing that an agent which cannot live could be waited for.
    fn end_without_agent(&mut self, now: Instant) {
        let hopeless = self.agent.pid().is_none() && self.agent.deaths_in_a_row >= HOPELESS;
        if !hopeless || self.finishing.is_some() || self.workers.iter().any(Worker::lives) {
            return;
        }
        let death = self.agent.last_death.clone().unwrap_or_default();
        let worst = self
            .exits
            .iter()
            .find(|exit| !exit.exit.is_success() && !exit.while_stopping);
        let (code, outcome) = match (
            worst,
            self.workers.is_empty(),
            self.interrupts.received().first(),
        ) {
            (Some(exit), _, _) => (
                exit.exit.shell_code(),
                format!(
                    "the first worker to fail was local rank {} (pid {})",
                    exit.local_rank, exit.pid
                ),
            ),
            (None, true, _) => (70, "nothing was started".to_owned()),
            (None, false, Some(signal)) => (128 + signal, "it was stopped on request".to_owned()),
            (None, false, None) => (0, "all its workers have finished".to_owned()),
        };
        say(&format!(
            "ending the job without an agent (it {death}, again and again): {outcome}"
        ));
        self.finish(u8::try_from(code).unwrap_or(1), now);
    }

    fn finish(&mut self, exit_code: u8, now: Instant) {
        self.finishing = Some(Finishing {
            exit_code,
            agent_leaves_by: now + AGENT_LEAVES_WITHIN,
        });
        let sweep = StopRequest {
            generation: self.generation,
            first_signal: Signal::SIGTERM as i32,
            grace_ms: u64::try_from(LAST_GRACE.as_millis()).unwrap_or(0),
        };
        // Whatever was started since the last stop must go, known or not.
        self.ladder.get_or_insert_with(|| Ladder::new(sweep, now));
        self.climb(now);
    }

    fn is_over(&mut self, now: Instant) -> Option<u8> {
        let finishing = self.finishing?;
        if let Some(pid) = self.agent.pid() {
            if now >= finishing.agent_leaves_by {
                let _gone_already = kill(pid, Signal::SIGKILL);
            }
            return None;
        }
        self.ladder.is_none().then_some(finishing.exit_code)
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
