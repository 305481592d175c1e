// SPDX-License-Identifier: Apache-2.0
//! The job ends by itself before the scheduler ends it.

use std::time::Duration;

use serde_json::json;
use steadfast_core::{MemberEvent, OperatorRequest};

use super::Agent;
use crate::agent::AgentError;
use crate::clock;

/// The part of the time left that is kept for what comes after the workers' end: one in so many.
const SPARED: u32 = 10;

impl Agent {
    /// Has the job stopped when the time limit is near.
    pub(super) async fn look_at_time_limit(&mut self) -> Result<(), AgentError> {
        let left = self.settings.time_limit.near(clock::monotonic_ns());
        match left {
            Some(_) => self.end_in_time(left).await,
            None => Ok(()),
        }
    }

    /// Has the job stopped because the scheduler's signal says that the time limit is near.
    pub(super) async fn on_time_up(&mut self) -> Result<(), AgentError> {
        let left = self.settings.time_limit.left(clock::monotonic_ns());
        self.end_in_time(left).await
    }

    /// Where it is not known how much time is left, the workers get the usual grace. The first request to stop stands, whichever
    /// node makes it.
    async fn end_in_time(&mut self, left: Option<Duration>) -> Result<(), AgentError> {
        self.settings.time_limit.lead = None;
        let seconds = left.map(|left| left.as_secs_f64().round());
        let fields = json!({ "left_seconds": seconds });
        let generation = self.generation.number;
        self.journal
            .record_incident(generation, "job.time_up", fields);
        let reason = match seconds {
            Some(seconds) => format!("the scheduler's time limit is {seconds} s away"),
            None => "the scheduler's signal says that time is nearly up".to_owned(),
        };
        self.say(&format!(
            "{reason}: the job ends now, and is to be run again"
        ));
        let spared = |left: Duration| left.saturating_sub(left / SPARED);
        let grace = left.map_or(self.settings.stop_grace, spared);
        self.tell(MemberEvent::Operator(OperatorRequest::TimeUp {
            grace,
            reason,
        }))
        .await
    }
}
