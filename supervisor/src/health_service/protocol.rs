// SPDX-License-Identifier: Apache-2.0
//! What goes over the socket: a JSON object in each line. The client speaks first, once.

use serde::{Deserialize, Serialize};
use steadfast_health::nvml::Report;

/// The newest form of this language.
pub(super) const VERSION: u32 = 1;
/// The longest line of a client, in bytes.
pub(super) const LONGEST_HELLO: u64 = 4096;
/// The longest line of the service, in bytes: a line of the kernel log, and what JSON makes of it.
pub(super) const LONGEST_MESSAGE: usize = 256 << 10;

/// The client's first and only word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The newest form that the client understands.
    pub(super) version: u32,
}

/// What the service says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// The beginning.
    Welcome {
        /// The form that the service speaks.
        version: u32,
        /// The log that it reads.
        log: String,
        /// What the client gets to see, in words.
        sees: String,
    },
    /// A line of the kernel log that means something.
    Line(LogLine),
    /// Something was lost: this many lines, where that is known.
    Gap {
        /// How many.
        lost: Option<u64>,
    },
    /// Everything that was there at the beginning has been said.
    CaughtUp,
    /// What the driver's library says.
    Nvml(Report),
    /// The driver's library says nothing (any more); why.
    NoNvml {
        /// Why.
        reason: String,
    },
    /// The log cannot be read (any more).
    Failed {
        /// Why.
        reason: String,
    },
    /// The service has no more to say to this client.
    Refused {
        /// Why.
        reason: String,
    },
}

/// A line of the kernel log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogLine {
    /// The record or line as it is in the log.
    pub(super) text: String,
    /// Its place in the log.
    pub(super) position: Option<u64>,
    /// When it was read, on the monotonic clock.
    pub(super) read_ns: u64,
    /// It was logged after this instant; 0 for what was there before the service began.
    pub(super) after_ns: u64,
}
