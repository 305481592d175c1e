// SPDX-License-Identifier: Apache-2.0
//! What Slurm's own formats mean.

pub(crate) mod hostlist;
