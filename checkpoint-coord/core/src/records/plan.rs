// SPDX-License-Identifier: Apache-2.0
//! What the leader publishes for a generation.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Location, Request, Resume, SaveOrder, SaveOutcome};
use crate::{Generation, Incarnation, NodeName, Rank};

/// The plan in force, under `job/plan`. It is written once for each generation. What becomes of it then ([`super::Course`])
/// and what the leader alone must know of it ([`super::Places`]) stand beside it, and are put into it by [`crate::View`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// See [`crate::RECORD_VERSION`].
    pub version: u32,
    /// Which incarnation of the world this is.
    pub generation: Generation,
    /// Whether it is to run or to end.
    #[serde(default, skip_serializing_if = "PlanPhase::is_run")]
    pub phase: PlanPhase,
    /// The members, in rank order.
    pub members: Vec<PlanMember>,
    /// Number of workers in all.
    pub world_size: u32,
    /// Where rank 0 listens.
    pub master: Endpoint,
    /// Restarts so far, whatever their cause: always `generation - 1`.
    pub restart_count: u64,
    /// Why this generation exists, in words.
    pub why: String,
    /// For how long after a step of all workers the generation is known to live, whatever became of a member's lease, in
    /// milliseconds. 0: leases alone decide. Within a generation it never shrinks.
    #[serde(default)]
    pub witness_ms: u64,
    /// Where the workers resume; absent when no member has said what there is, so that each looks for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
    /// The checkpoint that the workers are asked for now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save: Option<SaveOrder>,
    /// What became of the last one that they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_save: Option<SaveOutcome>,
    /// Step of the checkpoint that was committed last while the plan was in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<u64>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// Whether a generation is to run or to end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanPhase {
    /// Members start and keep their workers.
    #[default]
    Run,
    /// Members stop their workers and report.
    Drain {
        /// First signal that the workers get.
        signal: i32,
        /// What somebody asked for, if that is why (then the stop grace holds, else the restart grace). It is kept here
        /// because the record of the member that was asked can die with its lease before all have stopped.
        request: Option<Request>,
        /// Why, in words.
        why: String,
    },
}

/// A member's place in a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanMember {
    /// Its node.
    pub node: NodeName,
    /// The life of the keeper that is meant; a later one has no workers of this generation.
    pub incarnation: Incarnation,
    /// Number of workers.
    pub slots: u32,
    /// Global rank of its worker with local rank 0; the others follow.
    pub base_rank: Rank,
    /// Which start of the machine was meant; empty where it is not known. Only the leader is told.
    #[serde(skip)]
    pub boot: String,
    /// Which machine was meant; empty where it is not known. Only the leader is told.
    #[serde(skip)]
    pub machine: String,
    /// Where its node stands. Only the leader is told.
    #[serde(skip)]
    pub location: Location,
    /// Whether this member clears its checkpoint directory of torn ones before the workers start; of those that share a
    /// directory, one does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clears: bool,
}

/// Host and port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Host name or address.
    pub address: String,
    /// TCP port.
    pub port: u16,
}

impl PlanPhase {
    fn is_run(&self) -> bool {
        *self == Self::Run
    }

    /// What was asked for, if that is why the generation is to end.
    pub fn request(&self) -> Option<&Request> {
        match self {
            Self::Run => None,
            Self::Drain { request, .. } => request.as_ref(),
        }
    }
}

impl Plan {
    /// See [`Plan::witness_ms`].
    pub fn witness(&self) -> Duration {
        Duration::from_millis(self.witness_ms)
    }

    /// Whether the generation is to run (rather than to end).
    pub fn is_run(&self) -> bool {
        self.phase.is_run()
    }

    /// The place of `node` in this plan, whichever its incarnation.
    pub fn member(&self, node: &NodeName) -> Option<&PlanMember> {
        self.members.iter().find(|member| &member.node == node)
    }

    /// The index of `node` among the members (the group rank), if it is one.
    pub fn group_rank(&self, node: &NodeName) -> Option<u32> {
        self.members
            .iter()
            .position(|member| &member.node == node)
            .and_then(|index| u32::try_from(index).ok())
    }
}
