// SPDX-License-Identifier: Apache-2.0
//! The options of jobs on several nodes: how many, where they meet, how this one is reached.

use std::time::Duration;

use super::error::ConfigError;
use super::host::Host;
use super::option::Key;
use super::values::{Origin, Values};
use super::{address, coordination, duration, parse};
use crate::settings::{Coordination, Elastic, NodeRange, SlurmStep};

/// Shortest lease: below it, a moment without a CPU or a packet looks like a lost node, and etcd makes it longer anyway.
const SHORTEST_LEASE: Duration = Duration::from_secs(2);

/// Everything that a job has to know of its nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) coordination: Coordination,
    pub(super) elastic: Elastic,
    pub(super) address: String,
    pub(super) node_rank: Option<u32>,
    pub(super) topology: Vec<(String, String)>,
    pub(super) node_count_hint: Option<u32>,
}

/// Whether the job is to have more than one node, spares included.
pub(crate) fn are_several(values: &Values) -> Result<bool, ConfigError> {
    let spares = values.require(Key::Spares, parse::at_least(0))?;
    Ok(range(values)?.max > 1 || spares > 0)
}

/// Whether the job is to be one that other nodes can join.
pub(crate) fn meets_others(values: &Values) -> Result<bool, ConfigError> {
    let asked_for = values
        .text(Key::Coord)
        .is_some_and(|coord| coord != "embedded")
        && is_meant_for_this_job(values, Key::Coord);
    Ok(asked_for || are_several(values)?)
}

/// What is left for workers of so many nodes.
pub(super) fn without_spares(values: &Values, nodes: u32) -> Result<u32, ConfigError> {
    let spares = values.require(Key::Spares, parse::at_least(0))?;
    match nodes.checked_sub(spares) {
        Some(workers @ 1..) => Ok(workers),
        _ => Err(ConfigError::Value {
            given: values.given(Key::Spares),
            reason: format!("there are {nodes} nodes in all, and none would be left for workers"),
        }),
    }
}

/// Reads and checks the options.
pub(super) fn read(
    host: &Host,
    values: &Values,
    slurm: Option<&SlurmStep>,
    notes: &mut Vec<String>,
) -> Result<Nodes, ConfigError> {
    let coordination = coordination::read(host, values, slurm)?;
    let mut elastic = elastic(values)?;
    let mut node_count_hint = slurm.map(|step| step.nodes);
    if let Coordination::Managed(managed) = &coordination {
        let hosts = u32::try_from(managed.hosts.len()).unwrap_or(u32::MAX);
        node_count_hint = Some(hosts);
        if values.get(Key::Nnodes).is_none() {
            let workers = without_spares(values, hosts)?;
            elastic.nodes = NodeRange {
                min: workers,
                max: workers,
            };
        }
        if elastic.nodes.min > hosts {
            return Err(ConfigError::Conflict {
                first: values.given(Key::Nnodes),
                second: values.given(Key::Hosts),
                reason: "the job would wait for nodes that it does not have",
            });
        }
    }
    multiples(values, &elastic, notes)?;
    if coordination.is_fenced() && values.get(Key::Job).is_none() {
        return Err(ConfigError::NoSharedName {
            given: values.given(Key::Coord),
        });
    }
    if elastic.nodes.max > 1 && values.get(Key::MasterAddr).is_some() {
        return Err(ConfigError::Conflict {
            first: values.given(Key::MasterAddr),
            second: values.given(Key::Nnodes),
            reason: "rank 0 can move to another node, and the workers meet where it is; how this node is reached is said with --address",
        });
    }
    let address = address::of_this_node(values, &coordination, elastic.shortest_lease(), notes)?;
    let node_rank = values.parse(Key::NodeRank, parse::at_least(0))?;
    Ok(Nodes {
        coordination,
        elastic,
        address,
        node_rank,
        topology: values
            .parse(Key::Topology, parse::topology)?
            .unwrap_or_default(),
        node_count_hint,
    })
}

