// SPDX-License-Identifier: Apache-2.0
//! Agent to agent: a stream from each agent of a job to the agent of the node that leads it.
//!
//! Owns [`PeerServer`] (the leader's end: who is connected, who went silent, what they report), [`PeerClient`] (the other
//! end: follows the leader, sends heartbeats, passes orders on) and [`PeerIdentity`] (what both prove themselves by). What
//! goes over a stream makes the job quicker, never right: a node that went silent is a hint, a step that was made is a
//! witness, and both are used together with the job's store, which alone decides.
//!
//! Trust comes from the store, which only members of the job can write. Each agent makes a key pair and a certificate when
//! it starts and puts the certificate's fingerprint into its member record. Both ends speak TLS 1.3 and show their
//! certificates; a client accepts the fingerprint in the leader's record alone, a server those of the members, and a stream
//! speaks for the node that its certificate belongs to.
//!
//! Tasks: a server has one that accepts connections, one that serves them, one that looks for silence, and two for each
//! stream; they end when the [`PeerServer`] is dropped. A client is one future.
//!
//! Invariants:
//! - PEER-1: what a stream can cost is bounded, whatever the other end does: message sizes, windows, queues, open requests,
//!   all evidence together, time to introduce oneself. What breaks a bound ends that stream and no other.
//! - PEER-2: of one node, [`PeerEvent::Connected`] and [`PeerEvent::Closed`] come in turn and none is lost; a new stream of
//!   a node ends the old one first.
//! - PEER-3: silence counts only while this agent itself was awake and its events were taken: an agent that was stopped for
//!   a while reads what has come meanwhile before it calls anybody silent.
//! - PEER-4: nothing here makes anybody wait: a client with a leader that does not read drops heartbeats.

mod client;
mod digest;
mod event;
mod identity;
mod server;
mod tls;
mod violation;

#[cfg(test)]
mod tests;

use std::time::Duration;

use steadfast_core::Instant;

use crate::clock;

pub(crate) use self::client::{LinkState, PeerClient, PeerOrder, PeerTarget};
pub(crate) use self::digest::{Digest, Movement};
pub(crate) use self::event::{CloseReason, EvidenceBundle, EvidenceFailure, PeerEvent};
pub(crate) use self::identity::{AgentEndpoint, Fingerprint, PeerIdentity};
pub(crate) use self::server::{EvidenceBounds, PeerServer, PeerSettings};
pub(crate) use self::violation::Violation;

/// Version of what goes over a stream. Both ends must speak the same.
pub(crate) const PEER_PROTOCOL_VERSION: u32 = 1;

/// The largest message. One piece of evidence fits, with room for what surrounds it.
const LARGEST_MESSAGE: usize = 20 * 1024;
/// How much of an answer goes into one message, in bytes.
const EVIDENCE_PIECE: usize = 16 * 1024;
/// The largest answer that can be asked for, in bytes.
const LARGEST_EVIDENCE: u64 = 4 * 1024 * 1024;
/// How many answers one node may owe at a time.
const MOST_OPEN_REQUESTS: usize = 4;
/// How much either end may send on a stream before the other has read it, in bytes.
const WINDOW: u32 = 64 * 1024;
/// How long a leader waits for a node to introduce itself: for the handshake, and for the first message.
const GREET_WITHIN: Duration = Duration::from_secs(10);

/// Who speaks on a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Introduction {
    /// Name of the job.
    pub(crate) job: String,
    /// The node.
    pub(crate) node: steadfast_core::NodeName,
    /// The life of the keeper on that node.
    pub(crate) incarnation: steadfast_core::Incarnation,
}

fn now() -> Instant {
    Instant::from_nanos(clock::monotonic_ns())
}
