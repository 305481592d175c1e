// SPDX-License-Identifier: Apache-2.0
//! What is wrong with a process, a GPU, a node? Reads evidence (exit statuses, error files, last lines, `/proc`, lines of
//! the kernel log) and says what it means, as parts of a [`Finding`](steadfast_proto::v1::Finding).
//!
//! Owns the knowledge of what failures look like. It has no tasks: each function looks and returns, but for the threads of
//! [`nvml`], which run in a process of their own.
//!
//! Invariants:
//! - HE-1: a fingerprint depends on what failed, never on when, where, in which generation or on which rank.
//! - HE-2: whatever a file or a line contains, reading it ends in an answer; sizes are bounded.
//!
//! It does not know the job: not which worker failed first, nor what is to be done about it.

mod early_death;
mod error_file;
mod fingerprint;
pub mod flight_recorder;
pub mod gpus;
pub mod incidents;
pub mod kernel_log;
pub mod nccl_ras;
pub mod nvml;
pub mod progress_page;
mod python_traceback;
mod sockets;
pub mod stacks;
mod steps;
pub mod task_state;
mod worker_exit;
pub mod xid;

pub use early_death::{ExitWatch, Vitality};
pub use error_file::{
    ErrorFileError, WorkerError, copy_error_file, parse_error_file, read_error_file,
    write_error_file,
};
pub use fingerprint::{exception_fingerprint, exit_fingerprint, normalise};
pub use python_traceback::{Frame, Traceback, last_traceback};
pub use sockets::{Socket, sockets_of};
pub use steps::{Lockstep, StepTracker, Synchronised, loss_in};
pub use worker_exit::{Exit, WorkerExit, diagnose, signal_name};
