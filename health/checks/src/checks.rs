// SPDX-License-Identifier: Apache-2.0
//! The checks, one a file.

pub(crate) mod clock;
pub(crate) mod command;
pub(crate) mod container_runtime;
pub(crate) mod disk_space;
mod each_gpu;
pub(crate) mod edac;
pub(crate) mod ethernet;
pub(crate) mod gpu_count;
pub(crate) mod gpu_driver;
pub(crate) mod gpu_ecc;
pub(crate) mod gpu_fabric;
pub(crate) mod gpu_history;
pub(crate) mod gpu_lost;
pub(crate) mod gpu_nvlink;
pub(crate) mod gpu_pcie;
pub(crate) mod gpu_persistence;
pub(crate) mod gpu_processes;
pub(crate) mod gpu_recovery;
pub(crate) mod gpu_remap;
pub(crate) mod gpu_temperature;
pub(crate) mod gpu_throttle;
pub(crate) mod infiniband;
pub(crate) mod infiniband_counters;
pub(crate) mod kernel_modules;
pub(crate) mod kernel_taints;
pub(crate) mod memory;
pub(crate) mod mounts;
mod pci;
pub(crate) mod shared_memory;
pub(crate) mod stuck_processes;
pub(crate) mod zombies;

use std::time::Duration;

use crate::profile::Profile;

/// Occasions on which everything that is quick is looked at.
const ALWAYS: &[Profile] = &[
    Profile::Prolog,
    Profile::Epilog,
    Profile::Health,
    Profile::Full,
];
/// On each occasion, and within a job: what is quick, and says for sure that a node cannot train.
const ALSO_IN_JOBS: &[Profile] = &Profile::ALL;
/// The same, but not when a job has ended.
const IN_JOBS_BUT_EPILOG: &[Profile] = &[
    Profile::Prolog,
    Profile::Health,
    Profile::Job,
    Profile::Full,
];
/// Occasions on which no job should be there.
const BETWEEN_JOBS: &[Profile] = &[Profile::Prolog, Profile::Epilog, Profile::Full];
/// Occasions on which there is time.
const LEISURE: &[Profile] = &[Profile::Health, Profile::Full];
/// Occasions on which it matters whether the next job will do well.
const BUT_EPILOG: &[Profile] = &[Profile::Prolog, Profile::Health, Profile::Full];

/// For what reads a few small files.
const QUICK: Duration = Duration::from_secs(2);
/// For what asks the driver: see `gpu-driver`.
const WITH_GPUS: Duration = Duration::from_secs(7);
