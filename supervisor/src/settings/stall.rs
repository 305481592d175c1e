// SPDX-License-Identifier: Apache-2.0
//! What is done about a training that has stalled.

use serde::{Deserialize, Serialize};
use steadfast_core::StallSettings;

/// What is done about a training that has stalled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stall {
    /// How far it goes.
    pub(crate) action: StallAction,
    /// Bounds that the user has set.
    pub(crate) bounds: StallSettings,
}

/// How far it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StallAction {
    /// The workers are started again.
    Restart,
    /// It is said, and evidence is kept.
    Report,
    /// Nobody looks.
    Off,
}
