// SPDX-License-Identifier: Apache-2.0
//! The decision core at work: its session, on the store that the keeper keeps in memory for this job.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Duration;

use steadfast_coord::embedded::{EmbeddedStore, FileMedium};
use steadfast_coord::{
    HostEffect, SessionError, SessionPorts, SessionSettings, StatusView, run_session,
};
use steadfast_core::{Instant, JobResult, LeaderSettings, MemberEvent, MemberSettings};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::AgentError;
use crate::clock;

/// Nobody but this node is there to notice that it does not renew its lease.
const LEASE: Duration = Duration::from_hours(1);

/// The agent's ends of the lines to the session.
#[derive(Debug)]
pub(super) struct Decisions {
    /// What happened on this node.
    pub(super) events: mpsc::Sender<MemberEvent>,
    /// What the core wants done.
    pub(super) effects: mpsc::UnboundedReceiver<HostEffect>,
    /// How things stand.
    pub(super) status: watch::Receiver<StatusView>,
    /// Ends when the job has ended, or when the session cannot go on.
    pub(super) session: JoinHandle<Result<Option<JobResult>, SessionError>>,
}

impl Decisions {
    /// Opens the store in `memory` and starts the session. What an earlier agent wrote there is found again.
    pub(super) fn start(
        member: MemberSettings,
        memory: OwnedFd,
        resumed: bool,
    ) -> Result<Decisions, AgentError> {
        let store = EmbeddedStore::open(FileMedium::new(File::from(memory)))
            .map_err(|source| AgentError::Store(Box::new(source)))?;
        let settings = SessionSettings {
            member,
            leader: LeaderSettings::default(),
            lease_ttl: LEASE,
            witness_lease_ttl: LEASE,
            resumed,
        };
        let (events, event_receiver) = mpsc::channel(1024);
        let (_hints, hint_receiver) = mpsc::channel(1);
        let (effect_sender, effects) = mpsc::unbounded_channel();
        let (status_sender, status) = watch::channel(StatusView::default());
        let ports = SessionPorts {
            events: event_receiver,
            hints: hint_receiver,
            effects: effect_sender,
            status: status_sender,
        };
        let clock = || Instant::from_nanos(clock::monotonic_ns());
        let session = tokio::spawn(run_session(store, settings, clock, ports));
        Ok(Decisions {
            events,
            effects,
            status,
            session,
        })
    }
}
