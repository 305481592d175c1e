// SPDX-License-Identifier: Apache-2.0
//! What the environment says of the job step that this process is a task of.
//!
//! `srun` gives every task the variables that are read here (the section "OUTPUT ENVIRONMENT VARIABLES" of `srun(1)`;
//! names as of Slurm 22.05). A batch script and the shell of `salloc` have the job's variables without those of a
//! step, and so are no step.

mod error;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub(crate) use self::error::StepError;
use super::hostlist::{HostList, MAX_HOSTS};
use crate::config::Host;
use crate::settings::SlurmStep;

/// Step ids from here on are no steps of `srun` with tasks of a user (`slurm/slurm.h`: batch, extern, interactive).
const FIRST_SPECIAL_STEP: u32 = 0xffff_fff0;

/// The variable with the nodes of the step.
pub(crate) const NODE_LIST: &str = "SLURM_STEP_NODELIST";
/// The variable with this node's name.
pub(crate) const NODE_NAME: &str = "SLURMD_NODENAME";
/// The variable with this node's place in the step.
pub(crate) const NODE_ID: &str = "SLURM_NODEID";
/// The variable with the number of nodes in the step.
pub(crate) const NODE_COUNT: &str = "SLURM_STEP_NUM_NODES";
/// The variable with the job's id.
pub(crate) const JOB_ID: &str = "SLURM_JOB_ID";
/// The variable with this node's place in the network.
pub(crate) const TOPOLOGY: &str = "SLURM_TOPOLOGY_ADDR";

/// A step on several nodes, with everything that the job takes from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The step.
    pub(crate) step: SlurmStep,
    /// The nodes, as Slurm wrote them: a list that was read and found right.
    pub(crate) node_list: String,
    /// Where this node is, as `LEVEL=NAME,...`, widest level first; empty where Slurm knows no topology.
    pub(crate) topology: String,
}

/// The step, if this process is a task of one on several nodes. Everything else stays as it is without Slurm.
pub(crate) fn find(host: &Host) -> Result<Option<Found>, StepError> {
    let (Some(job_id), Some(step_id)) = (number(host, JOB_ID)?, number(host, "SLURM_STEP_ID")?)
    else {
        return Ok(None);
    };
    if step_id >= FIRST_SPECIAL_STEP {
        return Ok(None);
    }
    let nodes = match number(host, NODE_COUNT)? {
        Some(nodes) => nodes,
        None => number(host, "SLURM_NNODES")?.unwrap_or(1),
    };
    if nodes < 2 {
        return Ok(None);
    }
    one_task_each(host, nodes)?;
    let missing = |variable| StepError::Missing { variable, nodes };
    let node_id = number(host, NODE_ID)?.ok_or_else(|| missing(NODE_ID))?;
    if node_id >= nodes {
        return Err(StepError::NodeId { node_id, nodes });
    }
    let node_name = host.variable(NODE_NAME).ok_or_else(|| missing(NODE_NAME))?;
    let node_list = host.variable(NODE_LIST).ok_or_else(|| missing(NODE_LIST))?;
    check_list(node_list, node_name, nodes)?;
    Ok(Some(Found {
        step: SlurmStep {
            job_id,
            step_id,
            nodes,
            node_id,
            node_name: node_name.to_owned(),
            // Slurm sets it for jobs that were requeued alone.
            restart_count: number(host, "SLURM_RESTART_COUNT")?.unwrap_or(0),
        },
        node_list: node_list.to_owned(),
        topology: topology(host),
    }))
}

/// One supervisor takes care of all workers of a node.
fn one_task_each(host: &Host, nodes: u32) -> Result<(), StepError> {
    let tasks = match number(host, "SLURM_STEP_NUM_TASKS")? {
        Some(tasks) => tasks,
        None => number(host, "SLURM_NTASKS")?.unwrap_or(nodes),
    };
    let local_id = number(host, "SLURM_LOCALID")?.unwrap_or(0);
    if tasks > nodes || local_id > 0 {
        return Err(StepError::SeveralTasks { tasks, nodes });
    }
    Ok(())
}

fn check_list(list: &str, node: &str, nodes: u32) -> Result<(), StepError> {
    let hosts = HostList::parse(list.as_bytes(), MAX_HOSTS).map_err(StepError::List)?;
    let mut names = BTreeSet::new();
    for name in hosts.hosts() {
        if !names.insert(name.clone()) {
            return Err(StepError::Twice { name });
        }
    }
    if u32::try_from(names.len()) != Ok(nodes) {
        return Err(StepError::Count {
            listed: names.len(),
            nodes,
        });
    }
    if !names.contains(node) {
        return Err(StepError::NotListed {
            node: node.to_owned(),
        });
    }
    Ok(())
}

/// When the job's time is up, in nanoseconds of `CLOCK_MONOTONIC`; `None` where Slurm does not say (before 23.02). It says it
/// on the wall clock, which is read here for the only time.
pub(crate) fn end(host: &Host) -> Result<Option<u64>, StepError> {
    const VARIABLE: &str = "SLURM_JOB_END_TIME";
    let Some(text) = host.variable(VARIABLE) else {
        return Ok(None);
    };
    let end_s: i64 = text.trim().parse().map_err(|_| StepError::Number {
        variable: VARIABLE,
        text: text.to_owned(),
    })?;
    let left_ms = end_s.saturating_mul(1000).saturating_sub(host.wall_ms);
    let left_ns = u64::try_from(left_ms)
        .unwrap_or(0)
        .saturating_mul(1_000_000);
    Ok(Some(host.monotonic_ns.saturating_add(left_ns)))
}

/// `top.s1.n2` with the pattern `switch.switch.node` becomes `switch1=top,switch2=s1`: the node itself is no level.
/// What does not look like that tells nothing; a hint is no reason to refuse a job.
fn topology(host: &Host) -> String {
    let (Some(address), Some(pattern)) = (
        host.variable(TOPOLOGY),
        host.variable("SLURM_TOPOLOGY_ADDR_PATTERN"),
    ) else {
        return String::new();
    };
    let kinds: Vec<&str> = pattern.split('.').collect();
    // A node's own name, the last part, may have dots in it.
    let names: Vec<&str> = address.splitn(kinds.len(), '.').collect();
    if kinds.len() != names.len() {
        return String::new();
    }
    let levels = kinds.len().saturating_sub(1);
    let levels: Vec<String> = kinds
        .iter()
        .zip(names)
        .take(levels)
        .enumerate()
        .filter(|(_, (_, name))| !name.is_empty() && !name.contains([',', '=']))
        .map(|(place, (kind, name))| format!("{kind}{}={name}", place + 1))
        .collect();
    levels.join(",")
}

/// The number in a variable; absent when it is unset or empty.
fn number(host: &Host, variable: &'static str) -> Result<Option<u32>, StepError> {
    host.variable(variable)
        .map(|text| {
            text.trim().parse().map_err(|_| StepError::Number {
                variable,
                text: text.to_owned(),
            })
        })
        .transpose()
}
