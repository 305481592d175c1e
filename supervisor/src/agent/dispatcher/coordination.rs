// SPDX-License-Identifier: Apache-2.0
//! What concerns the other nodes of the job: the fence, the other agents, an etcd of the job's own.

use std::time::Duration;

use serde_json::json;
use steadfast_coord::SessionError;
use steadfast_core::{Generation, Instant, LeaseId};

use super::Agent;
use crate::agent::AgentError;
use crate::agent::peering::{FromPeers, Peering};
use crate::clock;
use crate::keeper::protocol::Request;
use crate::managed_etcd;
use crate::peers::{Digest, PeerEvent, PeerOrder};

impl Agent {
    /// What vouches for this node's workers has changed: the keeper must know before anything else is done.
    pub(super) fn on_fence(
        &mut self,
        lease: (LeaseId, Instant),
        generation: Generation,
        witness: Duration,
    ) -> Result<(), AgentError> {
        self.fencing.renew(lease, generation, witness);
        self.tell_fence()
    }

    fn tell_fence(&mut self) -> Result<(), AgentError> {
        let now_ns = clock::monotonic_ns();
        match self.fencing.request(&self.generation, now_ns) {
            Some(request) => self.ask(&request, Vec::new()),
            None => Ok(()),
        }
    }

    /// A worker has made a step, or some time has passed: passes on what it proves.
    pub(super) async fn tell_progress(&mut self) -> Result<(), AgentError> {
        if !self.settings.coordination.is_fenced() {
            return Ok(());
        }
        if let Some(event) = self.fencing.report(&self.generation) {
            self.tell(event).await?;
        }
        if self
            .fencing
            .has_news(&self.generation, clock::monotonic_ns())
        {
            self.show_digest();
            self.tell_fence()?;
        }
        Ok(())
    }

    /// The next heartbeats to the leader say how far we are.
    pub(super) fn show_digest(&self) {
        let newest = self.generation.lockstep.newest();
        if let Some(peering) = &self.peering {
            peering.show(Digest {
                generation: Generation(self.generation.number),
                step: newest.map(|newest| (newest.step, Instant::from_nanos(newest.at_ns))),
                movement: self.movement(Instant::from_nanos(clock::monotonic_ns())),
                ..Digest::default()
            });
        }
    }

    pub(super) async fn on_peers(&mut self, arrived: FromPeers) -> Result<(), AgentError> {
        match arrived {
            FromPeers::Event(event) => {
                self.note_peer(&event);
                let hints = self.peering.as_mut().map(|peering| peering.hints(&event));
                for hint in hints.unwrap_or_default() {
                    // The next one says as much.
                    let _may_be_dropped = self.hints.try_send(hint);
                }
                self.on_peer_news(event).await
            }
            FromPeers::Order(PeerOrder::Evidence {
                generation,
                max_bytes,
                answer,
                ..
            }) => {
                self.give_evidence(generation, max_bytes, answer);
                Ok(())
            }
        }
    }

    fn note_peer(&mut self, event: &PeerEvent) {
        let (kind, fields) = match event {
            PeerEvent::Connected { node, .. } => ("peer.connected", json!({ "peer": node.0 })),
            PeerEvent::Silent {
                node, silent_for, ..
            } => (
                "peer.silent",
                json!({ "peer": node.0, "seconds": silent_for.as_secs_f64() }),
            ),
            PeerEvent::Closed { node, reason, .. } => (
                "peer.closed",
                json!({ "peer": node.0, "reason": reason.to_string() }),
            ),
            PeerEvent::Refused {
                node, violation, ..
            } => (
                "peer.refused",
                json!({ "peer": node.0, "reason": violation.to_string() }),
            ),
            PeerEvent::Digest { .. } | PeerEvent::Evidence { .. } => return,
        };
        self.journal.record(self.generation.number, kind, fields);
    }

    /// What is not as it should be between this node and the others, in words.
    pub(super) fn coordination_trouble(&self) -> Vec<String> {
        let lease = self
            .fencing
            .has_no_lease(clock::monotonic_ns())
            .then(|| {
                "the lease of this node has run out, since the coordination store does not answer; its workers go on \
                 only while their steps prove that all others live"
                    .to_owned()
            });
        let etcd = self.managed_etcd.as_ref();
        let etcd = etcd.and_then(|etcd| etcd.trouble().borrow().clone());
        let link = self.peering.as_ref().and_then(Peering::trouble);
        lease.into_iter().chain(etcd).chain(link).collect()
    }

    pub(super) fn on_known_peers(&mut self) {
        let known = self.known_peers.borrow_and_update().clone();
        if let Some(peering) = &self.peering {
            peering.follow(&known);
        }
    }

    pub(super) fn on_managed_etcd(&mut self, event: managed_etcd::Event) -> Result<(), AgentError> {
        match event {
            managed_etcd::Event::Ask(request, descriptors) => self.ask(&request, descriptors),
            managed_etcd::Event::News { name, text } => {
                self.journal
                    .record(self.generation.number, name, json!({ "text": text }));
                self.say(&text);
                Ok(())
            }
        }
    }

    /// The job's store could not be used at the start, and nothing runs here yet.
    pub(super) async fn give_up_joining(&mut self, error: &SessionError) -> Result<(), AgentError> {
        let cause = std::error::Error::source(error)
            .map(|cause| format!(": {cause}"))
            .unwrap_or_default();
        let exit_code = self.settings.exit_codes.coordination;
        let fields = json!({ "error": format!("{error}{cause}"), "exit_code": exit_code });
        self.journal.record_incident(0, "job.not_joined", fields);
        self.say(&format!(
            "{} cannot join the job: {error}{cause}. Nothing was started. See whether the coordination store runs and can \
             be reached from here, then start this node again",
            self.settings.node
        ));
        self.part_from_everything().await;
        self.ask(&Request::Finish { exit_code }, Vec::new())?;
        self.over = true;
        Ok(())
    }
}
