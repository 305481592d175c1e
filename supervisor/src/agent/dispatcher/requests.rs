// SPDX-License-Identifier: Apache-2.0
//! What people and scripts ask over the control socket.

use std::time::Duration;

use steadfast_coord::StatusView;
use steadfast_core::{LeaderState, MemberEvent, MemberState, OperatorRequest};
use steadfast_proto::v1::{RestartReply, StatusReply, StopReply};

use super::Agent;
use crate::agent::AgentError;
use crate::agent::control::ControlRequest;
use crate::clock;
use crate::redact;

impl Agent {
    pub(super) async fn on_control(&mut self, request: ControlRequest) -> Result<(), AgentError> {
        match request {
            // Whoever asked may be gone by now.
            ControlRequest::Status(reply) => drop(reply.send(self.status())),
            ControlRequest::Stop(stop, reply) => {
                let grace = stop
                    .grace_seconds
                    .and_then(|grace| Duration::try_from_secs_f64(grace).ok());
                let reason = if stop.reason.is_empty() {
                    "asked for by `steadfast stop`".to_owned()
                } else {
                    stop.reason
                };
                let shown = grace.unwrap_or(self.settings.stop_grace);
                let message = format!(
                    "stopping {}: workers get SIGTERM now, and SIGKILL after {:.0} s",
                    self.settings.job,
                    shown.as_secs_f64()
                );
                self.tell(MemberEvent::Operator(OperatorRequest::Stop {
                    grace,
                    reason,
                }))
                .await?;
                drop(reply.send(StopReply { message }));
            }
            ControlRequest::Restart(restart, reply) => {
                let reason = if restart.reason.is_empty() {
                    "asked for by `steadfast restart`".to_owned()
                } else {
                    restart.reason
                };
                self.tell(MemberEvent::Operator(OperatorRequest::Restart { reason }))
                    .await?;
                let from_generation = self.generation.number;
                let message =
                    format!("leaving generation {from_generation}; no restart is charged");
                drop(reply.send(RestartReply {
                    from_generation,
                    message,
                }));
            }
        }
        Ok(())
    }

    pub(super) fn status(&self) -> StatusReply {
        let view = self.view.borrow().clone();
        let uptime =
            Duration::from_nanos(clock::monotonic_ns().saturating_sub(self.welcome.started_ns));
        StatusReply {
            job: self.settings.job.clone(),
            node: self.settings.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            generation: view.generation.0,
            state: state_name(&view).to_owned(),
            reason: std::iter::once(reason(&view))
                .chain(self.coordination_trouble())
                .collect::<Vec<_>>()
                .join("; "),
            world_size: view.plan.as_ref().map_or(0, |plan| plan.world_size.into()),
            restarts_used: view.restarts_used,
            restarts_allowed: self.settings.max_restarts,
            step: self.generation.step,
            uptime_seconds: uptime.as_secs_f64(),
            workers: self.generation.status(),
            last_fault: view.last_fault,
            log_dir: self.settings.log.run_dir.display().to_string(),
            journal: self.settings.journal.display().to_string(),
            keeper_pid: u32::try_from(self.welcome.keeper_pid).unwrap_or(0),
            agent_pid: std::process::id(),
            agent_incarnation: self.welcome.incarnation,
            command: redact::command(&self.settings.command.argv),
            dropped: self.dropped(),
            health: [
                self.node.status(),
                self.nvml.status(),
                self.stall_status().into_iter().collect(),
                self.generation.loss_trouble.iter().cloned().collect(),
            ]
            .concat(),
        }
    }

    /// The output that was lost, in words.
    pub(super) fn dropped(&self) -> Vec<String> {
        let mut dropped = self.outputs.dropped();
        if self.welcome.dropped_bytes > 0 {
            dropped.push(format!(
                "{} bytes while there was no agent",
                self.welcome.dropped_bytes
            ));
        }
        dropped
    }
}

/// One word for how the job is: this node's part in it where that says more than the leader's.
fn state_name(view: &StatusView) -> &'static str {
    match (view.member_state, view.leader_state) {
        (MemberState::Starting(_), _) => "starting",
        (MemberState::Completed(_), _) => "completed",
        (MemberState::Draining(_), _) | (_, Some(LeaderState::Draining(_))) => "draining",
        (_, Some(LeaderState::Deciding(_))) | (MemberState::Stopped(_), _) => "deciding",
        (MemberState::Running(_), _) => "running",
        (MemberState::Spare, Some(LeaderState::Gathering)) => "gathering",
        (MemberState::Spare, _) => "spare",
        (MemberState::Joining, _) => "joining",
        (MemberState::Left, _) => "ended",
    }
}

/// What is waited for, by this node and by the leader if that is here.
fn reason(view: &StatusView) -> String {
    match view.leader_reason.as_str() {
        "" => view.member_reason.clone(),
        leader if leader == view.member_reason => view.member_reason.clone(),
        leader => format!("{}; leader: {leader}", view.member_reason),
    }
}
