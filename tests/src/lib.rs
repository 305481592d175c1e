// SPDX-License-Identifier: Apache-2.0
//! What the end-to-end tests of the built binaries have in common.
//!
//! A [`Launch`] describes a job, [`Launch::start`] makes it a [`Job`]: the real `steadfast` with a directory, an
//! environment and a mark of its own. The workers are mostly `fake-worker` (`src/bin/fake_worker`), which does what its
//! arguments say and keeps a record of it.
//!
//! Invariants:
//! - Whatever happens in a test, nothing of its job is left when the [`Job`] is dropped.
//! - [`Job::wait`] itself checks that the product left nothing behind: no process, no control socket, no cgroup, no
//!   temporary file.
//! - No test asserts how long something took. Everything is waited for with a generous deadline, and a deadline that
//!   passes says what was seen last.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "this is test code: a panic is a failed test, and standard error is its report"
)]

mod binaries;
mod capture;
mod etcd;
mod expected;
mod fake_nvml;
mod frozen_disk;
mod job;
mod launch;
mod leftovers;
mod netns;
mod nodes;
mod outcome;
mod patience;
mod power;
mod processes;
mod python_job;
mod random;
mod requirement;
mod slurm_cluster;
mod training;
mod voice;

pub use binaries::{fake_nvml, fake_worker, steadfast};
pub use etcd::Etcd;
pub use expected::numbered_lines;
pub use fake_nvml::Gpus;
pub use frozen_disk::FrozenDisk;
pub use job::{Job, json_lines};
pub use launch::{Console, Launch};
pub use leftovers::cgroup_of;
pub use netns::{Direction, Host, Network};
pub use nodes::{Life, Nodes, name, number};
pub use outcome::Outcome;
pub use patience::{DEADLINE, eventually, pause};
pub use power::{Action, Disk, Recording, Step};
pub use processes::{Found, children, is_alive, process_state, send};
pub use python_job::PythonJob;
pub use random::Random;
pub use requirement::{Requirement, long_tests, python};
pub use slurm_cluster::{SlurmCluster, SlurmSite};
pub use training::Training;
pub use voice::{Seen, Voice};
