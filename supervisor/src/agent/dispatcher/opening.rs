// SPDX-License-Identifier: Apache-2.0
//! The beginning of an agent: the keeper's welcome, what it needs on this node, and its part in the job.

use std::error::Error;
use std::io;
use std::os::fd::OwnedFd;

use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::ending::LAST_WORDS;
use super::{Agent, Inputs};
use crate::agent::checkpoints::{CheckpointEvent, CheckpointWatch};
use crate::agent::control::{self, ControlRequest};
use crate::agent::decisions::{self, Decisions, JobStore};
use crate::agent::dying::DyingWatch;
use crate::agent::fencing::Fencing;
use crate::agent::generation::Generation;
use crate::agent::jury::WordsJury;
use crate::agent::kernel_log::FromKernelLog;
use crate::agent::link::{Arrival, Link};
use crate::agent::node_watch::NodeWatch;
use crate::agent::nvml_watch::NvmlWatch;
use crate::agent::pages::{PageEvent, PageWatch};
use crate::agent::peering::Peering;
use crate::agent::saving::SaveDesk;
use crate::agent::saving_costs::SavingCosts;
use crate::agent::self_check::SelfCheck;
use crate::agent::stall::{Council, StallDesk};
use crate::agent::{AgentError, kernel_log, launch, membership};
use crate::exit_code::ExitCode;
use crate::hook::Hook;
use crate::journal::{Journal, JournalIdentity};
use crate::keeper::protocol::{Notice, Request, Welcome};
use crate::keeper::runtime_dir::SOCKET_NAME;
use crate::managed_etcd::ManagedEtcd;
use crate::output::{ConsoleTargets, OutputSettings, Outputs};
use crate::settings::{Coordination, Settings};

/// This node's lines to the rest of the job.
struct Joined {
    peering: Option<Peering>,
    managed_etcd: Option<ManagedEtcd>,
    decisions: Decisions,
}

/// Waits for the keeper's first notice. `None` when the keeper is dead already.
pub(super) async fn be_welcomed(link: &mut Link) -> Result<Option<(Welcome, OwnedFd)>, AgentError> {
    let strange = |what: &str| AgentError::Link(io::Error::other(what.to_owned()));
    let Some(arrival) = link.next().await.map_err(AgentError::Link)? else {
        return Ok(None);
    };
    let Arrival {
        notice: Notice::Welcome(welcome),
        descriptors,
    } = arrival
    else {
        return Err(strange("the first notice is no welcome"));
    };
    let memory = descriptors
        .into_iter()
        .next()
        .ok_or_else(|| strange("the store's memory is missing"))?;
    Ok(Some((welcome, memory)))
}

