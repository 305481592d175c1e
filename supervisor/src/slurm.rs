// SPDX-License-Identifier: Apache-2.0
//! What Slurm's own formats mean: host lists, and the environment of a job step.

pub(crate) mod hostlist;
pub(crate) mod step;
