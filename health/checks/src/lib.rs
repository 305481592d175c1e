// SPDX-License-Identifier: Apache-2.0
//! Is this node fit for a job? Looks at GPUs, links, mounts, disks, memory and the kernel, and says what is wrong.
//!
//! ```ignore
//! let settings = Settings::read_if_there(Path::new("/etc/steadfast/checks.toml"))?;
//! let mut node = Node::here("gpu012", outside);
//! node.gpus = Some(vec!["0".into(), "3".into()]);
//! let report = Plan::new(Profile::Prolog, settings, node).run();
//! if !report.is_fit() {
//!     drain(&report.reason());
//! }
//! ```
//!
//! A [`Profile`] says which checks are made and how long all of them may take; a [`Report`] is what they have found, and
//! [`show`] writes it for people and programs. The checks are a table ([`CHECKS`]); each is a small file below `checks`.
//!
//! Owns a thread for each check while [`Plan::run`] runs, and one that asks the driver about GPUs. What can hang in the
//! kernel, and other programs, run in processes of their own, which whoever calls provides ([`Outside`]).
//!
//! Invariants:
//! - CH-1: only what a check has seen to be wrong makes a node unfit. What it cannot see, and its own failure, is said, and
//!   counts against nobody.
//! - CH-2: [`Plan::run`] returns within the limit of its profile, whatever hangs.
//! - CH-3: no check reads of another process what needs that process's memory (its command line, environment or maps): that
//!   can hang with it.
//!
//! It knows no job, sends nothing, and mends nothing.

mod checks;
mod context;
mod gpus;
mod memory;
mod mount_probe;
mod mounts;
mod node;
mod outcome;
mod outside;
mod plan;
mod processes;
mod profile;
mod rates;
mod report;
mod run;
mod settings;
pub mod show;
mod spec;
mod table;
mod units;

#[cfg(test)]
mod garbage;
#[cfg(test)]
mod testing;

pub use mount_probe::{MountAnswer, probe_mount};
pub use node::{Node, Nvml, PastFaults};
pub use outcome::{Problem, Status};
pub use outside::{Ended, How, KernelClock, Outside, Work};
pub use plan::{Plan, UnknownCheck};
pub use profile::Profile;
pub use report::{CheckResult, Report};
pub use settings::{Settings, SettingsError};
pub use spec::{Number, Spec, Switch, Threshold, Unit, Words};
pub use table::CHECKS;
