// SPDX-License-Identifier: Apache-2.0
//! The one task that owns the agent's state.
//!
//! Its inputs are handled one at a time, each in the file named after where it comes from: [`notices`] of the keeper,
//! [`effects`] of the decision core, [`requests`] over the control socket, [`health`] of the node, [`checkpoints`] of the
//! job; what the workers print
//! is handled here.

mod checkpoints;
mod coordination;
mod effects;
mod ending;
mod health;
mod notices;
mod numeric;
mod opening;
mod progress;
mod requests;
mod saving;
mod self_check;
mod stall;
mod time_limit;

use std::os::fd::OwnedFd;
use std::time::Duration;

use serde_json::json;
use steadfast_coord::{Hint, HostEffect, Peers, StatusView};
use steadfast_core::{JobResult, MemberEvent};
use steadfast_process::channel::Channel;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::checkpoints::{CheckpointEvent, CheckpointWatch};
use super::control::ControlRequest;
use super::dying::DyingWatch;
use super::fencing::Fencing;
use super::generation::Generation;
use super::jury::{Heard, WordsJury};
use super::kernel_log::FromKernelLog;
use super::link::Link;
use super::node_watch::NodeWatch;
use super::nvml_watch::NvmlWatch;
use super::pages::{PageEvent, PageWatch};
use super::peering::{FromPeers, Peering};
use super::ports::Reservation;
use super::resume::resume;
use super::saving::SaveDesk;
use super::saving_costs::SavingCosts;
use super::self_check::SelfCheck;
use super::stall::{Council, Enquiry, StallDesk};
use super::{AgentError, launch};
use crate::clock;
use crate::hook::Hook;
use crate::journal::Journal;
use crate::keeper::protocol::{Request, Welcome};
use crate::managed_etcd::{self, ManagedEtcd};
use crate::output::{OutputEvent, Outputs};
use crate::redact;
use crate::settings::Settings;

use self::self_check::StopReport;
pub(super) use self::stall::activity;

/// How often the workers are looked at for signs that they are about to be gone.
const LOOK_FOR_DYING: Duration = Duration::from_millis(80);

struct Agent {
    settings: Settings,
    welcome: Welcome,
    link: Link,
    outputs: Outputs,
    output_events: mpsc::UnboundedReceiver<OutputEvent>,
    journal: Journal,
    session: mpsc::Sender<MemberEvent>,
    hints: mpsc::Sender<Hint>,
    known_peers: watch::Receiver<Peers>,
    peering: Option<Peering>,
    managed_etcd: Option<ManagedEtcd>,
    fencing: Fencing,
    view: watch::Receiver<StatusView>,
    generation: Generation,
    dying: DyingWatch,
    hook: Hook,
    pages: PageWatch,
    page_events: mpsc::UnboundedReceiver<PageEvent>,
    stall: StallDesk,
    council: Council,
    jury: WordsJury,
    /// What the workers had said that were stopped.
    heard: Vec<Heard>,
    enquiry: Option<Enquiry>,
    checkpoints: Option<CheckpointWatch>,
    checkpoint_events: mpsc::UnboundedReceiver<CheckpointEvent>,
    saving: SaveDesk,
    saving_costs: SavingCosts,
    node: NodeWatch,
    kernel_log: mpsc::Receiver<FromKernelLog>,
    nvml: NvmlWatch,
    self_check: SelfCheck,
    held_report: Option<StopReport>,
    /// What the core was told of earlier faults of the GPUs.
    told_past: u64,
    reservation: Option<Reservation>,
    ending: Option<JobResult>,
    over: bool,
}

/// Where the inputs that do not come from the keeper arrive.
struct Inputs {
    effects: mpsc::UnboundedReceiver<HostEffect>,
    session: tokio::task::JoinHandle<Result<Option<JobResult>, steadfast_coord::SessionError>>,
    control: mpsc::Receiver<ControlRequest>,
    messages: mpsc::UnboundedReceiver<String>,
}

