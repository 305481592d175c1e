// SPDX-License-Identifier: Apache-2.0
//! What a member says about itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Generation, Incarnation, Instant, LocalRank, NodeName};

/// A member, under `members/<node>`. Only that member writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// See [`crate::RECORD_VERSION`].
    pub version: u32,
    /// The member's node.
    pub node: NodeName,
    /// The life of the keeper on that node.
    pub incarnation: Incarnation,
    /// Host name or address at which other nodes reach this one.
    pub address: String,
    /// How many workers it runs, at least 1.
    pub slots: u32,
    /// The generation that the fields below speak of; 0 when it took part in none yet.
    pub generation: Generation,
    /// How far it is with that generation.
    pub phase: MemberPhase,
    /// A free port on this node, for the master of the next generation if this node hosts rank 0.
    pub next_port: u16,
    /// Highest training step seen in `generation`. Written seldom while running, exact when stopped.
    pub step: Option<u64>,
    /// When this node began to stop the workers of `generation`, on its own clock.
    pub stop_began: Option<Instant>,
    /// Workers of `generation` that survived SIGKILL (uninterruptible sleep).
    pub unkillable: Vec<LocalRank>,
    /// Whether all workers of `generation` have ended, each with exit code 0.
    pub clean: bool,
    /// What somebody asked of the job through this member.
    pub request: Option<Request>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// How far a member is with a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberPhase {
    /// Registered; runs nothing.
    Idle,
    /// All its workers have been started.
    Running,
    /// All its workers have exited with code 0.
    Completed,
    /// Its workers are being stopped.
    Draining,
    /// All its workers are gone (except those listed as unkillable).
    Stopped,
}

/// Something that a person or a scheduler asked of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The generation that was running when it was asked; 0 for none.
    pub generation: Generation,
    /// What was asked.
    pub kind: RequestKind,
    /// Why, in words.
    pub reason: String,
}

/// What can be asked of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// End the job.
    Stop {
        /// First signal that the workers get.
        signal: i32,
        /// Milliseconds until SIGKILL; each member's own stop grace when absent.
        grace_ms: Option<u64>,
    },
    /// Leave this generation and start the next one. Later generations are not affected.
    Restart,
}

impl MemberRecord {
    /// Whether this member is done with `generation`: none of its workers are running any more.
    pub fn has_stopped(&self, generation: Generation) -> bool {
        self.generation == generation && self.phase == MemberPhase::Stopped
    }
}
