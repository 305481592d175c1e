// SPDX-License-Identifier: Apache-2.0
//! What people and scripts ask over the control socket.

use std::time::Duration;

use steadfast_coord::StatusView;
use steadfast_core::{LeaderState, MemberEvent, MemberState, OperatorRequest};
use steadfast_proto::v1::{
    CheckpointReply, CheckpointRequest, DrainReply, DrainRequest, RestartReply, StatusReply,
    StopReply, StopRequest,
};
use tokio::sync::oneshot;

use super::Agent;
use crate::agent::AgentError;
use crate::agent::control::ControlRequest;
use crate::clock;
use crate::redact;

/// Why there can be no checkpoint on request.
const CANNOT_SAVE: &str = "no checkpoint can be asked for now: the workers do not train yet, or do not ask whether one is wanted \
     (`steadfast.should_checkpoint()` at each step, or --checkpoint-signal)";

impl Agent {
    pub(super) async fn on_control(&mut self, request: ControlRequest) -> Result<(), AgentError> {
        // Whoever asked may be gone by now.
        match request {
            ControlRequest::Status(reply) => drop(reply.send(self.status())),
            ControlRequest::Stop(stop, reply) => {
                let message = self.stop_on_request(stop).await?;
                drop(reply.send(StopReply { message }));
            }
            ControlRequest::Drain(drain, reply) => {
                let message = self.drain_on_request(drain).await?;
                drop(reply.send(DrainReply { message }));
            }
            ControlRequest::Restart(restart, reply) => {
                let reason = reason_of(restart.reason, "restart");
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
            ControlRequest::Checkpoint(checkpoint, reply) => {
                self.checkpoint_on_request(checkpoint, reply).await?;
            }
        }
        Ok(())
    }

    async fn stop_on_request(&mut self, stop: StopRequest) -> Result<String, AgentError> {
        let grace = duration(stop.grace_seconds);
        let message = format!(
            "stopping {}: {}",
            self.settings.job,
            self.how_workers_end(grace)
        );
        let reason = reason_of(stop.reason, "stop");
        self.tell(MemberEvent::Operator(OperatorRequest::Stop {
            grace,
            reason,
        }))
        .await?;
        Ok(message)
    }

    async fn drain_on_request(&mut self, drain: DrainRequest) -> Result<String, AgentError> {
        let grace = duration(drain.grace_seconds);
        let message = format!(
            "taking {} out of {}, which goes on without it if it can: {}",
            self.settings.node,
            self.settings.job,
            self.how_workers_end(grace)
        );
        let reason = reason_of(drain.reason, "drain");
        self.tell(MemberEvent::Operator(OperatorRequest::Leave {
            grace,
            reason,
        }))
        .await?;
        Ok(message)
    }

    fn how_workers_end(&self, grace: Option<Duration>) -> String {
        let shown = grace.unwrap_or(self.settings.stop_grace).as_secs_f64();
        if self.saving.can_ask(self.generation.number) {
            format!(
                "the workers are asked for a checkpoint, get SIGTERM then, and SIGKILL after {shown:.0} s in all"
            )
        } else {
            format!("workers get SIGTERM now, and SIGKILL after {shown:.0} s")
        }
    }

    async fn checkpoint_on_request(
        &mut self,
        request: CheckpointRequest,
        reply: oneshot::Sender<CheckpointReply>,
    ) -> Result<(), AgentError> {
        let answer = |message: &str| CheckpointReply {
            step: None,
            message: message.to_owned(),
        };
        if !self.generation.is_active() || !self.saving.can_ask(self.generation.number) {
            drop(reply.send(answer(CANNOT_SAVE)));
            return Ok(());
        }
        let number = self.saving.next_number(clock::monotonic_ns());
        let reason = reason_of(request.reason, "checkpoint");
        self.tell(MemberEvent::Operator(OperatorRequest::Checkpoint {
            number,
            reason,
        }))
        .await?;
        if request.wait {
            self.saving.keep(number, reply);
        } else {
            drop(reply.send(answer("the workers are asked for a checkpoint")));
        }
        Ok(())
    }

    pub(super) fn status(&self) -> StatusReply {
        let advice = self.saving_advice();
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
            committed_step: view.plan.as_ref().and_then(|plan| plan.committed),
            saving: advice.map(|advice| advice.in_words()).unwrap_or_default(),
            checkpoint_interval_seconds: advice.map(|advice| advice.interval.as_secs_f64()),
            health: [
                self.node.status(),
                self.nvml.status(),
                self.self_check.status(),
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

fn reason_of(given: String, command: &str) -> String {
    if given.is_empty() {
        format!("asked for by `steadfast {command}`")
    } else {
        given
    }
}

fn duration(seconds: Option<f64>) -> Option<Duration> {
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
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
