// SPDX-License-Identifier: Apache-2.0
//! Plans, read from the store's JSON.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Limits;

/// A plan as it was written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlanSeen {
    pub(super) generation: u64,
    pub(super) world_size: u64,
    pub(super) drains: bool,
    /// It is drained so that more nodes can be taken in.
    pub(super) grows: bool,
    /// For how long a step vouches for the workers, in virtual microseconds.
    pub(super) window: u64,
    /// Node and incarnation, number of workers, first rank.
    members: Vec<((String, u64), u64, u64)>,
    master: Value,
    restart_count: u64,
}

/// Reads a plan; `None` if it is none.
pub(super) fn read_plan(value: &Value) -> Option<PlanSeen> {
    let member = |value: &Value| {
        let keeper = (
            value["node"].as_str()?.to_owned(),
            value["incarnation"].as_u64()?,
        );
        Some((
            keeper,
            value["slots"].as_u64()?,
            value["base_rank"].as_u64()?,
        ))
    };
    Some(PlanSeen {
        generation: value["generation"].as_u64()?,
        world_size: value["world_size"].as_u64()?,
        drains: drains(value),
        grows: is_growth(&value["phase"]["drain"]["request"]),
        window: value["witness_ms"].as_u64()? * 1_000,
        members: value["members"]
            .as_array()?
            .iter()
            .map(member)
            .collect::<Option<_>>()?,
        master: value["master"].clone(),
        restart_count: value["restart_count"].as_u64()?,
    })
}

/// The plan after what is said to have become of it; `None` if that is of another one.
pub(super) fn read_course(plan: &PlanSeen, value: &Value) -> Option<PlanSeen> {
    let is_its = value["generation"].as_u64() == Some(plan.generation);
    is_its.then_some(PlanSeen {
        drains: drains(value),
        grows: is_growth(&value["phase"]["drain"]["request"]),
        window: value["witness_ms"].as_u64()? * 1_000,
        ..plan.clone()
    })
}

/// A plan that says nothing is to run.
fn drains(value: &Value) -> bool {
    !value["phase"].is_null() && value["phase"].as_str() != Some("run")
}

/// The leader's own wish to begin anew.
fn is_growth(request: &Value) -> bool {
    let reason = request["reason"].as_str().unwrap_or_default();
    request["kind"].as_str() == Some("restart") && reason.contains("nodes can be used instead of")
}

impl PlanSeen {
    pub(super) fn keepers(&self) -> impl Iterator<Item = &(String, u64)> {
        self.members.iter().map(|(keeper, ..)| keeper)
    }

    /// The ranks are 0..world size, each on one node; the number of nodes is allowed.
    pub(super) fn is_allowed(&self, limits: &Limits) -> Result<(), String> {
        let nodes: BTreeSet<_> = self.members.iter().map(|((node, _), ..)| node).collect();
        let count = self.members.len() as u64;
        let mut next = 0;
        for (_, slots, base_rank) in &self.members {
            if *base_rank != next || *slots == 0 {
                return Err(format!(
                    "the ranks of generation {} have gaps: {:?}",
                    self.generation, self.members
                ));
            }
            next += slots;
        }
        if nodes.len() as u64 != count || next != self.world_size {
            return Err(format!(
                "generation {} is not one world: {:?}",
                self.generation, self.members
            ));
        }
        let (least, most, multiple) = (limits.min_nodes, limits.max_nodes, limits.node_multiple);
        if count < least || count > most || !count.is_multiple_of(multiple) {
            let generation = self.generation;
            return Err(format!(
                "generation {generation} has {count} nodes; {least} to {most} by {multiple} are allowed"
            ));
        }
        if self.restart_count + 1 != self.generation {
            return Err(format!(
                "generation {} calls itself restart {}",
                self.generation, self.restart_count
            ));
        }
        Ok(())
    }

    /// Within a generation, only "run" may become "drain", and steps may come to vouch for longer.
    pub(super) fn may_become(&self, next: &Self) -> Result<(), String> {
        let same = self.members == next.members
            && self.world_size == next.world_size
            && self.master == next.master
            && self.restart_count == next.restart_count
            && self.window <= next.window;
        if !same {
            return Err(format!(
                "the plan of generation {} was changed: {self:?} to {next:?}",
                self.generation
            ));
        }
        if self.drains && !next.drains {
            return Err(format!(
                "generation {} was drained and then told to run",
                self.generation
            ));
        }
        Ok(())
    }
}
