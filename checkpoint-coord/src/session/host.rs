// SPDX-License-Identifier: Apache-2.0
//! What the session and the agent tell each other.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::{
    Generation, Instant, JobResult, LeaseId, MemberEffect, MemberEvent, NodeName, Plan, SaveOrder,
    SaveOutcome, Transaction,
};
use steadfast_proto::v1::Finding;
use tokio::sync::{mpsc, watch};

use super::{Peers, StatusView};

/// The session's ends of the channels between it and the agent.
#[derive(Debug)]
pub struct SessionPorts {
    /// What happened on this node; [`MemberEvent::Resume`] first. Events about the store come from the session itself.
    /// When the other end is dropped, the session ends without leaving the job.
    pub events: mpsc::Receiver<MemberEvent>,
    /// What other agents tell. The other end may be dropped.
    pub hints: mpsc::Receiver<Hint>,
    /// What the agent is to do, in this order. Unbounded, so that the two can never wait for each other.
    pub effects: mpsc::UnboundedSender<HostEffect>,
    /// How things stand.
    pub status: watch::Sender<StatusView>,
    /// Whose agents can be reached where.
    pub peers: watch::Sender<Peers>,
}

/// What an agent hears of other nodes beside the store. It makes the leader faster, but proves nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum Hint {
    /// Workers of another node have made a step.
    Step {
        /// Their generation.
        generation: Generation,
        /// The step.
        step: u64,
    },
    /// Nothing is heard of another node's agent any more, or something is again.
    Silence {
        /// Which node.
        node: NodeName,
        /// Whether it is silent.
        silent: bool,
    },
    /// The wall clock of another node is that much ahead of this node's.
    Clock {
        /// Which node.
        node: NodeName,
        /// In milliseconds.
        ahead_ms: i64,
    },
    /// What comparing the ranks of all nodes has shown. A session that does not lead drops it.
    Verdict(Box<Finding>),
    /// After how long without a committed checkpoint the workers are to be asked for one, whoever leads.
    SaveEvery(Duration),
}

/// What the agent is to do. See [`MemberEffect`] for what each asks for in answer.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "the large one comes once in a life"
)]
pub enum HostEffect {
    /// Start this node's workers as the plan says.
    Start {
        /// The plan; it names this node.
        plan: Arc<Plan>,
        /// The tenure in which that was decided: it is worth nothing in another one.
        tenure: LeaseId,
    },
    /// Stop this node's workers. May be repeated.
    Stop {
        /// Which generation.
        generation: Generation,
        /// First signal.
        first_signal: i32,
        /// Time until SIGKILL.
        grace: Duration,
        /// Why, in words.
        reason: String,
    },
    /// Look at this node, and answer with `Looked`; `Stopped` had better wait a moment for that.
    Look,
    /// Send SIGKILL now to what is left of a generation.
    KillNow {
        /// Which generation.
        generation: Generation,
    },
    /// What vouches for this node's workers. Past both times they must be killed, whatever becomes of the agent: others
    /// may take their place. Comes only where there are others, before the first start, and whenever it changes.
    Fence {
        /// Until when the lease surely holds; the clock's zero when it does not.
        lease_until: Instant,
        /// The tenure that this belongs to; see [`steadfast_core::Lease::tenure`].
        tenure: LeaseId,
        /// The generation of the newest plan.
        generation: Generation,
        /// For how long after a step that all its workers made that step vouches for them; zero if it does not.
        witness: Duration,
    },
    /// Ask this node's workers for a checkpoint; `None`: it is not wanted any more.
    Save {
        /// Their generation.
        generation: Generation,
        /// What is wanted.
        order: Option<SaveOrder>,
    },
    /// What has become of a checkpoint that was asked for.
    SaveEnded {
        /// The generation that was asked.
        generation: Generation,
        /// What has become of it.
        outcome: SaveOutcome,
    },
    /// A checkpoint has been committed.
    Committed {
        /// The generation that made it.
        generation: Generation,
        /// Its step.
        step: u64,
    },
    /// A stop that was asked for waits so long at most, for a checkpoint.
    Postpone {
        /// At most so long.
        within: Duration,
    },
    /// Tell the user.
    Say(String),
    /// The job has ended. The last effect.
    Finish(JobResult),
}

impl HostEffect {
    /// What the agent has to do for the member, or the transaction that is the session's own business.
    pub(super) fn from_member(effect: MemberEffect, tenure: LeaseId) -> Result<Self, Transaction> {
        Ok(match effect {
            MemberEffect::Write(transaction) => return Err(transaction),
            MemberEffect::Start { plan } => Self::Start { plan, tenure },
            MemberEffect::Stop {
                generation,
                first_signal,
                grace,
                reason,
            } => Self::Stop {
                generation,
                first_signal,
                grace,
                reason,
            },
            MemberEffect::Look => Self::Look,
            MemberEffect::KillNow { generation } => Self::KillNow { generation },
            MemberEffect::Save { generation, order } => Self::Save { generation, order },
            MemberEffect::SaveEnded {
                generation,
                outcome,
            } => Self::SaveEnded {
                generation,
                outcome,
            },
            MemberEffect::Committed { generation, step } => Self::Committed { generation, step },
            MemberEffect::Postpone { within } => Self::Postpone { within },
            MemberEffect::Say(text) => Self::Say(text),
            MemberEffect::Finish(result) => Self::Finish(result),
        })
    }
}
