// SPDX-License-Identifier: Apache-2.0
//! This agent among the others: a server for when this node leads, a client that follows whoever does.

use std::collections::BTreeSet;
use std::time::Duration;

use steadfast_coord::{Hint, Peers};
use steadfast_core::{AgentEndpoint, Generation, Incarnation, NodeName};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::clocks::Clocks;
use crate::peers::{
    self, Digest, EvidenceBounds, Introduction, LinkState, PeerClient, PeerEvent, PeerIdentity,
    PeerOrder, PeerServer, PeerSettings, PeerTarget,
};
use crate::settings::Settings;

/// Orders of the leader that wait.
const WAITING_ORDERS: usize = 4;
/// What all nodes together may send as evidence at a time, in bytes, and what one may send at most and at least.
const ALL_EVIDENCE: usize = 48 * 1024 * 1024;
const MOST_EVIDENCE: usize = 1024 * 1024;
const LEAST_EVIDENCE: usize = 16 * 1024;

/// Both ends of the talk between agents. All tasks end with it.
#[derive(Debug)]
pub(super) struct Peering {
    node: NodeName,
    server: PeerServer,
    events: mpsc::Receiver<PeerEvent>,
    target: watch::Sender<Option<PeerTarget>>,
    digest: watch::Sender<Digest>,
    orders: mpsc::Receiver<PeerOrder>,
    client: JoinHandle<()>,
    link: watch::Receiver<LinkState>,
    silent: BTreeSet<NodeName>,
    clocks: Clocks,
}

/// Something that came from another agent.
#[derive(Debug)]
pub(super) enum FromPeers {
    /// About another node, while this one leads.
    Event(PeerEvent),
    /// From the leader.
    Order(PeerOrder),
}

impl Peering {
    /// Begins to listen on this node's address.
    ///
    /// # Errors
    ///
    /// In words. The job works without, only slower.
    pub(super) async fn start(settings: &Settings, incarnation: u64) -> Result<Peering, String> {
        let node = NodeName(settings.node.clone());
        let identity = PeerIdentity::generate().map_err(|error| error.to_string())?;
        let peer_settings = PeerSettings::new(&settings.job);
        let (server, events) = PeerServer::bind(&settings.address, &identity, peer_settings)
            .await
            .map_err(|error| with_cause(&error))?;
        let (target, targets) = watch::channel(None);
        let (digest, digests) = watch::channel(Digest::default());
        let (order_sender, orders) = mpsc::channel(WAITING_ORDERS);
        let introduction = Introduction {
            job: settings.job.clone(),
            node: node.clone(),
            incarnation: Incarnation(incarnation),
        };
        let client = PeerClient::new(identity, introduction);
        let link = client.link();
        let client = tokio::spawn(client.run(targets, digests, order_sender));
        Ok(Peering {
            node,
            server,
            events,
            target,
            digest,
            orders,
            client,
            link,
            silent: BTreeSet::new(),
            clocks: Clocks::default(),
        })
    }

    /// What belongs into this node's records.
    pub(super) fn endpoint(&self) -> AgentEndpoint {
        let endpoint = self.server.endpoint();
        AgentEndpoint {
            address: endpoint.address.clone(),
            certificate: endpoint.certificate.to_string(),
        }
    }

    /// Follows who leads, and, where this node does, who may come.
    pub(super) fn follow(&self, known: &Peers) {
        let leader = known.leader.as_ref().filter(|peer| peer.node != self.node);
        let target = leader.and_then(|peer| {
            Some(PeerTarget {
                node: peer.node.clone(),
                endpoint: peers::AgentEndpoint {
                    address: peer.agent.address.clone(),
                    // A record that was written by hand: there is nobody there who could be trusted.
                    certificate: peer.agent.certificate.parse().ok()?,
                },
            })
        });
        self.target.send_if_modified(|shown| {
            let changed = *shown != target;
            *shown = target;
            changed
        });
        let members = known.members.iter().filter_map(|peer| {
            let certificate = peer.agent.certificate.parse().ok()?;
            Some((peer.node.clone(), certificate))
        });
        self.server.set_members(members);
    }

    /// Why there is no stream to the leader, in words, if there should be one.
    pub(super) fn trouble(&self) -> Option<String> {
        match &*self.link.borrow() {
            LinkState::Down { reason } => Some(format!("no stream to the leader: {reason}")),
            LinkState::NoTarget | LinkState::Connecting | LinkState::Up { .. } => None,
        }
    }

    /// What the next heartbeats say.
    pub(super) fn show(&self, digest: Digest) {
        self.digest.send_if_modified(|shown| {
            let changed = *shown != digest;
            *shown = digest;
            changed
        });
    }

    /// Whether the stream to the leader stands.
    pub(super) fn has_leader(&self) -> bool {
        matches!(&*self.link.borrow(), LinkState::Up { .. })
    }

    /// Whether this node was connected, and nothing is heard of it any more.
    pub(super) fn is_silent(&self, node: &NodeName) -> bool {
        self.silent.contains(node)
    }

    /// Asks these nodes for what they see of a generation. Returns for each the number of the request, or why it was not
    /// asked.
    pub(super) fn ask(
        &self,
        generation: Generation,
        nodes: &[NodeName],
        within: Duration,
    ) -> Vec<(NodeName, Result<u64, String>)> {
        let share = ALL_EVIDENCE / nodes.len().max(1);
        let max_bytes = share.clamp(LEAST_EVIDENCE, MOST_EVIDENCE);
        let bounds = EvidenceBounds {
            generation,
            max_bytes: u64::try_from(max_bytes).unwrap_or(u64::MAX),
            within,
        };
        let ask = |node: &NodeName| {
            if self.is_silent(node) {
                return Err("nothing is heard of its supervisor".to_owned());
            }
            let asked = self.server.request_evidence(node, bounds);
            asked.map_err(|error| error.to_string())
        };
        nodes.iter().map(|node| (node.clone(), ask(node))).collect()
    }

    /// The next thing that comes from another agent. Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> FromPeers {
        tokio::select! {
            Some(event) = self.events.recv() => FromPeers::Event(event),
            Some(order) = self.orders.recv() => FromPeers::Order(order),
            else => std::future::pending().await,
        }
    }

    /// What an event means for the decisions of a leader.
    pub(super) fn hints(&mut self, event: &PeerEvent) -> Vec<Hint> {
        let (node, silent, step) = match event {
            PeerEvent::Connected { node, .. } => (node, false, None),
            PeerEvent::Digest { node, digest, .. } => {
                let step = digest.step.map(|(step, _)| (digest.generation, step));
                (node, false, step)
            }
            PeerEvent::Silent { node, .. } | PeerEvent::Closed { node, .. } => (node, true, None),
            PeerEvent::Refused { .. } | PeerEvent::Evidence { .. } => return Vec::new(),
        };
        let is_news = if silent {
            self.silent.insert(node.clone())
        } else {
            self.silent.remove(node)
        };
        let silence = is_news.then(|| Hint::Silence {
            node: node.clone(),
            silent,
        });
        let step = step.map(|(generation, step)| Hint::Step { generation, step });
        let clock = match event {
            PeerEvent::Digest {
                node,
                clock_ahead_ms: Some(ahead_ms),
                ..
            } => self
                .clocks
                .note(node, *ahead_ms)
                .map(|ahead_ms| Hint::Clock {
                    node: node.clone(),
                    ahead_ms,
                }),
            _ => None,
        };
        silence.into_iter().chain(step).chain(clock).collect()
    }
}

impl Drop for Peering {
    fn drop(&mut self) {
        self.client.abort();
    }
}

fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
