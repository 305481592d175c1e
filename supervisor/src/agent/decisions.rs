// SPDX-License-Identifier: Apache-2.0
//! The decision core at work: its session, on the store that the job has.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use steadfast_coord::embedded::{EmbeddedStore, FileMedium};
use steadfast_coord::etcd::EtcdStore;
use steadfast_coord::{
    Hint, HostEffect, Peers, SessionError, SessionPorts, SessionSettings, StatusView, Store,
    StoreError, run_session,
};
use steadfast_core::{Instant, JobResult, LeaderSettings, MemberEvent, MemberSettings};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::AgentError;
use super::jury::WordsJury;
use super::saving_costs::UNTIL_KNOWN;
use crate::clock;
use crate::settings::{CheckpointEvery, Coordination, Elastic, EtcdAddress, Settings};

/// Nobody but this node is there to notice that it does not renew its lease.
const LONE_LEASE: Duration = Duration::from_hours(1);
/// How long a store that cannot be reached at the start is asked again: it may be starting, too.
const PATIENCE: Duration = Duration::from_secs(20);
/// Events that wait while the store does not answer.
const WAITING_EVENTS: usize = 16 * 1024;
/// Hints that wait; more are dropped, since the next one says as much.
const WAITING_HINTS: usize = 1024;

/// The agent's ends of the lines to the session.
#[derive(Debug)]
pub(super) struct Decisions {
    /// What happened on this node.
    pub(super) events: mpsc::Sender<MemberEvent>,
    /// What other agents tell.
    pub(super) hints: mpsc::Sender<Hint>,
    /// What the core wants done.
    pub(super) effects: mpsc::UnboundedReceiver<HostEffect>,
    /// How things stand.
    pub(super) status: watch::Receiver<StatusView>,
    /// Which other agents there are.
    pub(super) peers: watch::Receiver<Peers>,
    /// Ends when the job has ended, or when the session cannot go on.
    pub(super) session: JoinHandle<Result<Option<JobResult>, SessionError>>,
}

/// The store of a job.
#[derive(Debug)]
pub(super) enum JobStore {
    /// In the keeper's memory.
    Embedded(OwnedFd),
    /// In an etcd.
    Etcd(EtcdStore),
    /// In an etcd that may still be starting.
    Managed(watch::Receiver<Option<EtcdStore>>),
}

impl JobStore {
    /// A store in the etcd that the user names.
    pub(super) fn in_etcd(
        address: &EtcdAddress,
        elastic: &Elastic,
    ) -> Result<JobStore, AgentError> {
        let refused = |error: &dyn std::fmt::Display| {
            AgentError::Store(Box::new(StoreError::Refused(error.to_string())))
        };
        let settings = address
            .settings(elastic.shortest_lease())
            .map_err(|error| refused(&error))?;
        let store = EtcdStore::new(settings).map_err(|error| refused(&error))?;
        Ok(JobStore::Etcd(store))
    }
}

/// What the session must know beside the member's own settings.
pub(super) fn session_settings(
    member: MemberSettings,
    coordination: &Coordination,
    settings: &Settings,
    jury: &WordsJury,
    resumed: bool,
) -> SessionSettings {
    let elastic = &settings.elastic;
    let shared = coordination.is_fenced();
    let lease = |ttl| if shared { ttl } else { LONE_LEASE };
    SessionSettings {
        leader: LeaderSettings {
            shared,
            save_timeout: member.save_timeout,
            save_every: match settings.checkpoint_every {
                CheckpointEvery::Never => None,
                CheckpointEvery::Auto => Some(UNTIL_KNOWN),
                CheckpointEvery::Time(time) => Some(time),
            },
            ..LeaderSettings::default()
        },
        member,
        jury: Some(Arc::new(jury.clone())),
        lease_ttl: lease(elastic.lease),
        witness_lease_ttl: lease(elastic.witness_lease),
        patience: PATIENCE,
        resumed,
    }
}

impl Decisions {
    /// Opens the store and starts the session. What an earlier agent wrote there is found again.
    pub(super) fn start(
        settings: SessionSettings,
        store: JobStore,
    ) -> Result<Decisions, AgentError> {
        let (events, event_receiver) = mpsc::channel(WAITING_EVENTS);
        let (hints, hint_receiver) = mpsc::channel(WAITING_HINTS);
        let (effect_sender, effects) = mpsc::unbounded_channel();
        let (status_sender, status) = watch::channel(StatusView::default());
        let (peer_sender, peers) = watch::channel(Peers::default());
        let ports = SessionPorts {
            events: event_receiver,
            hints: hint_receiver,
            effects: effect_sender,
            status: status_sender,
            peers: peer_sender,
        };
        let session = match store {
            JobStore::Embedded(memory) => {
                let store = EmbeddedStore::open(FileMedium::new(File::from(memory)))
                    .map_err(|source| AgentError::Store(Box::new(source)))?;
                tokio::spawn(run(store, settings, ports))
            }
            JobStore::Etcd(store) => tokio::spawn(run(store, settings, ports)),
            JobStore::Managed(mut stores) => tokio::spawn(async move {
                let store = match stores.wait_for(Option::is_some).await {
                    Ok(store) => store.clone(),
                    Err(_) => None,
                };
                match store {
                    Some(store) => Box::pin(run(store, settings, ports)).await,
                    None => Err(SessionError::Store {
                        operation: "use the job's own etcd",
                        source: StoreError::Unavailable("it is not run any more".to_owned()),
                    }),
                }
            }),
        };
        Ok(Decisions {
            events,
            hints,
            effects,
            status,
            peers,
            session,
        })
    }
}

async fn run<S: Store>(
    store: S,
    settings: SessionSettings,
    ports: SessionPorts,
) -> Result<Option<JobResult>, SessionError> {
    let clock = || Instant::from_nanos(clock::monotonic_ns());
    run_session(store, settings, clock, ports).await
}
