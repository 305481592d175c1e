// SPDX-License-Identifier: Apache-2.0
//! What a member's looks at its own node have shown.

use serde::{Deserialize, Serialize};

/// How fit a member's node is, by its own looks at it. A member that does not look says nothing of the kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Fitness {
    /// Counts the looks that have ended, so that each can be told from the one before; 0 before the first.
    pub look: u64,
    /// Time between two looks while the member runs nothing, in milliseconds.
    pub every_ms: u64,
    /// What makes the node unfit, in words; at most eight. Empty when nothing does that was seen, and as long as nothing
    /// could be seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
}
