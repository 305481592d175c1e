// SPDX-License-Identifier: Apache-2.0
//! How things stand, for whoever asks.

use std::sync::Arc;

use steadfast_core::{
    Generation, JobResult, Leader, LeaderState, Member, MemberSettings, MemberState, Plan,
};
use steadfast_proto::v1::Finding;

/// How things stand.
#[derive(Debug, Clone, PartialEq)]
pub struct StatusView {
    /// This member's state.
    pub member_state: MemberState,
    /// What it waits for, in words.
    pub member_reason: String,
    /// The leader's state, when this node leads.
    pub leader_state: Option<LeaderState>,
    /// What the leader waits for, in words; empty when another node leads.
    pub leader_reason: String,
    /// The generation in force; 0 before the first.
    pub generation: Generation,
    /// The plan in force.
    pub plan: Option<Arc<Plan>>,
    /// Restarts charged since the last new training step.
    pub restarts_used: u32,
    /// Failures of the job so far: restarts that were charged, whether the budget was refilled since or not.
    pub failures: u32,
    /// Restarts allowed without a new training step.
    pub restarts_allowed: u32,
    /// Highest training step seen in any generation.
    pub best_step: Option<u64>,
    /// What opened the last incident, if there was one.
    pub last_fault: Option<Finding>,
    /// How the job ended, if it did.
    pub result: Option<JobResult>,
}

impl Default for StatusView {
    /// Before anything is known.
    fn default() -> Self {
        Self {
            member_state: MemberState::Joining,
            member_reason: "the session is being opened".to_owned(),
            leader_state: None,
            leader_reason: String::new(),
            generation: Generation(0),
            plan: None,
            restarts_used: 0,
            failures: 0,
            restarts_allowed: 0,
            best_step: None,
            last_fault: None,
            result: None,
        }
    }
}

impl StatusView {
    pub(super) fn of(member: &Member, leader: Option<&Leader>, settings: &MemberSettings) -> Self {
        let view = member.view();
        let plan = view.plan().map(|plan| Arc::clone(&plan.value));
        let ledger = view.ledger().map(|ledger| &ledger.value);
        let judged_step = ledger.and_then(|ledger| ledger.best_step);
        let best_step = member.best_step().max(judged_step);
        // New steps refill the budget. The ledger hears of it when the generation is judged.
        let refilled = best_step > judged_step;
        let used = ledger.map_or(0, |ledger| ledger.restarts_used);
        Self {
            member_state: member.state(),
            member_reason: member.reason(),
            leader_state: leader.map(Leader::state),
            leader_reason: leader.map(Leader::reason).unwrap_or_default(),
            generation: plan
                .as_ref()
                .map(|plan| plan.generation)
                .unwrap_or_default(),
            plan,
            restarts_used: if refilled { 0 } else { used },
            failures: ledger.map_or(0, |ledger| {
                u32::try_from(ledger.restarts_charged).unwrap_or(u32::MAX)
            }),
            restarts_allowed: settings.spec.max_restarts,
            best_step,
            last_fault: member
                .fault()
                .cloned()
                .or_else(|| ledger.and_then(|ledger| ledger.last_fault.clone())),
            result: view.result().cloned(),
        }
    }
}
