// SPDX-License-Identifier: Apache-2.0
//! The step of a Slurm job that this supervisor is a task of.

use serde::{Deserialize, Serialize};

/// A job step on several nodes, with one supervisor on each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlurmStep {
    /// `SLURM_JOB_ID`.
    pub(crate) job_id: u32,
    /// `SLURM_STEP_ID`.
    pub(crate) step_id: u32,
    /// Nodes of the step, at least 2.
    pub(crate) nodes: u32,
    /// Place of this node in the step, from 0: `SLURM_NODEID`.
    pub(crate) node_id: u32,
    /// Slurm's name of this node: `SLURMD_NODENAME`.
    pub(crate) node_name: String,
    /// How often the job was requeued; 0 the first time.
    pub(crate) restart_count: u32,
}
