// SPDX-License-Identifier: Apache-2.0
//! Lines of the kernel log: what happened, to which device, in which process.
//!
//! [`KernelLog`] takes lines in every shape in which they come (records of `/dev/kmsg`, `dmesg` with any of its options,
//! syslog, journal) and gives [`Event`]s. It knows what a line says; [`crate::xid`] knows what that means. [`Follower`] gets
//! the lines from `/dev/kmsg`, a named pipe or a file.

mod driver_line;
mod event;
mod fields;
mod follow;
mod header;
mod nvlink_line;
mod pci;
mod reader;
mod scan;
mod stamp;
mod switch_line;
mod system_line;
#[cfg(test)]
mod tests;
mod words;
mod xid_line;

pub use event::{
    Continuation, Detail, DriverEvent, DriverKind, Event, Known, NvlinkError, NvlinkLayout,
    SwitchError, SystemEvent, SystemKind, What, XidError,
};
pub use follow::{Clock, FollowError, Follower, Line, Next, Origin};
pub use header::{Header, LineSource};
pub use pci::PciAddress;
pub use reader::{KernelLog, parse_line};
pub use stamp::Stamp;