fn range(values: &Values) -> Result<NodeRange, ConfigError> {
    let one = NodeRange { min: 1, max: 1 };
    Ok(values.parse(Key::Nnodes, parse::nodes)?.unwrap_or(one))
}

fn elastic(values: &Values) -> Result<Elastic, ConfigError> {
    let elastic = Elastic {
        nodes: range(values)?,
        spares: values.require(Key::Spares, parse::at_least(0))?,
        node_multiple: values.require(Key::NodeMultiple, parse::at_least(1))?,
        wait_for_nodes: values.require(Key::WaitForNodes, duration::parse)?,
        shrink_after: values.require(Key::ShrinkAfter, duration::parse)?,
        grow: values.require(Key::Grow, parse::grow)?,
        witness: values.require(Key::Witness, parse::witness)?,
        lease: values.require(Key::Lease, duration::parse)?,
        witness_lease: values.require(Key::WitnessLease, duration::parse)?,
    };
    for (key, lease) in [
        (Key::Lease, elastic.lease),
        (Key::WitnessLease, elastic.witness_lease),
    ] {
        if lease < SHORTEST_LEASE {
            return Err(ConfigError::Value {
                given: values.given(key),
                reason: "must be at least 2s: below that, a busy moment looks like a lost node"
                    .to_owned(),
            });
        }
    }
    if elastic.witness_lease > elastic.lease {
        return Err(ConfigError::Conflict {
            first: values.given(Key::WitnessLease),
            second: values.given(Key::Lease),
            reason: "training steps as a witness allow for a shorter lease, not for a longer one",
        });
    }
    Ok(elastic)
}

/// Some multiple must lie in the range; where its ends are none, the user should know which sizes there are.
fn multiples(
    values: &Values,
    elastic: &Elastic,
    notes: &mut Vec<String>,
) -> Result<(), ConfigError> {
    let (NodeRange { min, max }, multiple) = (elastic.nodes, elastic.node_multiple);
    let smallest = min.div_ceil(multiple).saturating_mul(multiple);
    let largest = max / multiple * multiple;
    if smallest > largest {
        return Err(ConfigError::Conflict {
            first: values.given(Key::NodeMultiple),
            second: values.given(Key::Nnodes),
            reason: "no number of nodes in that range is such a multiple",
        });
    }
    if (smallest, largest) != (min, max) {
        notes.push(format!(
            "{} lets {smallest} to {largest} nodes run workers, out of {}",
            values.given(Key::NodeMultiple),
            values.given(Key::Nnodes),
        ));
    }
    Ok(())
}

/// The agent's watchdog and heartbeat as a job with this lease can have them: a hung agent renews nothing, and has to be
/// replaced while the last renewal still holds, or the workers are ended for nothing.
pub(super) fn under_lease(
    values: &Values,
    lease: Duration,
    (heartbeat, watchdog): (Duration, Duration),
) -> Result<(Duration, Duration), ConfigError> {
    let longest = lease / 2;
    if watchdog <= longest {
        return Ok((heartbeat, watchdog));
    }
    if values.is_written(Key::AgentWatchdog) {
        return Err(ConfigError::Conflict {
            first: values.given(Key::AgentWatchdog),
            second: values.given(Key::Lease),
            reason: "a hung agent renews no lease: to be replaced in time, its watchdog can be half of the lease at most",
        });
    }
    if heartbeat.saturating_mul(2) <= longest {
        return Ok((heartbeat, longest));
    }
    if values.is_written(Key::AgentHeartbeat) {
        return Err(ConfigError::Conflict {
            first: values.given(Key::AgentHeartbeat),
            second: values.given(Key::Lease),
            reason: "the agent's watchdog is half of the lease at most, and at least twice the heartbeat",
        });
    }
    Ok((longest / 4, longest))
}

/// Whether the value was asked for where it must have a meaning: a site's file may set it for other jobs.
pub(super) fn is_meant_for_this_job(values: &Values, key: Key) -> bool {
    values
        .get(key)
        .is_some_and(|value| !matches!(value.origin, Origin::File(..)))
}
