// SPDX-License-Identifier: Apache-2.0
//! When a fault is injected.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When a fault is injected: as soon as all that is said here holds. Says it nothing, then once the job has made its
/// first step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Trigger {
    /// So many seconds have passed since the job made its first step.
    pub(crate) seconds: Option<f64>,
    /// This step has been made.
    pub(crate) step: Option<u64>,
    /// The newest generation that has workers is this one, or a newer one.
    pub(crate) generation: Option<u64>,
    /// What the job is busy with.
    pub(crate) phase: Option<Phase>,
    /// The journal of one of the nodes has got a line of this kind, such as `generation.stopping`, since the fault named
    /// in `after` was injected (or since the start).
    pub(crate) journal: Option<String>,
    /// The fault of this name has been injected.
    pub(crate) after: Option<String>,
    /// The fault of this name has been healed.
    pub(crate) healed: Option<String>,
}

/// What a job is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// Nothing has been started yet.
    Gather,
    /// The workers of the newest generation have been born, and none has made a step.
    Init,
    /// The workers of the newest generation make steps.
    Train,
    /// A generation is being stopped, and no newer one has workers yet.
    Restart,
}

impl Trigger {
    /// Whether it says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
