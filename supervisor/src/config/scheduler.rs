// SPDX-License-Identifier: Apache-2.0
//! What a scheduler knows already stands in for options that were not given.
//!
//! Values from Slurm take the place of the defaults: whatever was written anywhere goes before them.

use super::error::ConfigError;
use super::host::Host;
use super::option::Key;
use super::values::{Origin, Value, Values};
use super::{nodes, parse, program};
use crate::settings::SlurmStep;
use crate::slurm::step::{self, Found};

/// Set by a supervisor for its workers. A supervisor that a worker starts is a job of its own, whatever Slurm says.
const INSIDE_A_WORKER: &str = "STEADFAST_JOB_ID";

/// Lays what the scheduler says under what was written, and gives back the step if there is one on several nodes.
pub(crate) fn apply(host: &Host, values: &mut Values) -> Result<Option<SlurmStep>, ConfigError> {
    let automatic = values.require(Key::Scheduler, parse::scheduler)?;
    if !automatic || host.variable(INSIDE_A_WORKER).is_some() || asks_for_one_node(values)? {
        return Ok(None);
    }
    let Some(found) = step::find(host).map_err(ConfigError::SlurmStep)? else {
        return Ok(None);
    };
    if values.get(Key::Coord).is_none() {
        manage_etcd(host, values, &found.step)?;
    }
    take_nodes(values, &found.step)?;
    Ok(Some(take_names(values, found)))
}

/// Whether every node is to be a job of its own.
fn asks_for_one_node(values: &Values) -> Result<bool, ConfigError> {
    let embedded = values.text(Key::Coord) == Some("embedded");
    let one = values.is_written(Key::Nnodes) && !nodes::are_several(values)?;
    Ok(embedded || one && !values.is_explicit(Key::Coord))
}

fn manage_etcd(host: &Host, values: &mut Values, step: &SlurmStep) -> Result<(), ConfigError> {
    if program::first_of(host, &["etcd"], &host.working_dir).is_none() {
        return Err(ConfigError::NoEtcdProgram { nodes: step.nodes });
    }
    set(values, Key::Coord, step::NODE_COUNT, "managed".to_owned());
    Ok(())
}

fn take_nodes(values: &mut Values, step: &SlurmStep) -> Result<(), ConfigError> {
    let of_this_step_alone =
        !values.is_written(Key::Job) || values.text(Key::Coord) == Some("managed");
    if values.is_written(Key::Nnodes) {
        let wanted = values.require(Key::Nnodes, parse::nodes)?;
        if wanted.min > step.nodes && of_this_step_alone {
            return Err(ConfigError::Value {
                given: values.given(Key::Nnodes),
                reason: format!(
                    "the Slurm step has {} nodes, and the job would wait for more",
                    step.nodes
                ),
            });
        }
        return Ok(());
    }
    let workers = nodes::without_spares(values, step.nodes)?;
    set(values, Key::Nnodes, step::NODE_COUNT, workers.to_string());
    Ok(())
}

fn take_names(values: &mut Values, found: Found) -> SlurmStep {
    let Found {
        step,
        node_list,
        topology,
    } = found;
    let job = match step.restart_count {
        0 => format!("slurm-{}.{}", step.job_id, step.step_id),
        // What an earlier run of the job left in the store is of no use to this one.
        count => format!("slurm-{}.{}.r{count}", step.job_id, step.step_id),
    };
    for (key, variable, text) in [
        (Key::Job, step::JOB_ID, job),
        (Key::NodeName, step::NODE_NAME, step.node_name.clone()),
        (Key::NodeRank, step::NODE_ID, step.node_id.to_string()),
        (Key::Address, step::NODE_NAME, step.node_name.clone()),
        (Key::Topology, step::TOPOLOGY, topology),
    ] {
        if !values.is_written(key) && !text.is_empty() {
            set(values, key, variable, text);
        }
    }
    if values.text(Key::Coord) == Some("managed") && !values.is_written(Key::Hosts) {
        set(values, Key::Hosts, step::NODE_LIST, node_list);
    }
    step
}

fn set(values: &mut Values, key: Key, variable: &'static str, text: String) {
    let origin = Origin::Slurm(variable);
    values.set(key, Value { text, origin });
}
