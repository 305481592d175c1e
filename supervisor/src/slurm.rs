// SPDX-License-Identifier: Apache-2.0
//! What Slurm's own formats mean (host lists, the environment of a job step), and the programs that Slurm runs on each node
//! before, after and beside jobs.

pub(crate) mod controller;
pub(crate) mod hooks;
pub(crate) mod hostlist;
pub(crate) mod step;
