// SPDX-License-Identifier: Apache-2.0
//! How many nodes a job runs on, and what happens when their number changes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How many nodes a job runs on, and what happens when one is lost or found. All of it must be the same on every node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Elastic {
    /// The smallest and the largest number of nodes that run workers.
    pub(crate) nodes: NodeRange,
    /// How many nodes beyond the largest number are waited for at the start.
    pub(crate) spares: u32,
    /// The number of nodes that run workers is a multiple of this, at least 1; some multiple lies in `nodes`.
    pub(crate) node_multiple: u32,
    /// How long to wait when there are too few nodes for the smallest world, before the job ends.
    pub(crate) wait_for_nodes: Duration,
    /// How long to wait for another node in place of a lost one, before the job goes on with fewer.
    pub(crate) shrink_after: Duration,
    /// When to take in nodes that came later.
    pub(crate) grow: Grow,
    /// Whether steps of the training prove that its nodes live.
    pub(crate) witness: Witness,
    /// How long a node may be silent before it counts as lost; at least 2 s.
    pub(crate) lease: Duration,
    /// The same while the training's steps are a witness; from 2 s to `lease`.
    pub(crate) witness_lease: Duration,
}

impl Elastic {
    /// The shortest lease that the node can come to have.
    pub(crate) fn shortest_lease(&self) -> Duration {
        match self.witness {
            Witness::Off => self.lease,
            Witness::Auto | Witness::On => self.witness_lease,
        }
    }
}

/// The smallest and the largest number of nodes that the job can run on, `1 <= min <= max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRange {
    /// Fewest nodes to start with.
    pub(crate) min: u32,
    /// Most nodes to use.
    pub(crate) max: u32,
}

/// When a job that runs on fewer nodes than it could takes in more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Grow {
    /// Not even when it restarts for another reason.
    Never,
    /// After the next checkpoint.
    AtCheckpoint,
    /// At once.
    Immediately,
}

/// Whether steps of the training count as proof that all of its nodes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Witness {
    /// Never: the lease alone decides.
    Off,
    /// Once all ranks were seen to step together.
    Auto,
    /// Always: the user vouches for it that no rank steps without the others.
    On,
}