/// Runs the agent until the job is over or the keeper is dead.
pub(super) async fn run(settings: Settings, channel: Channel) -> Result<(), AgentError> {
    let mut link = Link::new(channel).map_err(AgentError::Link)?;
    let Some((welcome, store_memory)) = opening::be_welcomed(&mut link).await? else {
        return Ok(());
    };
    let opened = opening::open(settings, welcome, link, store_memory).await?;
    let Some((mut agent, mut inputs)) = opened else {
        return Ok(());
    };
    agent.take_charge().await?;
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
            Some(effect) = inputs.effects.recv() => agent.on_effect(effect).await?,
            Some(event) = agent.output_events.recv() => agent.on_output(event).await?,
            Some(event) = agent.page_events.recv() => agent.on_page(event).await?,
            Some(event) = agent.checkpoint_events.recv() => agent.on_checkpoint(event).await?,
            looked = agent.stall.next() => agent.on_looked(looked).await?,
            Some(event) = agent.kernel_log.recv() => agent.on_kernel_log(event).await?,
            Ok(()) = agent.known_peers.changed() => agent.on_known_peers(),
            arrived = next_of_peers(&mut agent.peering) => agent.on_peers(arrived).await?,
            Some(event) = next_of_etcd(&mut agent.managed_etcd) => agent.on_managed_etcd(event)?,
            event = agent.self_check.next() => agent.on_self_check(event).await?,
            event = agent.nvml.next() => agent.on_probe(event).await?,
            Some(request) = inputs.control.recv() => agent.on_control(request).await?,
            Some(text) = inputs.messages.recv() => agent.say(&text),
            _ = heartbeat.tick() => {
                agent.beat()?;
                agent.look_at_time_limit().await?;
            }
            _ = look.tick(), if agent.has_to_look() => agent.look_for_dying().await?,
            ended = &mut inputs.session, if agent.ending.is_none() => match ended {
                // Its last effect, the end of the job, is still to be taken in.
                Ok(Ok(_)) => agent.drain(&mut inputs.effects).await?,
                Ok(Err(error)) if agent.has_not_joined() => agent.give_up_joining(&error).await?,
                Ok(Err(error)) => return Err(AgentError::Session(Some(Box::new(error)))),
                Err(_) => return Err(AgentError::Session(None)),
            },
        }
    }
    Ok(())
}

/// The next that comes from another agent; nothing ever, where there is no talk with others.
async fn next_of_peers(peering: &mut Option<Peering>) -> FromPeers {
    match peering {
        Some(peering) => peering.next().await,
        None => std::future::pending().await,
    }
}

async fn next_of_etcd(etcd: &mut Option<ManagedEtcd>) -> Option<managed_etcd::Event> {
    match etcd {
        Some(etcd) => etcd.next().await,
        None => std::future::pending().await,
    }
}

impl Agent {
    /// Tells the core what is the case, the keeper that we are here, and the user what has changed.
    async fn take_charge(&mut self) -> Result<(), AgentError> {
        let next_port = self.offer_port();
        for worker in self.welcome.workers.clone() {
            self.generation.attach(worker);
        }
        let incarnation = self.welcome.incarnation;
        if incarnation == 1 {
            // The first plan says where to resume.
            self.tell_checkpoints().await?;
        }
        self.tell(resume(&self.welcome, next_port)).await?;
        if let Some(signal) = self.welcome.interrupts.first().copied() {
            self.tell(MemberEvent::Interrupt { signal, count: 1 })
                .await?;
        }
        if self.welcome.time_is_up {
            self.on_time_up().await?;
        }
        if incarnation == 1 {
            self.announce();
        } else {
            let predecessor = self.welcome.predecessor.clone().unwrap_or_default();
            self.say(&format!(
                "the agent {predecessor}; a new one is in charge, the workers went on"
            ));
            let fields = json!({ "incarnation": incarnation, "predecessor": predecessor });
            self.journal
                .record_incident(self.generation.number, "agent.replaced", fields);
        }
        self.ask(&Request::InCharge, Vec::new())?;
        self.look_after_probe()
    }

