// SPDX-License-Identifier: Apache-2.0
//! The leader's end of the streams. Every agent has one, so that it can lead at any time; only members can connect.

mod answers;
mod connection;
mod listener;
mod registry;
mod service;
mod session;
mod silence;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use steadfast_core::{Generation, NodeName};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::registry::{Ask, Registry};
use super::event::PeerEvent;
use super::identity::{AgentEndpoint, Fingerprint, PeerIdentity};
use super::tls::AcceptedCertificates;
use super::{LARGEST_EVIDENCE, now};

use self::listener::BindError;

/// How many events wait to be taken.
const WAITING_EVENTS: usize = 1024;
/// How much evidence of all nodes together is asked for and held at a time, in bytes.
const ALL_EVIDENCE: usize = 64 * 1024 * 1024;

/// How patient a server is, and for which job.
#[derive(Debug, Clone)]
pub(crate) struct PeerSettings {
    /// Name of the job; others are turned away.
    pub(crate) job: String,
    /// Time between two heartbeats of a node; clients are told.
    pub(crate) heartbeat: Duration,
    /// After how long without one a node is called silent. Noticed within `silent_after` and a tenth of it.
    pub(crate) silent_after: Duration,
    /// After how long a silent stream is given up.
    pub(crate) dropped_after: Duration,
}

impl PeerSettings {
    /// Half a second between heartbeats, silent after two and a half, given up after fifteen.
    pub(crate) fn new(job: impl Into<String>) -> Self {
        Self {
            job: job.into(),
            heartbeat: Duration::from_millis(500),
            silent_after: Duration::from_millis(2500),
            dropped_after: Duration::from_secs(15),
        }
    }
}

/// What may be asked of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EvidenceBounds {
    /// The generation that is asked about.
    pub(crate) generation: Generation,
    /// How large the answer may be, in bytes; at most 4 MiB.
    pub(crate) max_bytes: u64,
    /// How long collecting may take.
    pub(crate) within: Duration,
}

/// Why a node could not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OrderError {
    /// It has no stream.
    #[error("the node is not connected")]
    NotConnected,
    /// It owes several answers already.
    #[error("the node has not answered the last requests yet")]
    Busy,
    /// Too much evidence is on its way or held already.
    #[error("too much evidence is being collected already")]
    NoRoom,
}

/// A listening server. Everything ends when it is dropped.
#[derive(Debug)]
pub(crate) struct PeerServer {
    shared: Arc<Shared>,
    endpoint: AgentEndpoint,
    _stop: DropGuard,
}

/// What the tasks of a server share.
#[derive(Debug)]
struct Shared {
    settings: PeerSettings,
    accepted: AcceptedCertificates,
    registry: Mutex<Registry>,
    events: mpsc::Sender<PeerEvent>,
    /// A permit is a byte.
    evidence_room: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Shared {
    /// Never held across a wait.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeerServer {
    /// Listens at a port of the kernel's choice on `host`, this node's name or address as the others know it. Nobody is
    /// accepted before [`Self::set_members`]. Must be called on a tokio runtime.
    ///
    /// # Errors
    ///
    /// When `host` means nothing, or no port can be had.
    pub(crate) async fn bind(
        host: &str,
        identity: &PeerIdentity,
        settings: PeerSettings,
    ) -> Result<(Self, mpsc::Receiver<PeerEvent>), BindError> {
        let (listener, address) = listener::bind(host).await?;
        let (events, receiver) = mpsc::channel(WAITING_EVENTS);
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            settings,
            accepted: AcceptedCertificates::default(),
            registry: Mutex::default(),
            events,
            evidence_room: Arc::new(Semaphore::new(ALL_EVIDENCE)),
            stop: stop.clone(),
        });
        service::serve(listener, identity, &shared)?;
        tokio::spawn(silence::watch(Arc::clone(&shared)));
        let server = Self {
            shared,
            endpoint: AgentEndpoint {
                address,
                certificate: identity.fingerprint(),
            },
            _stop: stop.drop_guard(),
        };
        Ok((server, receiver))
    }

    /// What belongs into this node's records.
    pub(crate) const fn endpoint(&self) -> &AgentEndpoint {
        &self.endpoint
    }

    /// Accepts these nodes, each with its certificate, and no others from now on. A stream whose node is not among them
    /// stays: a member whose record is gone may be alive, and its progress tells. A stream whose node has another
    /// certificate now is ended.
    pub(crate) fn set_members(&self, members: impl IntoIterator<Item = (NodeName, Fingerprint)>) {
        let members: BTreeMap<NodeName, Fingerprint> = members.into_iter().collect();
        self.shared
            .registry()
            .end_replaced(|node| members.get(node));
        let accepted = members.into_iter().map(|(node, print)| (print, node));
        self.shared.accepted.replace(accepted.collect());
    }

    /// The same for one node: what its record says now, or that it has none.
    pub(crate) fn set_member(&self, node: &NodeName, certificate: Option<Fingerprint>) {
        self.shared.accepted.set(node, certificate);
        let newer = |other: &NodeName| certificate.as_ref().filter(|_| other == node);
        self.shared.registry().end_replaced(newer);
    }

    /// Asks a node for evidence. Returns the number under which [`PeerEvent::Evidence`] brings the answer.
    ///
    /// # Errors
    ///
    /// [`OrderError`]; nothing was sent then.
    pub(crate) fn request_evidence(
        &self,
        node: &NodeName,
        bounds: EvidenceBounds,
    ) -> Result<u64, OrderError> {
        let max_bytes = bounds.max_bytes.min(LARGEST_EVIDENCE);
        let permits = u32::try_from(max_bytes).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.shared.evidence_room)
            .try_acquire_many_owned(permits)
            .map_err(|_| OrderError::NoRoom)?;
        let bounds = EvidenceBounds {
            max_bytes,
            ..bounds
        };
        self.shared
            .registry()
            .ask(node, |id| Ask { id, bounds, room })
    }
}

#[cfg(test)]
impl PeerServer {
    /// How much more evidence may be asked for, in bytes.
    pub(super) fn evidence_room(&self) -> usize {
        self.shared.evidence_room.available_permits()
    }

    /// Whether the queue of events is not full.
    pub(super) fn has_room_for_events(&self) -> bool {
        self.shared.events.capacity() > 0
    }
}
