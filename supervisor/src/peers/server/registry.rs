// SPDX-License-Identifier: Apache-2.0
//! Which node is connected, when it was last heard, and how to reach its session.

use std::collections::HashMap;
use std::time::Duration;

use steadfast_core::{Instant, NodeName};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::{EvidenceBounds, OrderError, PeerSettings};
use crate::peers::{CloseReason, Fingerprint, PeerEvent};

/// Distinguishes the streams that a node has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SessionId(u64);

/// Evidence to ask for, and the room that is kept for the answer.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) id: u64,
    pub(super) bounds: EvidenceBounds,
    pub(super) room: OwnedSemaphorePermit,
}

/// A connected node.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) certificate: Fingerprint,
    pub(super) heard_at: Instant,
    pub(super) asks: mpsc::Sender<Ask>,
    /// Gone when the session was told to end.
    pub(super) end: Option<oneshot::Sender<CloseReason>>,
}

impl Entry {
    /// Tells the session to end. It takes itself out, unless another one has its place.
    fn end(&mut self, reason: CloseReason) {
        if let Some(end) = self.end.take() {
            // A session that is gone has ended anyway.
            drop(end.send(reason));
        }
    }
}

/// All connected nodes.
#[derive(Debug, Default)]
pub(super) struct Registry {
    sessions: HashMap<NodeName, Session>,
    last_session: SessionId,
    last_request: u64,
}

#[derive(Debug)]
struct Session {
    id: SessionId,
    entry: Entry,
    is_silent: bool,
}

impl Registry {
    /// Takes a session in. Whether the node had another one, which is ended.
    pub(super) fn open(&mut self, node: &NodeName, entry: Entry) -> (SessionId, bool) {
        self.last_session.0 += 1;
        let id = self.last_session;
        let session = Session {
            id,
            entry,
            is_silent: false,
        };
        let before = self.sessions.insert(node.clone(), session);
        let replaces = before.is_some();
        if let Some(mut before) = before {
            before.entry.end(CloseReason::Replaced);
        }
        (id, replaces)
    }

    /// Notes a sign of life. False when the session has been replaced.
    pub(super) fn heard(&mut self, node: &NodeName, id: SessionId, now: Instant) -> bool {
        match self.sessions.get_mut(node) {
            Some(session) if session.id == id => {
                session.entry.heard_at = now;
                session.is_silent = false;
                true
            }
            _ => false,
        }
    }

    /// Takes a session out. False when it has been replaced, or was taken out before.
    pub(super) fn close(&mut self, node: &NodeName, id: SessionId) -> bool {
        let is_current = self.sessions.get(node).is_some_and(|at| at.id == id);
        is_current && self.sessions.remove(node).is_some()
    }

    /// Passes a question on to a node's session.
    pub(super) fn ask(
        &mut self,
        node: &NodeName,
        ask: impl FnOnce(u64) -> Ask,
    ) -> Result<u64, OrderError> {
        let session = self.sessions.get(node).ok_or(OrderError::NotConnected)?;
        let id = self.last_request + 1;
        match session.entry.asks.try_send(ask(id)) {
            Ok(()) => {
                self.last_request = id;
                Ok(id)
            }
            Err(mpsc::error::TrySendError::Full(_)) => Err(OrderError::Busy),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(OrderError::NotConnected),
        }
    }

    /// Ends the sessions whose nodes have another certificate now.
    pub(super) fn end_replaced<'a>(
        &mut self,
        certificate: impl Fn(&NodeName) -> Option<&'a Fingerprint>,
    ) {
        for (node, session) in &mut self.sessions {
            if certificate(node).is_some_and(|newer| *newer != session.entry.certificate) {
                session.entry.end(CloseReason::Replaced);
            }
        }
    }

    /// Says which nodes are silent, each once, and gives up those that are silent for too long. What `tell` does not take
    /// is said again the next time.
    pub(super) fn find_silent(
        &mut self,
        now: Instant,
        settings: &PeerSettings,
        mut tell: impl FnMut(PeerEvent) -> bool,
    ) {
        for (node, session) in &mut self.sessions {
            let silent_for: Duration = now.saturating_since(session.entry.heard_at);
            if silent_for < settings.silent_after {
                continue;
            }
            if !session.is_silent {
                session.is_silent = tell(PeerEvent::Silent {
                    node: node.clone(),
                    at: now,
                    silent_for,
                });
            }
            if silent_for >= settings.dropped_after {
                session.entry.end(CloseReason::Silent(silent_for));
            }
        }
    }
}