    fn announce(&mut self) {
        let settings = &self.settings;
        let command = redact::command(&settings.command.argv);
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

    async fn drain(
        &mut self,
        effects: &mut mpsc::UnboundedReceiver<HostEffect>,
    ) -> Result<(), AgentError> {
        while let Ok(effect) = effects.try_recv() {
            self.on_effect(effect).await?;
        }
        if self.ending.is_none() && !self.over {
            Err(AgentError::Session(None))
        } else {
            Ok(())
        }
    }

    async fn on_output(&mut self, event: OutputEvent) -> Result<(), AgentError> {
        match event {
            OutputEvent::Step {
                generation,
                local_rank,
                step,
            } => {
                let since_ns = self.fencing.read_since_ns();
                let news = self
                    .generation
                    .printed(generation, local_rank, step, since_ns);
                self.tell_step(news).await?;
            }
            OutputEvent::Loss {
                generation,
                local_rank,
                step,
                loss,
            } => self.note_loss(generation, local_rank, step, loss).await?,
            OutputEvent::Dropped { stream, reason } => {
                let text = format!(
                    "output of rank {} ({}) is dropped: {reason}",
                    stream.rank,
                    stream.kind.name()
                );
                self.journal.record(
                    stream.generation,
                    "output.dropped",
                    json!({ "rank": stream.rank, "reason": reason }),
                );
                self.say(&text);
            }
            OutputEvent::LogError { path, error } => {
                let text = format!(
                    "the log file {} cannot be written: {error}; the worker goes on",
                    path.display()
                );
                self.journal.record(
                    self.generation.number,
                    "output.log_failed",
                    json!({ "path": path, "error": error }),
                );
                self.say(&text);
            }
        }
        Ok(())
    }

    /// Whether this node has not had any part in the job yet.
    fn has_not_joined(&self) -> bool {
        self.generation.number == 0 && self.settings.coordination.is_fenced()
    }

    /// Whether there are workers to look at, here or, since this node leads, elsewhere.
    fn has_to_look(&self) -> bool {
        self.dying.has_workers() || self.view.borrow().leader_state.is_some()
    }

    async fn look_for_dying(&mut self) -> Result<(), AgentError> {
        self.fencing.look(clock::monotonic_ns());
        self.tell_progress().await?;
        self.look_for_stall().await?;
        for sign in self.dying.look() {
            if let Some(worker) = self.generation.workers.get_mut(&sign.local_rank) {
                worker.dying = true;
            }
            let finding = sign.finding(&self.settings);
            self.journal.record(sign.generation, "worker.dying", json!({ "local_rank": sign.local_rank, "pid": sign.pid, "summary": finding.summary }));
            let failed =
                finding.signal.is_some() || finding.exit_code.is_some_and(|code| code != 0);
            if failed && !self.generation.stopped && !self.generation.failure_told {
                self.generation.failure_told = true;
                self.say(&format!(
                    "generation {}: rank {} (pid {}) {}",
                    sign.generation, sign.rank, sign.pid, finding.summary
                ));
            }
            self.tell(MemberEvent::Finding(finding)).await?;
        }
        Ok(())
    }

    /// Once in each heartbeat.
    fn beat(&mut self) -> Result<(), AgentError> {
        self.close_incidents();
        self.look_after_probe()?;
        self.look_at_node();
        self.ask(&Request::Alive, Vec::new())
    }

    fn say(&self, text: &str) {
        self.outputs.say(&format!("steadfast: {text}"));
    }

    fn ask(&mut self, request: &Request, descriptors: Vec<OwnedFd>) -> Result<(), AgentError> {
        self.link
            .ask(request, descriptors)
            .map_err(AgentError::Link)
    }

    async fn tell(&self, event: MemberEvent) -> Result<(), AgentError> {
        if self.ending.is_some() {
            // Everything is decided, and the session has ended.
            return Ok(());
        }
        // A session that has ended does not listen any more; what it has come to is taken in next.
        let _has_ended = self.session.send(event).await;
        Ok(())
    }
}
