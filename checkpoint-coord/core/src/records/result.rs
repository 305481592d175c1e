// SPDX-License-Identifier: Apache-2.0
//! How a job ended.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfast_proto::v1::Finding;

use crate::{ExitReason, Generation};

/// The end of the job, under `result`. Once written it never changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    /// See [`crate::RECORD_VERSION`].
    pub version: u32,
    /// Success, failure, or stopped on request.
    pub outcome: JobOutcome,
    /// Which rule ended the job.
    pub rule: EndRule,
    /// What the exit code is to say.
    pub exit: ExitReason,
    /// One or two sentences for a person: what happened, where, and what to do next.
    pub message: String,
    /// The last generation; 0 when none was started.
    pub generation: Generation,
    /// What was at fault, when something was.
    pub root_cause: Option<Finding>,
    /// The other findings of the last generation, earliest first; bounded.
    pub others: Vec<Finding>,
    /// Restarts in all, whatever their cause.
    pub restarts: u64,
    /// Highest training step that was seen, if any.
    pub best_step: Option<u64>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// How a job can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    /// Every worker of the last generation exited with code 0.
    Succeeded,
    /// It could not go on.
    Failed,
    /// Somebody asked for it.
    Stopped,
}

/// The rule that ended a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndRule {
    /// All workers finished.
    Completed,
    /// A signal or an operator asked for it.
    Requested,
    /// A failure that is bound to happen again, such as a missing module.
    CertainFailure,
    /// The same failure happened [`crate::SAME_FAILURE_LIMIT`] times without a new step in between.
    RepeatedFailure,
    /// No restart was left.
    BudgetExhausted,
    /// A node could not be used any more and no other could take over.
    NodeAtFault,
    /// Too few members, for too long.
    NotEnoughNodes,
    /// This member was asked to leave; the job itself goes on without it.
    Left,
    /// This member's settings differ from the job's; the job itself goes on without it.
    Refused,
}

impl JobResult {
    /// The process exit code, before any remapping by the user.
    pub fn exit_code(&self) -> i32 {
        self.exit.code()
    }
}
