// SPDX-License-Identifier: Apache-2.0
//! What is done about a loss that is no number, or runs away.

use serde::{Deserialize, Serialize};

/// How far it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OnNan {
    /// It is said.
    Report,
    /// The workers are started again.
    Restart,
    /// The job ends.
    End,
}
