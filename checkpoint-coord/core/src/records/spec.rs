// SPDX-License-Identifier: Apache-2.0
//! What all members of a job must agree on.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::RECORD_VERSION;

/// Version of the rules by which members and leader work together.
pub const PROTOCOL_VERSION: u32 = 3;

const DEFAULT_WAIT_FOR_NODES: Duration = Duration::from_mins(15);
const DEFAULT_SHRINK_AFTER: Duration = Duration::from_secs(30);

/// What must agree. Written by the first member; a member that differs is refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// See [`RECORD_VERSION`].
    pub version: u32,
    /// See [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Fewest nodes that the job runs on, at least 1.
    pub min_nodes: u32,
    /// Most nodes that it uses, at least `min_nodes`; further ones are spares.
    pub max_nodes: u32,
    /// The number of nodes is always a multiple of this, at least 1.
    pub node_multiple: u32,
    /// How long the job waits for nodes when there are fewer than it can run on, in milliseconds.
    pub wait_for_nodes_ms: u64,
    /// How long it waits for another node before it goes on with fewer, in milliseconds.
    pub shrink_after_ms: u64,
    /// When it takes in nodes that come later.
    pub grow: Grow,
    /// Whether training progress proves that all workers live.
    pub witness: WitnessMode,
    /// Restarts allowed without a new training step in between.
    pub max_restarts: u32,
    /// Digest of the command that every worker runs; any text that is equal exactly when the commands are.
    pub command_digest: String,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// When a running job takes in more nodes. It always does at a restart that has another reason, unless `Never`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grow {
    /// It never gets larger than it was.
    Never,
    /// As soon as a checkpoint has been made.
    AtCheckpoint,
    /// At once; steps since the last checkpoint are done again.
    Immediately,
}

/// Whether training steps prove that all workers live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WitnessMode {
    /// They prove nothing: leases alone decide. Right for programs whose ranks do not wait for each other at every step.
    Off,
    /// They do once all workers have been seen to make the same steps at the same time.
    Auto,
    /// They do.
    On,
}

impl fmt::Display for Grow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Never => "never",
            Self::AtCheckpoint => "at-checkpoint",
            Self::Immediately => "immediately",
        })
    }
}

impl fmt::Display for WitnessMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::On => "on",
        })
    }
}

impl JobSpec {
    /// A spec for this version of the program, with defaults for what is not given.
    pub fn new(min_nodes: u32, max_nodes: u32, max_restarts: u32, command_digest: String) -> Self {
        Self {
            version: RECORD_VERSION,
            protocol: PROTOCOL_VERSION,
            min_nodes,
            max_nodes,
            node_multiple: 1,
            wait_for_nodes_ms: milliseconds(DEFAULT_WAIT_FOR_NODES),
            shrink_after_ms: milliseconds(DEFAULT_SHRINK_AFTER),
            grow: Grow::AtCheckpoint,
            witness: WitnessMode::Auto,
            max_restarts,
            command_digest,
            extra: BTreeMap::new(),
        }
    }

    /// The first field in which `mine` differs from this, the job's, spec, in words; `None` when they agree.
    pub fn disagreement(&self, mine: &Self) -> Option<String> {
        if self == mine {
            return None;
        }
        let (theirs, mine) = (self.fields(), mine.fields());
        let differing = theirs
            .into_iter()
            .zip(mine)
            .find(|(theirs, mine)| theirs != mine);
        differing.map(|((name, theirs), (_, mine))| {
            format!("{name} is {theirs} for the job, but {mine} on this node")
        })
    }

    /// The number of nodes to use when so many are there: as many as allowed. `None` when there are too few.
    pub fn size_with(&self, nodes: u32) -> Option<u32> {
        let multiple = self.node_multiple.max(1);
        let size = nodes.min(self.max_nodes) / multiple * multiple;
        (size >= self.min_nodes.max(1)).then_some(size)
    }

    /// See [`JobSpec::wait_for_nodes_ms`].
    pub fn wait_for_nodes(&self) -> Duration {
        Duration::from_millis(self.wait_for_nodes_ms)
    }

    /// See [`JobSpec::shrink_after_ms`].
    pub fn shrink_after(&self) -> Duration {
        Duration::from_millis(self.shrink_after_ms)
    }

    fn fields(&self) -> [(&'static str, String); 10] {
        [
            ("protocol", self.protocol.to_string()),
            ("min_nodes", self.min_nodes.to_string()),
            ("max_nodes", self.max_nodes.to_string()),
            ("node_multiple", self.node_multiple.to_string()),
            ("wait_for_nodes", format!("{} ms", self.wait_for_nodes_ms)),
            ("shrink_after", format!("{} ms", self.shrink_after_ms)),
            ("grow", self.grow.to_string()),
            ("witness", self.witness.to_string()),
            ("max_restarts", self.max_restarts.to_string()),
            ("command_digest", self.command_digest.clone()),
        ]
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_multiples_within_the_range() {
        let mut spec = JobSpec::new(2, 7, 0, String::new());
        spec.node_multiple = 2;
        let sizes: Vec<_> = (0..9).map(|nodes| spec.size_with(nodes)).collect();
        let expected = [
            None,
            None,
            Some(2),
            Some(2),
            Some(4),
            Some(4),
            Some(6),
            Some(6),
            Some(6),
        ];
        assert_eq!(sizes, expected);
    }

    #[test]
    fn every_field_must_agree_and_is_named() {
        let spec = JobSpec::new(1, 4, 3, "x".to_owned());
        let mut other = spec.clone();
        assert_eq!(spec.disagreement(&other), None);
        other.grow = Grow::Never;
        let words = spec.disagreement(&other).unwrap();
        assert_eq!(
            words,
            "grow is at-checkpoint for the job, but never on this node"
        );
    }
}
