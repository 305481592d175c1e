// SPDX-License-Identifier: Apache-2.0
//! The node service: `steadfast health serve`.
//!
//! Jobs run as ordinary users, who may not read the kernel log. One process of root's reads it for the whole node and hands
//! on, over a Unix socket, what each user may know (and what NVML says, so that not every job has to ask): [`access`] says what that is, [`protocol`] how it is said. The agent of a
//! job takes it where it is there ([`ServiceLog`]), and reads the log itself where it is not.
//!
//! One task for each client, none of which can hold up another or the log: what is kept for clients is bounded, one that does
//! not read loses its line, and one that talks nonsense too.

mod access;
mod client;
mod command;
mod log_reader;
mod protocol;
mod server;

pub(crate) use self::client::{ServiceError, ServiceLog, ServiceNews};
pub(crate) use self::command::{Request, Serve, run};

/// Where the service listens unless it is told otherwise, and where agents look for it.
pub(crate) const USUAL_SOCKET: &str = "/run/steadfast/health.sock";
