// SPDX-License-Identifier: Apache-2.0
//! What all members of a job must agree on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::RECORD_VERSION;

/// Version of the rules by which members and leader work together.
pub const PROTOCOL_VERSION: u32 = 1;

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
    /// Restarts allowed without a new training step in between.
    pub max_restarts: u32,
    /// Digest of the command that every worker runs; any text that is equal exactly when the commands are.
    pub command_digest: String,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

impl JobSpec {
    /// A spec for this version of the program.
    pub fn new(min_nodes: u32, max_nodes: u32, max_restarts: u32, command_digest: String) -> Self {
        Self {
            version: RECORD_VERSION,
            protocol: PROTOCOL_VERSION,
            min_nodes,
            max_nodes,
            max_restarts,
            command_digest,
            extra: BTreeMap::new(),
        }
    }

    /// The first field in which `mine` differs from this, the job's, spec, in words; `None` when they agree.
    pub fn disagreement(&self, mine: &Self) -> Option<String> {
        let fields = [
            (
                "protocol",
                self.protocol.to_string(),
                mine.protocol.to_string(),
            ),
            (
                "min_nodes",
                self.min_nodes.to_string(),
                mine.min_nodes.to_string(),
            ),
            (
                "max_nodes",
                self.max_nodes.to_string(),
                mine.max_nodes.to_string(),
            ),
            (
                "max_restarts",
                self.max_restarts.to_string(),
                mine.max_restarts.to_string(),
            ),
            (
                "command_digest",
                self.command_digest.clone(),
                mine.command_digest.clone(),
            ),
        ];
        fields
            .into_iter()
            .find(|(_, theirs, mine)| theirs != mine)
            .map(|(name, theirs, mine)| {
                format!("{name} is {theirs} for the job, but {mine} on this node")
            })
    }
}
