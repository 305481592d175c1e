// SPDX-License-Identifier: Apache-2.0
//! Whom a fault hits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whom a fault hits: at most one of these. Without any, one that fits is drawn with the seed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Target {
    /// The worker with this rank in the newest generation, or its node.
    pub(crate) rank: Option<u32>,
    /// The node with this number (from 1, the spares last), or one of its workers.
    pub(crate) node: Option<u32>,
    /// A node that plays this part at the moment.
    pub(crate) role: Option<Role>,
}

/// A part that a node plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// The one whose supervisor leads the job.
    Leader,
    /// One that has workers.
    Active,
    /// One that has workers, and whose supervisor does not lead.
    Follower,
    /// One that has none.
    Spare,
    /// The one that has rank 0.
    Master,
    /// All nodes, one after the other.
    All,
}

impl Target {
    /// How many of the ways to name a target are used.
    pub(crate) fn ways(&self) -> usize {
        [
            self.rank.is_some(),
            self.node.is_some(),
            self.role.is_some(),
        ]
        .iter()
        .filter(|way| **way)
        .count()
    }
}
