// SPDX-License-Identifier: Apache-2.0
//! Process mechanics: creating, finding, signalling and reaping the processes of a training job.
//!
//! Owns every system call that creates a process and the only `unsafe` code of the supervisor (mostly `fork` and
//! `execve` in [`spawn`]). It has no tasks and no threads: each function does one thing and returns.
//!
//! Invariants:
//! - PR-1: a worker cannot outlive its keeper: the parent-death signal is set before `execve`, and a parent that
//!   died before it was set is noticed.
//! - PR-2: a process is signalled through a pidfd after its identity was read back, so that a recycled pid is never hit.
//! - PR-3: descriptors cross to children only when named; everything else is closed on `execve`.
//!
//! It does not decide when to stop anything, and it knows nothing of ranks or jobs.

pub mod cgroup;
pub mod channel;
pub mod exit;
pub mod kernel_clock;
pub mod memory_file;
pub mod pipe;
pub mod signals;
pub mod spawn;
pub mod tree;
