// SPDX-License-Identifier: Apache-2.0
//! What the probe says, and what it is told.

use serde::{Deserialize, Serialize};

use super::condition::Condition;
use super::reading::Processes;

/// A GPU as the library names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuIdentity {
    /// The library's number.
    pub index: u32,
    /// PCI address.
    pub pci: String,
    /// `GPU-...`; empty when the library would not say it.
    pub uuid: String,
    /// Such as `NVIDIA H100 80GB HBM3`; empty when the library would not say it.
    pub model: String,
}

/// Why there is nothing to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Absence {
    /// There is no such library.
    Library,
    /// There is one, but no driver is loaded.
    Driver,
    /// The library belongs to another driver than the one that is loaded, as after an update: the probe must start anew.
    Stale,
    /// Anything else.
    Refused,
}

/// What the probe says. GPUs are named by PCI address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The library answers. `gpus` are those that do.
    Opened {
        /// Version of the driver.
        driver: String,
        /// The GPUs, in the library's order.
        gpus: Vec<GpuIdentity>,
        /// GPUs that are counted and cannot be opened, each with the reason.
        silent: Vec<String>,
    },
    /// There is nothing to watch (any more); the probe ends.
    Absent {
        /// Why, to act on.
        absence: Absence,
        /// Why, in words.
        reason: String,
    },
    /// An XID.
    Xid {
        /// The GPU.
        gpu: String,
        /// The number.
        code: u32,
        /// When it was delivered, on the monotonic clock.
        at_ns: u64,
    },
    /// The GPU is gone, says the library.
    Lost {
        /// The GPU.
        gpu: String,
        /// When the library said so, on the monotonic clock.
        at_ns: u64,
    },
    /// What is wrong with a GPU, if anything, has changed. The first one for each GPU says how it was at the start.
    Conditions {
        /// The GPU.
        gpu: String,
        /// All that holds now.
        conditions: Vec<Condition>,
        /// Whether it is the first report of this GPU.
        first: bool,
        /// When it was read, on the monotonic clock.
        at_ns: u64,
    },
    /// Who holds memory of a GPU; comes only when it was asked for.
    Holders {
        /// The GPU.
        gpu: String,
        /// The processes.
        processes: Processes,
    },
    /// XIDs of this GPU will not be told: the library does not deliver them.
    NoEvents {
        /// The GPU.
        gpu: String,
        /// Why, in words.
        reason: String,
    },
}

/// What the probe is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Make no more calls about this GPU: they would hang.
    Quiet {
        /// Its PCI address.
        gpu: String,
    },
    /// Calls about this GPU are all right again.
    Resume {
        /// Its PCI address.
        gpu: String,
    },
    /// Say who holds memory, of every GPU.
    TellHolders,
}
