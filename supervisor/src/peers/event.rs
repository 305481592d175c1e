// SPDX-License-Identifier: Apache-2.0
//! What the leader's end of the streams tells its agent. Instants are of this node's clock.

use std::fmt;
use std::time::Duration;

use steadfast_core::{Incarnation, Instant, NodeName};
use tokio::sync::OwnedSemaphorePermit;

use super::{Digest, Violation};

/// What happened to the stream of a node.
#[derive(Debug)]
pub(crate) enum PeerEvent {
    /// It stands. Whatever was said of the node's stream before is over.
    Connected {
        /// The node.
        node: NodeName,
        /// The life of its keeper.
        incarnation: Incarnation,
        /// When.
        at: Instant,
    },
    /// A heartbeat came. When events are not taken quickly enough, heartbeats are left out.
    Digest {
        /// The node.
        node: NodeName,
        /// When it came.
        at: Instant,
        /// What it says.
        digest: Digest,
        /// By how many milliseconds the node's wall clock seemed to be ahead of ours; less than it is by the time that the
        /// heartbeat was on its way. `None` where it did not say.
        clock_ahead_ms: Option<i64>,
    },
    /// No heartbeat has come for longer than agreed, though the connection stands. Said once for each silence; the next
    /// digest ends it.
    Silent {
        /// The node.
        node: NodeName,
        /// When it was noticed.
        at: Instant,
        /// For how long nothing had come.
        silent_for: Duration,
    },
    /// It is over. When the node's agent was killed, this comes at once; a new agent connects again.
    Closed {
        /// The node.
        node: NodeName,
        /// When.
        at: Instant,
        /// Why.
        reason: CloseReason,
    },
    /// A node with an accepted certificate was turned away. It will try again.
    Refused {
        /// The node.
        node: NodeName,
        /// When.
        at: Instant,
        /// Why.
        violation: Violation,
    },
    /// The answer to a request for evidence, or why there is none. A stream that ends before says `Closed` only.
    Evidence {
        /// The node.
        node: NodeName,
        /// Number of the request.
        id: u64,
        /// The answer.
        outcome: Result<EvidenceBundle, EvidenceFailure>,
    },
}

/// Why a stream is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CloseReason {
    /// The node's agent ended it: it leaves, or follows another leader.
    #[error("its agent has ended the stream")]
    ByPeer,
    /// The connection broke: the agent died, or the network.
    #[error("the connection broke ({0})")]
    Broken(String),
    /// Nothing came for so long that it was given up.
    #[error("nothing came for {0:?}")]
    Silent(Duration),
    /// The node has opened another stream, or its record names another certificate.
    #[error("a newer agent of that node takes its place")]
    Replaced,
    /// It did what it must not do.
    #[error("it misbehaved: {0}")]
    Violation(Violation),
    /// This end is being closed.
    #[error("this agent leads no longer")]
    ServerClosed,
}

impl From<Violation> for CloseReason {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// What a node sent as evidence. As long as it lives it counts towards how much evidence this agent holds.
#[derive(Debug)]
pub(crate) struct EvidenceBundle {
    /// What the node sent. Treat it as untrusted.
    pub(crate) data: Vec<u8>,
    pub(super) _room: OwnedSemaphorePermit,
}

/// Why a node sent no evidence, in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EvidenceFailure(pub(crate) String);

impl fmt::Display for EvidenceFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}
