// SPDX-License-Identifier: Apache-2.0
//! The job's memory of faults.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfast_proto::v1::Finding;

use super::FaultScore;
use crate::{Generation, NodeName, RECORD_VERSION};

/// Restart budget and failure history, under `ledger/job`. The leader changes it only together with the plan or
/// the result, in one transaction, which is why an incident is charged exactly once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// See [`RECORD_VERSION`].
    pub version: u32,
    /// Restarts charged since the last progress; compared with the spec's `max_restarts`.
    pub restarts_used: u32,
    /// Restarts charged in all; never goes down.
    pub restarts_charged: u64,
    /// Highest training step of all generations that have been judged.
    pub best_step: Option<u64>,
    /// How often each failure happened since the last new step, by fingerprint.
    pub failures: BTreeMap<String, u32>,
    /// The last generation that has been judged; its incident is in the numbers above.
    pub judged: Generation,
    /// Why the next generation will exist, in words, when one was granted but members are still missing for it.
    pub pending: Option<String>,
    /// For how long the next generation is waited with, in seconds, so that what failed can be put right meanwhile.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pause_s: u64,
    /// Nodes that get no rank any more, and why.
    pub excluded: BTreeMap<NodeName, Exclusion>,
    /// How often each node was lost. One that is lost again and again has to wait before it gets a rank.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub losses: BTreeMap<NodeName, u32>,
    /// Parts of the cluster that get no rank any more, as [`super::Location::nvlink_domain`] writes them, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub excluded_domains: BTreeMap<String, Exclusion>,
    /// What the hardware faults of each GPU weigh, by its UUID.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub faults: BTreeMap<String, FaultScore>,
    /// Root cause of the last incident, if there was one.
    pub last_fault: Option<Finding>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Why a node gets no rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exclusion {
    /// The generation whose end showed it.
    pub generation: Generation,
    /// In words.
    pub reason: String,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            version: RECORD_VERSION,
            restarts_used: 0,
            restarts_charged: 0,
            best_step: None,
            failures: BTreeMap::new(),
            judged: Generation::default(),
            pending: None,
            pause_s: 0,
            excluded: BTreeMap::new(),
            losses: BTreeMap::new(),
            excluded_domains: BTreeMap::new(),
            faults: BTreeMap::new(),
            last_fault: None,
            extra: BTreeMap::new(),
        }
    }
}
