// SPDX-License-Identifier: Apache-2.0
//! The job ends by itself before the scheduler ends it.

use serde_json::json;
use steadfast_core::{MemberEvent, OperatorRequest};

use super::Agent;
use crate::agent::AgentError;
use crate::clock;

/// The part of the time left that is kept for what comes after the workers' end: one in so many.
const SPARED: u32 = 10;

impl Agent {
    /// Has the job stopped when the time limit is near. The first request to stop stands, whichever node makes it.
    pub(super) async fn look_at_time_limit(&mut self) -> Result<(), AgentError> {
        let limit = self.settings.time_limit;
        let Some(left) = limit.and_then(|limit| limit.left(clock::monotonic_ns())) else {
            return Ok(());
        };
        self.settings.time_limit = None;
        let seconds = left.as_secs_f64().round();
        let fields = json!({ "left_seconds": seconds });
        let generation = self.generation.number;
        self.journal
            .record_incident(generation, "job.time_up", fields);
        let reason = format!("the scheduler's time limit is {seconds} s away");
        self.say(&format!(
            "{reason}: the job ends now, and is to be run again"
        ));
        let grace = left.saturating_sub(left / SPARED);
        self.tell(MemberEvent::Operator(OperatorRequest::TimeUp {
            grace,
            reason,
        }))
        .await
    }
}
