// SPDX-License-Identifier: Apache-2.0
//! A node's end of the stream: follows the leader, sends heartbeats, passes orders on.

pub(super) mod dial;
mod evidence;
mod failure;
mod session;

use std::time::Duration;

use steadfast_coord::retry::{Delays, RetryPolicy};
use steadfast_core::{Generation, Instant, NodeName};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

use self::failure::StreamFailure;
use super::identity::{AgentEndpoint, PeerIdentity};
use super::{Digest, Introduction, now};

/// A stream that stood for so long was a success: what comes after it is a new series of tries.
const LONG_ENOUGH: Duration = Duration::from_secs(5);

/// How long a leader may take to let a node in. Longer than it needs to let thousands in one after the other: trying again
/// too early only makes more work for it. A new leader is turned to at once, whatever the old one does.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Whom to connect to: what the leader's record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerTarget {
    /// The leader's node.
    pub(crate) node: NodeName,
    /// Where its agent listens, and its certificate.
    pub(crate) endpoint: AgentEndpoint,
}

/// What the leader wants.
#[derive(Debug)]
pub(crate) enum PeerOrder {
    /// Collect what can be said about a generation, and send it. When `answer` is dropped, or nothing is sent in time, the
    /// leader is told so.
    Evidence {
        /// The generation that is asked about.
        generation: Generation,
        /// How large the answer may be, in bytes.
        max_bytes: u64,
        /// How long it may take.
        within: Duration,
        /// Where the answer goes, or why there is none.
        answer: oneshot::Sender<Result<Vec<u8>, String>>,
    },
}

/// How the stream to the leader is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// There is nobody to connect to: no leader, or it is this node.
    NoTarget,
    /// The first try is on its way.
    Connecting,
    /// It stands.
    Up {
        /// Since when, on this node's clock.
        since: Instant,
    },
    /// It does not stand, and is tried again.
    Down {
        /// Why, in words.
        reason: String,
    },
}

/// One agent's end, before it runs.
#[derive(Debug)]
pub(crate) struct PeerClient {
    identity: PeerIdentity,
    introduction: Introduction,
    link: watch::Sender<LinkState>,
}

impl PeerClient {
    /// A client that introduces itself like this.
    pub(crate) fn new(identity: PeerIdentity, introduction: Introduction) -> Self {
        Self {
            identity,
            introduction,
            link: watch::Sender::new(LinkState::NoTarget),
        }
    }

    /// How the stream is, from now on.
    pub(crate) fn link(&self) -> watch::Receiver<LinkState> {
        self.link.subscribe()
    }

    /// Keeps a stream to whoever is the target, until the sender of `target` or the receiver of `orders` is gone. `target`
    /// is `None` while there is no leader, and on the leader itself.
    pub(crate) async fn run(
        self,
        mut target: watch::Receiver<Option<PeerTarget>>,
        digests: watch::Receiver<Digest>,
        orders: mpsc::Sender<PeerOrder>,
    ) {
        let mut delays = RetryPolicy::LeaderForever.delays();
        let mut last_target = None;
        loop {
            let current = target.borrow_and_update().clone();
            let Some(current) = current else {
                self.link.send_replace(LinkState::NoTarget);
                if target.changed().await.is_err() {
                    return;
                }
                continue;
            };
            if last_target.as_ref() != Some(&current) {
                delays = RetryPolicy::LeaderForever.delays();
                self.link.send_replace(LinkState::Connecting);
                last_target = Some(current.clone());
            }
            tokio::select! {
                () = self.try_once(&current, &digests, &orders, &mut delays) => {}
                moved = target.wait_for(|newer| newer.as_ref() != Some(&current)) => {
                    if moved.is_err() {
                        return;
                    }
                }
                () = orders.closed() => return,
            }
        }
    }

    /// One stream, after a pause: so the nodes of a large job do not come all at once.
    async fn try_once(
        &self,
        target: &PeerTarget,
        digests: &watch::Receiver<Digest>,
        orders: &mpsc::Sender<PeerOrder>,
        delays: &mut Delays,
    ) {
        sleep(delays.next_delay()).await;
        let failure = self.attend(target, digests, orders).await;
        let before = self.link.send_replace(LinkState::Down {
            reason: failure.in_words(),
        });
        tracing::debug!(leader = %target.node, reason = %failure, "The stream to the leader does not stand.");
        if let LinkState::Up { since } = before
            && now().saturating_since(since) >= LONG_ENOUGH
        {
            *delays = RetryPolicy::LeaderForever.delays();
        }
    }

    async fn attend(
        &self,
        target: &PeerTarget,
        digests: &watch::Receiver<Digest>,
        orders: &mpsc::Sender<PeerOrder>,
    ) -> StreamFailure {
        let channel = match dial::dial(&self.identity, &target.endpoint).await {
            Ok(channel) => channel,
            Err(failure) => return failure,
        };
        let opened = session::Session::open(channel, &self.introduction, digests, orders).await;
        match opened {
            Ok(session) => {
                self.link.send_replace(LinkState::Up { since: now() });
                session.run().await
            }
            Err(failure) => failure,
        }
    }
}
