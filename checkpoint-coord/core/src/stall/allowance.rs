// SPDX-License-Identifier: Apache-2.0
//! What a rank can be busy with, and how long that may take without a step.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a rank is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// It has not made a step yet.
    Init,
    /// It trains.
    Train,
    /// It writes a checkpoint.
    Checkpoint,
    /// It evaluates the model.
    Eval,
    /// It reads a checkpoint or data.
    Load,
    /// It compiles, or warms up otherwise.
    Compile,
    /// It does something that only a newer version has a name for.
    Other,
}

impl Activity {
    /// Those for which a bound can be set.
    pub const CONFIGURABLE: [Activity; 6] = [
        Self::Init,
        Self::Train,
        Self::Checkpoint,
        Self::Eval,
        Self::Load,
        Self::Compile,
    ];

    /// One word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Train => "train",
            Self::Checkpoint => "checkpoint",
            Self::Eval => "eval",
            Self::Load => "load",
            Self::Compile => "compile",
            Self::Other => "other",
        }
    }

    /// What holds until the job has shown how long it takes: long enough for the slowest that is known.
    pub(super) const fn default_allowance(self) -> Duration {
        match self {
            Self::Train => Duration::from_mins(10),
            Self::Init | Self::Checkpoint | Self::Load => Duration::from_mins(30),
            Self::Eval | Self::Compile | Self::Other => Duration::from_hours(1),
        }
    }
}

/// Bounds that somebody has set. What is not set is learned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallSettings {
    /// How long each may go on without a step.
    pub fixed: BTreeMap<Activity, Duration>,
}
