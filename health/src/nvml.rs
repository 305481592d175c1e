// SPDX-License-Identifier: Apache-2.0
//! What the driver's library (NVML) says about the GPUs.
//!
//! Any call of that library can take for ever when a GPU or its firmware is sick, in a state in which the thread cannot
//! even be killed. So all of this runs in a process of its own, which nobody waits for: [`Probe`] is that process's work,
//! [`Report`] is what it says. Each GPU has a thread and an event set of its own, so that a sick one silences no other.
//!
//! Before each call the probe writes down which one it is ([`Outlet::begin`]): from outside, a call that hangs is seen by
//! its age, without a message from a thread that cannot send one.

mod condition;
mod gpu_thread;
mod probe;
mod raw;
mod reading;
mod report;
mod sighting;
mod snapshot;

pub use condition::{Condition, conditions};
pub use probe::{Outlet, Probe, ProbeSettings};
pub use reading::{Fabric, NvlinkReading, PcieReading, Processes, Reading, Remapped};
pub use report::{Absence, Command, GpuIdentity, Report};
pub use sighting::{lost, recovery, xid};
pub use snapshot::{GpuSnapshot, PcieGeneration, SnapshotLine, snapshot};
