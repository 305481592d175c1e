// SPDX-License-Identifier: Apache-2.0
//! The training that is judged, at one moment.

use steadfast_core::StallState;

/// A training, as it is seen from here.
#[derive(Debug)]
pub(in crate::agent) struct Scene {
    /// Its generation.
    pub(in crate::agent) generation: u64,
    /// Whether it runs, and nobody has begun to stop it.
    pub(in crate::agent) is_active: bool,
    /// Whether a step was seen in it.
    pub(in crate::agent) has_stepped: bool,
    /// How it gets on.
    pub(in crate::agent) state: StallState,
    /// Whose ranks these are.
    pub(in crate::agent) scope: Scope,
}

/// Whose ranks are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) enum Scope {
    /// This node's, and there are no others, or they cannot be asked.
    Node,
    /// Those of all nodes: this one leads.
    Job,
    /// This node's, but the node that leads judges.
    Led,
}
