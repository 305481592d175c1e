// SPDX-License-Identifier: Apache-2.0
//! What a member says about itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CheckpointReport, Fitness, SaveMeans};
use crate::{Generation, Incarnation, Instant, LocalRank, NodeName, RECORD_VERSION};

/// The level of the topology whose members share NVLink switches.
const NVLINK: &str = "nvlink";

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
    /// Workers of `generation` or an earlier one that survived SIGKILL (uninterruptible sleep).
    pub unkillable: Vec<LocalRank>,
    /// Whether all workers of `generation` have ended, each with exit code 0.
    pub clean: bool,
    /// What somebody asked of the job through this member.
    pub request: Option<Request>,
    /// Which start of the machine this is (`/proc/sys/kernel/random/boot_id`); empty where it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// Which machine this is, however often it is started; empty where that cannot be said for certain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// Where the node stands in the cluster.
    #[serde(default, skip_serializing_if = "Location::is_empty")]
    pub location: Location,
    /// Which progress can be seen on this node in `generation`; absent while none can be relied upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub witness: Option<WitnessReport>,
    /// How long the workers of `generation` had made no step when they were gone; absent before that, and where none was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_step: Option<LastStep>,
    /// Step of the newest whole checkpoint that this member has seen made in `generation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<u64>,
    /// Steps of the newest checkpoints made in `generation` that this member has seen whole and that it has flushed to stable
    /// storage, ascending; at most [`MemberRecord::MOST_DURABLE`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub durable: Vec<u64>,
    /// What this member can vouch for in its checkpoint directory: as it was when its workers had stopped, and while it
    /// has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<CheckpointReport>,
    /// How its workers of `generation` can be asked for a checkpoint, if they can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub can_save: Option<SaveMeans>,
    /// Step of the newest checkpoint that its workers of `generation` have made because they were asked, and that is
    /// written to stable storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<u64>,
    /// Step at which its workers of `generation` were asked for a checkpoint when one of them had made it already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_late: Option<u64>,
    /// Where the member's agent can be reached by other agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentEndpoint>,
    /// How fit the node is, by its own looks at it; absent where nobody looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fitness: Option<Fitness>,
    /// What earlier faults of the job's GPUs on this node weigh, those of the one that has had most, in thousandths of a
    /// fault; see [`super::FaultScore`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub past_faults: u64,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// Where a node stands in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Location {
    /// Its place among the nodes as the scheduler counts them (such as `SLURM_NODEID`), if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u32>,
    /// What it shares with its neighbours, widest first: pairs such as `rack` and `r12`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology: Vec<(String, String)>,
}

/// Progress that proves that all workers of the generation live, as one member sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WitnessReport {
    /// For how long the absence of a step says nothing yet, in milliseconds: the window that this member would like.
    pub window_ms: u64,
    /// Usual time between two steps, in milliseconds, rounded up.
    pub step_ms: u64,
    /// The last step that all workers of this node had made when this was written.
    pub step: u64,
}

/// When the workers of one node made their last step. Clocks of other nodes mean nothing, so this is told as an age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastStep {
    /// For how long it had been made when the workers were gone, in milliseconds, rounded down.
    pub age_ms: u64,
    /// How long one step can take by what was seen of the generation, in milliseconds, rounded up; 0 when there was one step only.
    pub one_step_ms: u64,
}

/// Where an agent can be reached by other agents, and how it proves who it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentEndpoint {
    /// Host and port.
    pub address: String,
    /// Digest of its certificate, in hexadecimal digits.
    pub certificate: String,
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
    /// For how long a checkpoint may be waited for before it is carried out, in milliseconds.
    #[serde(default)]
    pub save_ms: u64,
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
        /// Whether the scheduler is to run the job again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        requeue: bool,
    },
    /// Leave this generation and start the next one. Later generations are not affected.
    Restart,
    /// Make a checkpoint, and go on.
    Checkpoint {
        /// Tells this wish from others: another one for each time that somebody asks.
        number: u64,
    },
    /// Take this member out of the job; others take its ranks over. The job goes on if it can.
    Leave {
        /// First signal that its workers get.
        signal: i32,
        /// Milliseconds until SIGKILL; the member's own stop grace when absent.
        grace_ms: Option<u64>,
    },
}

impl Location {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The part of the cluster that hangs on the same NVLink switches, written as the topology is: its levels down to the
    /// one that is called `nvlink`. Absent where there is no such level.
    pub fn nvlink_domain(&self) -> Option<String> {
        let last = self
            .topology
            .iter()
            .position(|(level, _)| level == NVLINK)?;
        let levels = self.topology[..=last].iter();
        let pairs: Vec<String> = levels
            .map(|(level, name)| format!("{level}={name}"))
            .collect();
        Some(pairs.join(","))
    }

    /// How many levels of the topology, from the widest on, this place has in common with another.
    pub fn shared_levels(&self, other: &Self) -> usize {
        let pairs = self.topology.iter().zip(&other.topology);
        pairs.take_while(|(own, theirs)| own == theirs).count()
    }
}

impl MemberRecord {
    /// How many steps are in [`MemberRecord::durable`]: members flush at different speeds, and only what all of them name
    /// can be committed.
    pub const MOST_DURABLE: usize = 4;

    /// The record of a member with one worker that has taken part in nothing yet.
    pub fn new(node: NodeName, incarnation: Incarnation) -> Self {
        Self {
            version: RECORD_VERSION,
            address: node.0.clone(),
            node,
            incarnation,
            slots: 1,
            generation: Generation(0),
            phase: MemberPhase::Idle,
            next_port: 0,
            step: None,
            stop_began: None,
            unkillable: Vec::new(),
            clean: false,
            request: None,
            boot: String::new(),
            machine: String::new(),
            location: Location::default(),
            witness: None,
            last_step: None,
            checkpoint: None,
            durable: Vec::new(),
            checkpoints: None,
            can_save: None,
            saved: None,
            told_late: None,
            agent: None,
            fitness: None,
            past_faults: 0,
            extra: BTreeMap::new(),
        }
    }

    /// Whether this member is done with `generation`: none of its workers are running any more.
    pub fn has_stopped(&self, generation: Generation) -> bool {
        self.generation == generation && self.phase == MemberPhase::Stopped
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(weight: &u64) -> bool {
    *weight == 0
}