/// Opens everything. `None` when this node cannot take part in the job at all, which has been said.
pub(super) async fn open(
    settings: Settings,
    welcome: Welcome,
    mut link: Link,
    store_memory: OwnedFd,
) -> Result<Option<(Agent, Inputs)>, AgentError> {
    let (output_sender, output_events) = mpsc::unbounded_channel();
    let (message_sender, messages) = mpsc::unbounded_channel();
    let console = ConsoleTargets::inherited().map_err(|source| AgentError::System {
        what: "use the console",
        source,
    })?;
    let outputs = Outputs::new(output_settings(&settings), console, output_sender)
        .map_err(AgentError::Output)?;
    let mut journal = open_journal(&settings, message_sender)?;
    let control = serve_control(&welcome, &outputs);
    let hook = Hook::new(&welcome.runtime_dir);
    let (pages, page_events) = watch_pages(&hook)?;
    let (checkpoints, checkpoint_events) = watch_checkpoints(&settings)?;
    let node = NodeWatch::new(&settings, welcome.started_ns, &launch::own_environment);
    let kernel_log = watch_kernel_log(&settings, &welcome)?;
    let jury = WordsJury::new(settings.fault_rules.clone());
    let joined = match join(&settings, &welcome, store_memory, (&outputs, &jury)).await {
        Ok(joined) => joined,
        Err(error) if welcome.incarnation == 1 && settings.coordination.is_fenced() => {
            decline(&settings, &error, &outputs, &mut journal, &mut link).await?;
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let Joined {
        peering,
        managed_etcd,
        decisions,
    } = joined;
    let agent = Agent {
        generation: Generation::with_bounds(settings.stall.bounds.clone()),
        stall: StallDesk::new(settings.stall.clone()),
        council: Council::default(),
        jury,
        heard: Vec::new(),
        enquiry: None,
        dying: DyingWatch::default(),
        hook,
        pages,
        page_events,
        checkpoints,
        checkpoint_events,
        saving: SaveDesk::default(),
        saving_costs: SavingCosts::default(),
        node,
        kernel_log,
        nvml: watch_nvml(&settings),
        self_check: SelfCheck::new(settings.self_check.clone()),
        held_report: None,
        told_past: 0,
        reservation: None,
        ending: None,
        over: false,
        session: decisions.events,
        hints: decisions.hints,
        known_peers: decisions.peers,
        peering,
        managed_etcd,
        fencing: Fencing::new(settings.elastic.witness),
        view: decisions.status,
        settings,
        welcome,
        link,
        outputs,
        output_events,
        journal,
    };
    Ok(Some((
        agent,
        Inputs {
            effects: decisions.effects,
            session: decisions.session,
            control,
            messages,
        },
    )))
}

/// Without its socket a job goes on all the same.
fn serve_control(welcome: &Welcome, outputs: &Outputs) -> mpsc::Receiver<ControlRequest> {
    let (sender, requests) = mpsc::channel(16);
    if let Err(error) = control::serve(&welcome.runtime_dir.join(SOCKET_NAME), sender) {
        outputs.say(&format!(
            "steadfast: status, stop and restart do not work: no control socket ({error})"
        ));
    }
    requests
}

fn watch_kernel_log(
    settings: &Settings,
    welcome: &Welcome,
) -> Result<mpsc::Receiver<FromKernelLog>, AgentError> {
    kernel_log::start(settings, &welcome.runtime_dir).map_err(|source| AgentError::System {
        what: "start the kernel log's thread",
        source,
    })
}

fn watch_nvml(settings: &Settings) -> NvmlWatch {
    let mut nvml = NvmlWatch::new(&settings.nvml);
    if kernel_log::may_be_served(settings) {
        nvml.expect_service();
    }
    nvml
}

fn watch_pages(hook: &Hook) -> Result<(PageWatch, mpsc::UnboundedReceiver<PageEvent>), AgentError> {
    let (sender, events) = mpsc::unbounded_channel();
    let pages = PageWatch::start(hook.clone(), sender).map_err(|source| AgentError::System {
        what: "start the thread for progress pages",
        source,
    })?;
    Ok((pages, events))
}

/// Looks after the checkpoints, if it is known where they are.
fn watch_checkpoints(
    settings: &Settings,
) -> Result<
    (
        Option<CheckpointWatch>,
        mpsc::UnboundedReceiver<CheckpointEvent>,
    ),
    AgentError,
> {
    let (sender, events) = mpsc::unbounded_channel();
    let watch = settings
        .checkpoints
        .clone()
        .map(|checkpoints| CheckpointWatch::start(checkpoints, &settings.node, sender))
        .transpose()
        .map_err(|source| AgentError::System {
            what: "start the thread for checkpoints",
            source,
        })?;
    Ok((watch, events))
}

fn open_journal(
    settings: &Settings,
    messages: mpsc::UnboundedSender<String>,
) -> Result<Journal, AgentError> {
    let identity = JournalIdentity {
        job: settings.job.clone(),
        node: settings.node.clone(),
    };
    let report = move |text| drop(messages.send(text));
    Journal::open(settings.journal.clone(), identity, report).map_err(|source| AgentError::System {
        what: "start the journal's thread",
        source,
    })
}

/// Says why this node cannot take part in the job, and asks the keeper to end with that.
async fn decline(
    settings: &Settings,
    error: &AgentError,
    outputs: &Outputs,
    journal: &mut Journal,
    link: &mut Link,
) -> Result<(), AgentError> {
    let exit_code = ExitCode::Configuration as u8;
    let error = with_cause(error);
    let fields = json!({ "error": error, "exit_code": exit_code });
    journal.record_incident(0, "job.not_joined", fields);
    outputs.say(&format!(
        "steadfast: {} cannot join the job: {error}. Nothing was started",
        settings.node
    ));
    outputs.shown(Instant::now() + LAST_WORDS).await;
    journal.close(LAST_WORDS);
    link.ask(&Request::Finish { exit_code }, Vec::new())
        .map_err(AgentError::Link)
}

/// Takes up the talk with the other agents, and opens the job's store.
async fn join(
    settings: &Settings,
    welcome: &Welcome,
    memory: OwnedFd,
    (outputs, jury): (&Outputs, &WordsJury),
) -> Result<Joined, AgentError> {
    let mut peering = None;
    if settings.coordination.is_fenced() {
        match Peering::start(settings, welcome.started_ns).await {
            Ok(started) => peering = Some(started),
            Err(error) => outputs.say(&format!(
                "steadfast: no talk with the supervisors of other nodes ({error}); the job works, but a node that falls \
                 silent is noticed later"
            )),
        }
    }
    let endpoint = peering.as_ref().map(Peering::endpoint);
    let member = membership::member_settings(settings, welcome, endpoint);
    let (store, managed_etcd) = open_store(settings, welcome, memory).await?;
    let session = decisions::session_settings(
        member,
        &settings.coordination,
        settings,
        jury,
        welcome.incarnation > 1,
    );
    Ok(Joined {
        peering,
        managed_etcd,
        decisions: Decisions::start(session, store)?,
    })
}

/// The job's store, and the etcd under it if that is the job's own.
async fn open_store(
    settings: &Settings,
    welcome: &Welcome,
    memory: OwnedFd,
) -> Result<(JobStore, Option<ManagedEtcd>), AgentError> {
    if let Coordination::Etcd(address) = &settings.coordination {
        return Ok((JobStore::in_etcd(address, &settings.elastic)?, None));
    }
    let etcd = membership::managed_etcd(settings, welcome)
        .await
        .map_err(AgentError::ManagedEtcd)?;
    let store = match &etcd {
        Some(etcd) => JobStore::Managed(etcd.store()),
        None => JobStore::Embedded(memory),
    };
    Ok((store, etcd))
}

fn with_cause(error: &AgentError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn output_settings(settings: &Settings) -> OutputSettings {
    OutputSettings {
        log: settings.log.clone(),
        mode: settings.mode,
        workers: settings.workers,
        role: settings.role.clone(),
        hostname: settings.node.clone(),
        // Checked when the settings were made.
        progress_regex: settings
            .progress_regex
            .as_deref()
            .and_then(|text| regex::bytes::Regex::new(text).ok()),
    }
}
