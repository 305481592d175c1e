// SPDX-License-Identifier: Apache-2.0
//! What can be wrong with the environment of a job step.

use super::super::hostlist::HostListError;
use super::{NODE_COUNT, NODE_ID, NODE_LIST, NODE_NAME};

/// Why a job cannot take its nodes from the Slurm step that it was started in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StepError {
    /// A variable that every task of a step has is not there.
    #[error("`{variable}` is empty or not set, in a Slurm step on {nodes} nodes")]
    Missing { variable: &'static str, nodes: u32 },
    /// A variable that must hold a number does not.
    #[error("`{variable}={text}` is not a number")]
    Number {
        variable: &'static str,
        text: String,
    },
    /// The list of the step's nodes cannot be read.
    #[error("`{NODE_LIST}`: {0}")]
    List(HostListError),
    /// The list of the step's nodes names one of them more than once.
    #[error("`{NODE_LIST}` names {name} twice")]
    Twice { name: String },
    /// The list of the step's nodes is longer or shorter than the step.
    #[error("`{NODE_LIST}` names {listed} nodes, but `{NODE_COUNT}` is {nodes}")]
    Count { listed: usize, nodes: u32 },
    /// This node is not of the step.
    #[error("`{NODE_LIST}` does not name this node, `{NODE_NAME}={node}`")]
    NotListed { node: String },
    /// A place that the step does not have.
    #[error("`{NODE_ID}={node_id}` is not below {nodes}, the number of nodes of the Slurm step")]
    NodeId { node_id: u32, nodes: u32 },
    /// More than one task on a node.
    #[error(
        "srun started {tasks} tasks on {nodes} nodes, and not one on each: steadfast takes one task on each node, and starts the node's workers itself"
    )]
    SeveralTasks { tasks: u32, nodes: u32 },
}

impl StepError {
    /// What to do next.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::SeveralTasks { tasks, nodes } => {
                let workers = tasks.div_ceil(*nodes);
                format!(
                    "srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 steadfast run --nproc-per-node {workers} -- ..., with --cpus-per-task and --gpus-per-task for all that a node has"
                )
            }
            _ => "start steadfast by srun; with `--scheduler none` it takes nothing from Slurm"
                .to_owned(),
        }
    }
}
