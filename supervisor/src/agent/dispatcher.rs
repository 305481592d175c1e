// SPDX-License-Identifier: Apache-2.0
//! The one task that owns the agent's state.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use serde_json::json;
use steadfast_core::{
    Instant as CoreInstant, JobResult, LocalRank, MemberEffect, MemberEvent, OperatorRequest, Plan,
};
use steadfast_proto::v1::{RestartReply, StatusReply, StopReply};
use steadfast_process::channel::Channel;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::control::{self, ControlRequest};
use super::dying::DyingWatch;
use super::generation::Generation;
use super::link::{Arrival, Link};
use super::ports::{Reservation, reserve};
use super::resume::{resume, spawn_failure, worker_exit};
use super::session_stub::{self as session, StatusView};
use super::{AgentError, avenger, ending, exits, launch};
use crate::clock;
use crate::journal::{Journal, JournalIdentity};
use crate::keeper::protocol::{ExitRecord, Notice, Request, StartRequest, StopRequest, Unkillable, Welcome};
use crate::keeper::runtime_dir::SOCKET_NAME;
use crate::output::{ConsoleTargets, OutputEvent, OutputSettings, Outputs, Stream, StreamKind, StreamPipes};
use crate::settings::Settings;

/// How long the last output of a generation is waited for, once nothing of it runs.
const LAST_OUTPUT: Duration = Duration::from_millis(500);
/// How long the console is waited for at the end.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How often the workers are looked at for signs that they are about to be gone.
const LOOK_FOR_DYING: Duration = Duration::from_millis(40);
/// SIGTERM and the grace for what finished workers left behind.
const SWEEP: (i32, u64) = (15, 2000);

struct Agent {
    settings: Settings,
    welcome: Welcome,
    link: Link,
    outputs: Outputs,
    journal: Journal,
    session: mpsc::Sender<MemberEvent>,
    view: watch::Receiver<StatusView>,
    generation: Generation,
    dying: DyingWatch,
    reservation: Option<Reservation>,
    ending: Option<JobResult>,
    over: bool,
}

/// Runs the agent until the job is over or the keeper is dead.
pub(super) async fn run(settings: Settings, channel: Channel) -> Result<(), AgentError> {
    let mut link = Link::new(channel).map_err(AgentError::Link)?;
    let (welcome, _store_memory) = match link.next().await.map_err(AgentError::Link)? {
        Some(Arrival { notice: Notice::Welcome(welcome), descriptors }) => (welcome, descriptors),
        Some(_) => return Err(AgentError::Link(io::Error::other("the first notice is no welcome"))),
        None => return Ok(()),
    };
    let (output_sender, mut output_events) = mpsc::unbounded_channel();
    let (control_sender, mut control_requests) = mpsc::channel(16);
    let (message_sender, mut messages) = mpsc::unbounded_channel();
    let console = ConsoleTargets::inherited()
        .map_err(|source| AgentError::System { what: "use the console", source })?;
    let outputs = Outputs::new(output_settings(&settings), console, output_sender).map_err(AgentError::Output)?;
    let identity = JournalIdentity { job: settings.job.clone(), node: settings.node.clone() };
    let report = move |text| drop(message_sender.send(text));
    let journal = Journal::open(settings.journal.clone(), identity, report)
        .map_err(|source| AgentError::System { what: "start the journal's thread", source })?;
    if let Err(error) = control::serve(&welcome.runtime_dir.join(SOCKET_NAME), control_sender) {
        outputs.say(&format!("status, stop and restart do not work: no control socket ({error})"));
    }
    let reservation = reserve(settings.master_port).ok();
    let next_port = settings.master_port.or(reservation.as_ref().map(|each| each.port)).unwrap_or(0);
    let (session, session_events) = mpsc::channel(1024);
    let (effect_sender, mut effects) = mpsc::channel(1024);
    let (view_sender, view) = watch::channel(StatusView::default());
    tokio::spawn(session::run(launch::member_settings(&settings, &welcome), session_events, effect_sender, view_sender));

    let mut agent = Agent {
        generation: Generation::default(),
        dying: DyingWatch::default(),
        ending: None,
        over: false,
        settings,
        welcome,
        link,
        outputs,
        journal,
        session,
        view,
        reservation,
    };
    agent.take_charge(next_port).await?;
    let mut heartbeat = interval(agent.settings.agent_heartbeat);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look = interval(LOOK_FOR_DYING);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !agent.over {
        tokio::select! {
            arrival = agent.link.next() => match arrival.map_err(AgentError::Link)? {
                Some(arrival) => agent.on_notice(arrival).await?,
                None => return agent.follow_the_keeper().await,
            },
            Some(effect) = effects.recv() => agent.on_effect(effect).await?,
            Some(event) = output_events.recv() => agent.on_output(event).await,
            Some(request) = control_requests.recv() => agent.on_control(request).await,
            Some(text) = messages.recv() => agent.outputs.say(&text),
            _ = heartbeat.tick() => agent.ask(&Request::Alive, Vec::new())?,
            _ = look.tick(), if agent.dying.has_workers() => agent.look_for_dying().await,
        }
    }
    Ok(())
}

