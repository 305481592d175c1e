// SPDX-License-Identifier: Apache-2.0
//! What the decision core wants done.

use std::os::fd::OwnedFd;

use serde_json::json;
use steadfast_coord::HostEffect;
use steadfast_core::{LeaseId, MemberEvent, Plan, kinds};
use steadfast_proto::v1::{FaultClass, FaultRole, Finding};

use super::Agent;
use crate::agent::launch::Places;
use crate::agent::ports::reserve;
use crate::agent::{AgentError, exits, launch};
use crate::keeper::protocol::{Request, StartRequest, StopRequest};
use crate::keeper::runtime_dir::SOCKET_NAME;

impl Agent {
    pub(super) async fn on_effect(&mut self, effect: HostEffect) -> Result<(), AgentError> {
        match effect {
            HostEffect::Start { plan, tenure } => self.start(&plan, tenure).await,
            HostEffect::Stop {
                generation,
                first_signal,
                grace,
                reason,
            } => {
                self.generation.stopping |= generation.0 == self.generation.number;
                self.hear_workers(generation.0);
                let signal = exits::signal_name(first_signal);
                let fields = json!({ "signal": signal, "grace_seconds": grace.as_secs_f64(), "reason": reason });
                self.journal
                    .record_incident(generation.0, "generation.stopping", fields);
                let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
                let stop = StopRequest {
                    generation: generation.0,
                    first_signal,
                    grace_ms,
                };
                self.ask(&Request::Stop(stop), Vec::new())?;
                self.release_workers(generation.0);
                Ok(())
            }
            HostEffect::Look => {
                self.on_look();
                Ok(())
            }
            HostEffect::KillNow { generation } => {
                let stop = StopRequest {
                    generation: generation.0,
                    first_signal: 9,
                    grace_ms: 0,
                };
                self.ask(&Request::Stop(stop), Vec::new())
            }
            HostEffect::Fence {
                lease_until,
                tenure,
                generation,
                witness,
            } => self.on_fence((tenure, lease_until), generation, witness),
            HostEffect::Save { generation, order } => self.on_save(generation, order).await,
            HostEffect::SaveEnded {
                generation,
                outcome,
            } => {
                self.on_save_ended(generation, &outcome);
                Ok(())
            }
            HostEffect::Committed { generation, step } => {
                self.on_committed(generation, step);
                Ok(())
            }
            HostEffect::Postpone { within } => self.on_postpone(within),
            HostEffect::Say(text) => {
                self.journal
                    .record(self.generation.number, "job.said", json!({ "text": text }));
                self.say(&text);
                Ok(())
            }
            HostEffect::Finish(result) => self.begin_to_end(result).await,
        }
    }

    pub(super) async fn start(&mut self, plan: &Plan, tenure: LeaseId) -> Result<(), AgentError> {
        let generation = plan.generation.0;
        let Some((member, group_rank)) = launch::place(plan, &self.settings.node) else {
            self.say(&format!(
                "generation {generation} has no place for this node"
            ));
            return Ok(());
        };
        // The last words of the generation before may still be on their way to a slow disk.
        self.outputs.forget(generation.saturating_sub(2));
        let directories = launch::make_directories(&self.settings, plan, member.slots).await;
        if let Err(error) = directories {
            self.say(&format!(
                "{error}; the workers run, but leave no error files and perhaps no logs"
            ));
        }
        let prepared = launch::prepare_hook(&self.hook, plan, member.slots).await;
        if let Err(error) = &prepared {
            self.say(&format!(
                "the workers run without the Python hook and its progress pages: {error}"
            ));
        }
        self.saving_costs.begin();
        let resume = match self.choose_checkpoint(plan).await {
            Ok(resume) => resume,
            Err(why) => return self.cannot_resume(generation, why).await,
        };
        let places = Places {
            resume,
            control_socket: self.welcome.runtime_dir.join(SOCKET_NAME),
            hook: prepared.is_ok().then(|| self.hook.clone()),
        };
        let workers = launch::workers(
            &self.settings,
            plan,
            (member, group_rank),
            &places,
            &launch::own_environment,
        );
        let reserved = self.take_reservation(plan, group_rank);
        let fields = json!({
            "world_size": plan.world_size,
            "restart_count": plan.restart_count,
            "master": format!("{}:{}", plan.master.address, plan.master.port),
            "why": plan.why,
        });
        self.journal
            .record_incident(generation, "generation.starting", fields);
        self.ask(
            &Request::Start(StartRequest {
                generation,
                tenure: tenure.0,
                workers,
            }),
            reserved,
        )
    }

    /// No worker is started: it would begin anew, or from an older checkpoint than there is.
    async fn cannot_resume(&mut self, generation: u64, why: String) -> Result<(), AgentError> {
        let fields = json!({ "why": why });
        self.journal
            .record_incident(generation, "checkpoint.unreadable", fields);
        self.tell(MemberEvent::Finding(Finding {
            kind: kinds::CHECKPOINT_UNREADABLE.to_owned(),
            class: FaultClass::Storage.into(),
            role: FaultRole::Cause.into(),
            generation,
            node: self.settings.node.clone(),
            fingerprint: kinds::CHECKPOINT_UNREADABLE.to_owned(),
            summary: why,
            ..Finding::default()
        }))
        .await
    }

    /// The socket that holds the master port of this generation, if this node hosts rank 0.
    pub(super) fn take_reservation(&mut self, plan: &Plan, group_rank: u32) -> Vec<OwnedFd> {
        if group_rank != 0 || self.settings.master_port.is_some() {
            return Vec::new();
        }
        let held = self
            .reservation
            .take()
            .filter(|reservation| reservation.port == plan.master.port);
        // A predecessor of this agent offered it, and the socket died with it.
        let held = held.or_else(|| reserve(Some(plan.master.port)).ok());
        held.map(|reservation| reservation.socket)
            .into_iter()
            .collect()
    }

    /// Makes sure that there is a port for the next generation. Returns it, or 0 when there is none.
    pub(super) fn offer_port(&mut self) -> u16 {
        if let Some(port) = self.settings.master_port {
            return port;
        }
        if self.reservation.is_none() {
            self.reservation = reserve(None).ok();
        }
        self.reservation
            .as_ref()
            .map_or(0, |reservation| reservation.port)
    }
}
