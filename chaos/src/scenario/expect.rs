// SPDX-License-Identifier: Apache-2.0
//! What must hold in the end.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What must hold in the end, besides what must always hold: no two workers of one rank at once, generations only grow, a
/// generation has one plan, nobody resumes from a checkpoint that was not saved whole, nothing starts after the end, and
/// nothing is left behind.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Expect {
    /// Exit code of the supervisors that come to an end by themselves.
    pub(crate) exit_code: i32,
    /// Exit codes that are right for single nodes, such as `{ n2 = 143 }` for one that was asked to leave.
    pub(crate) exit_codes: BTreeMap<String, i32>,
    /// Exit codes that are right for the nodes that faults have hit, by the faults' names, such as `{ preempt = 143 }`.
    pub(crate) exit_code_of: BTreeMap<String, i32>,
    /// Whether the job must have made all its steps, and ended with the loss of a run that was left alone. By default it
    /// must if the exit code is 0.
    pub(crate) finished: Option<bool>,
    /// Workers that must have finished, where that is not all of them (after a shrink).
    pub(crate) finished_ranks: Option<u32>,
    /// Restarts (new generations) that there must have been.
    pub(crate) restarts: Option<u64>,
    /// Most restarts that there may have been.
    pub(crate) restarts_at_most: Option<u64>,
    /// Seconds from a fault until the next new step, at most, for every fault that ended a generation.
    pub(crate) recovery_within_seconds: Option<f64>,
    /// Steps that had to be made again, at most, for every restart.
    pub(crate) lost_steps_at_most: Option<u64>,
    /// What the supervisor must have named as the cause of the first restart, or of the end.
    pub(crate) cause: Option<ExpectedCause>,
    /// Texts each of which one of the supervisors must have said on its standard error.
    pub(crate) says: Vec<String>,
    /// Texts that none of the supervisors may have said.
    pub(crate) never_says: Vec<String>,
    /// Milliseconds for which a worker may have lived beside one of a newer generation: only where a whole node was paused,
    /// which nobody on it can help.
    pub(crate) overlap_at_most_ms: u64,
    /// What may be left behind: parts of the words for it, such as `/sys/fs/cgroup` where even SIGKILL did nothing.
    pub(crate) may_leave: Vec<String>,
    /// Whether it is right that the job ends before some faults have had their moment, or hits those who have just ended.
    pub(crate) faults_may_come_late: bool,
    /// Whether everything must have ended within the limit; the harness ends the job otherwise.
    pub(crate) ends: bool,
}

/// A root cause that the supervisor must name.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ExpectedCause {
    /// Class of the fault, such as `killed`, `program`, `hang`, `node_lost`, `gpu_hardware`, `host_memory`.
    pub(crate) class: Option<String>,
    /// The fault's own rank must be named, or the rank that is given here.
    pub(crate) rank: Option<u32>,
    /// The node must be named.
    pub(crate) node: Option<String>,
    /// The rank that the fault with this name was injected into must be named.
    pub(crate) rank_of: Option<String>,
    /// The node that the fault with this name was injected into must be named.
    pub(crate) node_of: Option<String>,
}

impl Default for Expect {
    fn default() -> Self {
        Self {
            exit_code: 0,
            exit_codes: BTreeMap::new(),
            exit_code_of: BTreeMap::new(),
            finished: None,
            finished_ranks: None,
            restarts: None,
            restarts_at_most: None,
            recovery_within_seconds: None,
            lost_steps_at_most: None,
            cause: None,
            says: Vec::new(),
            never_says: Vec::new(),
            overlap_at_most_ms: 0,
            may_leave: Vec::new(),
            faults_may_come_late: false,
            ends: true,
        }
    }
}
