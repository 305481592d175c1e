// SPDX-License-Identifier: Apache-2.0
//! What changes while a plan is in force, and what of a plan the leader alone must know.
//!
//! Both stand beside the plan, since every member is sent the plan as a whole: its size times the number of members is
//! what a restart costs, so it is written once and holds what all must know.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Location, Plan, PlanPhase, SaveOrder, SaveOutcome};
use crate::{Generation, NodeName, RECORD_VERSION};

/// What has become of the plan in force, under `job/course`. One of another generation than the plan's means nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Course {
    /// See [`RECORD_VERSION`].
    pub version: u32,
    /// The plan's generation.
    pub generation: Generation,
    /// See [`Plan::phase`].
    pub phase: PlanPhase,
    /// See [`Plan::witness_ms`].
    pub witness_ms: u64,
    /// See [`Plan::save`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save: Option<SaveOrder>,
    /// See [`Plan::last_save`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_save: Option<SaveOutcome>,
    /// See [`Plan::committed`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<u64>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// Where the members of the plan in force stand, under `places`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// See [`RECORD_VERSION`].
    pub version: u32,
    /// The plan's generation.
    pub generation: Generation,
    /// By node.
    pub places: BTreeMap<NodeName, Place>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// Where one member stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Place {
    /// See [`super::PlanMember::boot`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// See [`super::PlanMember::machine`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// See [`super::PlanMember::location`].
    #[serde(default, skip_serializing_if = "Location::is_empty")]
    pub location: Location,
}

impl Course {
    /// The course that `plan` is on.
    pub fn of(plan: &Plan) -> Self {
        Self {
            version: RECORD_VERSION,
            generation: plan.generation,
            phase: plan.phase.clone(),
            witness_ms: plan.witness_ms,
            save: plan.save.clone(),
            last_save: plan.last_save.clone(),
            committed: plan.committed,
            extra: BTreeMap::new(),
        }
    }

    /// Puts it into the plan. What ends a generation is never taken back, and its window never shrinks.
    pub(crate) fn put_into(&self, plan: &mut Plan) {
        if plan.is_run() {
            plan.phase = self.phase.clone();
        }
        plan.witness_ms = plan.witness_ms.max(self.witness_ms);
        plan.save.clone_from(&self.save);
        plan.last_save.clone_from(&self.last_save);
        plan.committed = self.committed;
    }
}

impl Places {
    /// Where the members of `plan` stand.
    pub(crate) fn of(plan: &Plan) -> Self {
        let place = |member: &super::PlanMember| {
            let place = Place {
                boot: member.boot.clone(),
                machine: member.machine.clone(),
                location: member.location.clone(),
            };
            (member.node.clone(), place)
        };
        Self {
            version: RECORD_VERSION,
            generation: plan.generation,
            places: plan.members.iter().map(place).collect(),
            extra: BTreeMap::new(),
        }
    }

    /// Puts them into the plan.
    pub(crate) fn put_into(&self, plan: &mut Plan) {
        for member in &mut plan.members {
            if let Some(place) = self.places.get(&member.node) {
                member.boot.clone_from(&place.boot);
                member.machine.clone_from(&place.machine);
                member.location = place.location.clone();
            }
        }
    }
}
