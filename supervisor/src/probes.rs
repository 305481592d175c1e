// SPDX-License-Identifier: Apache-2.0
//! Probes: what can hang, in processes of its own.
//!
//! A call into a GPU driver, or into a file system whose server is gone, can sleep in the kernel beyond SIGKILL. So the
//! agent starts the same binary again for it, listens, and waits for nothing. Which call a probe is in, and since when, it
//! writes into a page that both share: a process that hangs can send no message.
//!
//! Invariants:
//! - PB-1: a probe dies with its agent, by the parent-death signal; one that the kernel cannot kill is nobody's to wait for.
//! - PB-2: a probe that is not wanted any more is asked to end by closing the line to it, and only killed with the agent: a
//!   driver can take a client that is killed in the middle of a call badly.

mod child;
mod page;
mod process;

pub(crate) use self::child::{NvmlSetup, run};
pub(crate) use self::process::{Probe, ProbeKind, has_ended};