impl Agent {
    /// Tells the core what is the case, the keeper that we are here, and the user what has changed.
    async fn take_charge(&mut self, next_port: u16) -> Result<(), AgentError> {
        for worker in self.welcome.workers.clone() {
            self.generation.attach(worker);
        }
        self.tell(resume(&self.welcome, next_port)).await;
        let (incarnation, stopped) = (self.welcome.incarnation, self.welcome.stopped_generation);
        if stopped > 0 && stopped == self.generation.number {
            let unkillable = self.welcome.unkillable.clone();
            self.on_stopped(stopped, unkillable).await?;
        }
        for signal in self.welcome.interrupts.first().copied() {
            self.tell(MemberEvent::Interrupt { signal, count: 1 }).await;
        }
        if incarnation == 1 {
            self.announce();
        } else {
            let predecessor = self.welcome.predecessor.clone().unwrap_or_default();
            self.say(&format!("the agent {predecessor}; a new one is in charge, the workers went on"));
            let fields = json!({ "incarnation": incarnation, "predecessor": predecessor });
            self.journal.record_incident(self.generation.number, "agent.replaced", fields);
        }
        self.ask(&Request::InCharge, Vec::new())
    }

    fn announce(&mut self) {
        let settings = &self.settings;
        let command: Vec<String> =
            settings.command.argv.iter().map(|each| each.to_string_lossy().into_owned()).collect();
        let fields = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "command": command,
            "workers": settings.workers,
            "max_restarts": settings.max_restarts,
            "keeper_pid": self.welcome.keeper_pid,
            "cgroup": self.welcome.cgroup,
            "cgroup_reason": self.welcome.cgroup_reason,
        });
        let notes = settings.notes.clone();
        let limits_threads = launch::limits_threads(settings, &launch::own_environment);
        self.journal.record(0, "job.started", fields);
        for note in notes {
            self.say(&format!("note: {note}"));
        }
        if limits_threads {
            self.say("note: OMP_NUM_THREADS is 1 for each worker, so that they do not crowd each other out; set it to tune");
        }
    }

    async fn on_notice(&mut self, arrival: Arrival) -> Result<(), AgentError> {
        match arrival.notice {
            Notice::Welcome(_) => {}
            Notice::Attached(view) => {
                let worker = (view.generation, view.rank, view.local_rank);
                self.dying.watch(&self.settings, &view);
                self.generation.attach(view);
                self.attach_output(worker, arrival.descriptors)?;
            }
            Notice::Started { generation, refused } => self.on_started(generation, refused).await,
            Notice::Exited(record) => self.on_exited(record).await?,
            Notice::Stopped { generation, unkillable } => self.on_stopped(generation, unkillable).await?,
            Notice::Interrupt { signal, insists } => {
                let name = exits::signal_name(signal);
                self.journal.record_incident(self.generation.number, "job.interrupted", json!({ "signal": name, "insists": insists }));
                self.say(&if insists {
                    format!("{name} again: killing the workers now")
                } else {
                    format!("{name}: stopping the job")
                });
                self.tell(MemberEvent::Interrupt { signal, count: if insists { 2 } else { 1 } }).await;
            }
            Notice::Forwarded { signal } => {
                let fields = json!({ "signal": exits::signal_name(signal) });
                self.journal.record(self.generation.number, "signal.forwarded", fields);
            }
            Notice::Resumed => self.journal.record(self.generation.number, "job.resumed", json!({})),
        }
        Ok(())
    }

    fn attach_output(
        &mut self,
        (generation, rank, local_rank): (u64, u32, u32),
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), AgentError> {
        let restart_count = u32::try_from(generation.saturating_sub(1)).unwrap_or(u32::MAX);
        let mut descriptors = descriptors.into_iter();
        for kind in [StreamKind::Stdout, StreamKind::Stderr] {
            let (Some(worker), Some(spool_read), Some(spool_write)) =
                (descriptors.next(), descriptors.next(), descriptors.next())
            else {
                return Ok(());
            };
            let stream = Stream { generation, restart_count, rank, local_rank, kind };
            let pipes = StreamPipes { worker, spool_read, spool_write };
            self.outputs.attach(stream, pipes).map_err(AgentError::Output)?;
        }
        Ok(())
    }

    async fn on_started(&mut self, generation: u64, refused: Option<String>) {
        if let Some(reason) = refused {
            // The core asks again when the keeper says that the older generation is stopped.
            self.say(&format!("the keeper did not start generation {generation}: {reason}"));
            return;
        }
        self.journal.record(generation, "generation.started", json!({ "workers": self.generation.status() }));
        self.tell(MemberEvent::Started { generation: steadfast_core::Generation(generation), failures: Vec::new() })
            .await;
    }

    async fn on_exited(&mut self, record: ExitRecord) -> Result<(), AgentError> {
        self.dying.forget(record.generation, record.local_rank);
        let news = self.generation.ended(&record);
        if news {
            self.journal.record_incident(record.generation, "worker.exited", exits::journal_fields(&record));
        }
        self.tell(exit_event(&record, None)).await;
        self.ask(&Request::Acknowledge { sequence: record.sequence }, Vec::new())
    }

    /// Nothing of the generation runs any more: now its last words are complete.
    async fn on_stopped(&mut self, generation: u64, unkillable: Vec<Unkillable>) -> Result<(), AgentError> {
        if generation == self.generation.number {
            let drained = self.outputs.drained(generation, Instant::now() + LAST_OUTPUT).await;
            self.explain_exits(generation).await;
            let fields = json!({
                "unkillable": unkillable,
                "output_not_finished": drained.unfinished.len(),
            });
            self.journal.record_incident(generation, "generation.stopped", fields);
            self.generation.stopped = true;
            self.report_unkillable(&unkillable);
            self.ask(&Request::Release { generation }, Vec::new())?;
        }
        if self.ending.is_some() {
            return self.finish().await;
        }
        let next_port = self.offer_port();
        let unkillable = unkillable.iter().filter_map(|process| process.local_rank).map(LocalRank).collect();
        let generation = steadfast_core::Generation(generation);
        self.tell(MemberEvent::Stopped { generation, unkillable, next_port }).await;
        Ok(())
    }

    async fn explain_exits(&mut self, generation: u64) {
        let records: Vec<ExitRecord> =
            self.generation.workers.values().filter_map(|worker| worker.record.clone()).collect();
        for record in records.iter().filter(|record| !record.exit.is_success()) {
            let tail = self.outputs.tail(generation, record.local_rank);
            let finding = exits::explain(&self.settings, record, tail);
            self.tell(exit_event(record, Some(finding))).await;
        }
    }

    fn report_unkillable(&mut self, unkillable: &[Unkillable]) {
        for process in unkillable {
            if let Some(worker) = process.local_rank.and_then(|rank| self.generation.workers.get_mut(&rank)) {
                worker.unkillable = true;
            }
            let place = process.waits_in.as_deref().unwrap_or("the kernel");
            self.say(&format!(
                "pid {} ({}) cannot be killed: it sleeps uninterruptibly (state {}) in {place}, as on storage or a \
                 driver that does not answer. It runs no more of its program, but holds what it holds until that answers",
                process.pid, process.name, process.state
            ));
        }
    }

    /// Makes sure that there is a port for the next generation. Returns it, or 0 when there is none.
    fn offer_port(&mut self) -> u16 {
        if let Some(port) = self.settings.master_port {
            return port;
        }
        if self.reservation.is_none() {
            self.reservation = reserve(None).ok();
        }
        self.reservation.as_ref().map_or(0, |reservation| reservation.port)
    }

    async fn on_effect(&mut self, effect: MemberEffect) -> Result<(), AgentError> {
        match effect {
            MemberEffect::Write(_) => Ok(()),
            MemberEffect::Start { plan } => self.start(&plan).await,
            MemberEffect::Stop { generation, first_signal, grace, reason } => {
                let signal = exits::signal_name(first_signal);
                let fields = json!({ "signal": signal, "grace_seconds": grace.as_secs_f64(), "reason": reason });
                self.journal.record_incident(generation.0, "generation.stopping", fields);
                let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
                let stop = StopRequest { generation: generation.0, first_signal, grace_ms };
                self.ask(&Request::Stop(stop), Vec::new())
            }
            MemberEffect::KillNow { generation } => {
                let stop = StopRequest { generation: generation.0, first_signal: 9, grace_ms: 0 };
                self.ask(&Request::Stop(stop), Vec::new())
            }
            MemberEffect::Say(text) => {
                self.journal.record(self.generation.number, "job.said", json!({ "text": text }));
                self.say(&text);
                Ok(())
            }
            MemberEffect::Finish(result) => self.begin_to_end(result).await,
        }
    }

    async fn start(&mut self, plan: &Plan) -> Result<(), AgentError> {
        let generation = plan.generation.0;
        let Some((member, group_rank)) = launch::place(plan, &self.settings.node) else {
            self.say(&format!("generation {generation} has no place for this node"));
            return Ok(());
        };
        self.outputs.forget(generation.saturating_sub(1));
        let directories = launch::make_directories(&self.settings, plan, member.slots).await;
        if let Err(error) = directories {
            self.say(&format!("{error}; the workers run, but leave no error files and perhaps no logs"));
        }
        let control = self.welcome.runtime_dir.join(SOCKET_NAME);
        let workers =
            launch::workers(&self.settings, plan, (member, group_rank), &control, &launch::own_environment);
        let reserved = self.take_reservation(plan, group_rank);
        let fields = json!({
            "world_size": plan.world_size,
            "restart_count": plan.restart_count,
            "master": format!("{}:{}", plan.master.address, plan.master.port),
            "why": plan.why,
        });
        self.journal.record_incident(generation, "generation.starting", fields);
        self.ask(&Request::Start(StartRequest { generation, workers }), reserved)
    }

    /// The socket that holds the master port of this generation, if this node hosts rank 0.
    fn take_reservation(&mut self, plan: &Plan, group_rank: u32) -> Vec<OwnedFd> {
        if group_rank != 0 || self.settings.master_port.is_some() {
            return Vec::new();
        }
        let held = self.reservation.take().filter(|reservation| reservation.port == plan.master.port);
        // A predecessor of this agent offered it, and the socket died with it.
        let held = held.or_else(|| reserve(Some(plan.master.port)).ok());
        held.map(|reservation| reservation.socket).into_iter().collect()
    }

    async fn on_output(&mut self, event: OutputEvent) {
        match event {
            OutputEvent::Step { generation, local_rank, step } => {
                if self.generation.stepped(generation, local_rank, step) {
                    let generation = steadfast_core::Generation(generation);
                    self.tell(MemberEvent::Step { generation, step }).await;
                }
            }
            OutputEvent::Dropped { stream, reason } => {
                let text = format!("output of rank {} ({}) is dropped: {reason}", stream.rank, stream.kind.name());
                self.journal.record(stream.generation, "output.dropped", json!({ "rank": stream.rank, "reason": reason }));
                self.say(&text);
            }
            OutputEvent::LogError { path, error } => {
                let text = format!("the log file {} cannot be written: {error}; the worker goes on", path.display());
                self.journal.record(self.generation.number, "output.log_failed", json!({ "path": path, "error": error }));
                self.say(&text);
            }
        }
    }

    async fn on_control(&mut self, request: ControlRequest) {
        match request {
            // Whoever asked may be gone by now.
            ControlRequest::Status(reply) => drop(reply.send(self.status())),
            ControlRequest::Stop(stop, reply) => {
                let grace = stop.grace_seconds.and_then(|grace| Duration::try_from_secs_f64(grace).ok());
                let reason = if stop.reason.is_empty() { "asked for by `steadfast stop`".to_owned() } else { stop.reason };
                let shown = grace.unwrap_or(self.settings.stop_grace);
                let message = format!(
                    "stopping {}: workers get SIGTERM now, and SIGKILL after {:.0} s",
                    self.settings.job,
                    shown.as_secs_f64()
                );
                self.tell(MemberEvent::Operator(OperatorRequest::Stop { grace, reason })).await;
                drop(reply.send(StopReply { message }));
            }
            ControlRequest::Restart(restart, reply) => {
                let reason =
                    if restart.reason.is_empty() { "asked for by `steadfast restart`".to_owned() } else { restart.reason };
                self.tell(MemberEvent::Operator(OperatorRequest::Restart { reason })).await;
                let from_generation = self.generation.number;
                let message = format!("leaving generation {from_generation}; no restart is charged");
                drop(reply.send(RestartReply { from_generation, message }));
            }
        }
    }

    fn status(&self) -> StatusReply {
        let view = self.view.borrow().clone();
        let mut dropped = self.outputs.dropped();
        if self.welcome.dropped_bytes > 0 {
            dropped.push(format!("{} bytes while there was no agent", self.welcome.dropped_bytes));
        }
        let uptime = Duration::from_nanos(clock::monotonic_ns().saturating_sub(self.welcome.started_ns));
        StatusReply {
            job: self.settings.job.clone(),
            node: self.settings.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            generation: view.generation,
            state: view.state,
            reason: view.reason,
            world_size: view.world_size.into(),
            restarts_used: view.restarts_used,
            restarts_allowed: self.settings.max_restarts,
            step: self.generation.step,
            uptime_seconds: uptime.as_secs_f64(),
            workers: self.generation.status(),
            last_fault: view.last_fault,
            log_dir: self.settings.log.run_dir.display().to_string(),
            journal: self.settings.journal.display().to_string(),
            keeper_pid: u32::try_from(self.welcome.keeper_pid).unwrap_or(0),
            agent_pid: std::process::id(),
            agent_incarnation: self.welcome.incarnation,
            command: self.settings.command.argv.iter().map(|each| each.to_string_lossy().into_owned()).collect(),
            dropped,
        }
    }

    async fn look_for_dying(&mut self) {
        for sign in self.dying.look() {
            if let Some(worker) = self.generation.workers.get_mut(&sign.local_rank) {
                worker.dying = true;
            }
            let finding = sign.finding(&self.settings);
            self.journal.record(sign.generation, "worker.dying", json!({ "local_rank": sign.local_rank, "pid": sign.pid, "summary": finding.summary }));
            self.tell(MemberEvent::Finding(finding)).await;
        }
    }

    /// The core has decided that the job is over; what workers left behind must be gone before it is told.
    async fn begin_to_end(&mut self, result: JobResult) -> Result<(), AgentError> {
        self.ending = Some(result);
        if self.generation.number == 0 || self.generation.stopped {
            return self.finish().await;
        }
        let (first_signal, grace_ms) = SWEEP;
        let stop = StopRequest { generation: self.generation.number, first_signal, grace_ms };
        self.ask(&Request::Stop(stop), Vec::new())
    }

    async fn finish(&mut self) -> Result<(), AgentError> {
        let Some(result) = self.ending.take() else { return Ok(()) };
        let exit_code = ending::exit_code(&self.settings, &result);
        let fields = json!({ "result": result, "exit_code": exit_code });
        self.journal.record_incident(result.generation.0, "job.ended", fields);
        ending::pass_on_error_file(&self.settings, &result, &launch::own_environment);
        let summary = ending::summary(&self.settings, &result, &self.outputs, &self.welcome);
        for line in summary.lines() {
            self.outputs.say(line);
        }
        self.outputs.shown(Instant::now() + LAST_WORDS).await;
        self.journal.close(LAST_WORDS);
        self.ask(&Request::Finish { exit_code }, Vec::new())?;
        self.over = true;
        Ok(())
    }

    async fn follow_the_keeper(mut self) -> Result<(), AgentError> {
        let left = avenger::end_what_is_left(&self.welcome).await;
        let fields = json!({ "left": left });
        self.journal.record_incident(self.generation.number, "keeper.lost", fields);
        self.say("the keeper is dead: everything of the job on this node was ended");
        self.outputs.shown(Instant::now() + LAST_WORDS).await;
        self.journal.close(LAST_WORDS);
        Ok(())
    }

    fn say(&self, text: &str) {
        self.outputs.say(&format!("steadfast: {text}"));
    }

    fn ask(&mut self, request: &Request, descriptors: Vec<OwnedFd>) -> Result<(), AgentError> {
        self.link.ask(request, descriptors).map_err(AgentError::Link)
    }

    async fn tell(&self, event: MemberEvent) {
        // The session ends only with this task or by a panic, after which nothing works: the watchdog sees to that.
        if self.session.send(event).await.is_err() {
            self.say("the decision core has stopped; the agent will be replaced");
        }
    }
}

fn exit_event(record: &ExitRecord, finding: Option<steadfast_proto::v1::Finding>) -> MemberEvent {
    let generation = steadfast_core::Generation(record.generation);
    let local_rank = LocalRank(record.local_rank);
    match &record.spawn_error {
        Some(message) => MemberEvent::Started {
            generation,
            failures: vec![spawn_failure(local_rank, message, record.exit)],
        },
        None => MemberEvent::WorkerExited {
            generation,
            local_rank,
            exit: worker_exit(record.exit),
            at: CoreInstant::from_nanos(record.at_ns),
            finding,
        },
    }
}

fn output_settings(settings: &Settings) -> OutputSettings {
    OutputSettings {
        log: settings.log.clone(),
        mode: settings.mode,
        workers: settings.workers,
        role: settings.role.clone(),
        hostname: settings.node.clone(),
        // Checked when the settings were made.
        progress_regex: settings.progress_regex.as_deref().and_then(|text| regex::bytes::Regex::new(text).ok()),
    }
}
