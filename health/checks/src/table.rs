// SPDX-License-Identifier: Apache-2.0
//! All checks that are built in, in the order in which they are shown.

use crate::checks;
use crate::spec::Spec;

/// All checks that are built in.
pub static CHECKS: [&Spec; 28] = [
    &checks::gpu_driver::SPEC,
    &checks::gpu_count::SPEC,
    &checks::gpu_lost::SPEC,
    &checks::gpu_recovery::SPEC,
    &checks::gpu_ecc::SPEC,
    &checks::gpu_remap::SPEC,
    &checks::gpu_nvlink::SPEC,
    &checks::gpu_fabric::SPEC,
    &checks::gpu_pcie::SPEC,
    &checks::gpu_throttle::SPEC,
    &checks::gpu_temperature::SPEC,
    &checks::gpu_persistence::SPEC,
    &checks::gpu_history::SPEC,
    &checks::gpu_processes::SPEC,
    &checks::infiniband::SPEC,
    &checks::infiniband_counters::SPEC,
    &checks::ethernet::SPEC,
    &checks::mounts::SPEC,
    &checks::disk_space::SPEC,
    &checks::shared_memory::SPEC,
    &checks::memory::SPEC,
    &checks::edac::SPEC,
    &checks::stuck_processes::SPEC,
    &checks::zombies::SPEC,
    &checks::kernel_taints::SPEC,
    &checks::kernel_modules::SPEC,
    &checks::clock::SPEC,
    &checks::container_runtime::SPEC,
];
