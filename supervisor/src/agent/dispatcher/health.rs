// SPDX-License-Identifier: Apache-2.0
//! What the node says about its hardware.

use steadfast_core::MemberEvent;

use super::Agent;
use crate::agent::AgentError;
use crate::agent::kernel_log::FromKernelLog;
use crate::agent::node_watch::Consequences;

impl Agent {
    pub(super) async fn on_kernel_log(&mut self, event: FromKernelLog) -> Result<(), AgentError> {
        match event {
            FromKernelLog::Opened(path) => self.node.log_opened(path),
            FromKernelLog::Failed(path, error) => {
                let news = self.node.log_failed(&path, &error);
                if let Some(text) = news.filter(|_| self.welcome.incarnation == 1) {
                    self.say(&text);
                }
            }
            FromKernelLog::Seen {
                sighting,
                place,
                told,
            } => {
                let active = self
                    .generation
                    .is_active()
                    .then_some(self.generation.number);
                let follows = self.node.take(*sighting, told, active);
                self.carry_out(follows).await?;
                place.done();
            }
            FromKernelLog::Gap(lost) => {
                let follows = self.node.log_gap(lost);
                self.carry_out(follows).await?;
            }
            FromKernelLog::Injected(title) => {
                let follows = self.node.log_injected(&title);
                self.carry_out(follows).await?;
            }
            FromKernelLog::CaughtUp => {
                for text in self.node.old_faults() {
                    if self.welcome.incarnation == 1 {
                        self.say(&text);
                    }
                }
            }
        }
        Ok(())
    }

    async fn carry_out(&mut self, follows: Consequences) -> Result<(), AgentError> {
        // First what has to be fast.
        if let Some(finding) = follows.finding {
            self.tell(MemberEvent::Finding(finding)).await?;
        }
        if let Some((kind, fields)) = follows.journal {
            self.journal
                .record_incident(self.generation.number, kind, fields);
        }
        if let Some(text) = follows.say {
            self.say(&text);
        }
        Ok(())
    }

    /// A generation has begun: what broke before it has not been told yet.
    pub(super) async fn tell_late_faults(&mut self) -> Result<(), AgentError> {
        for finding in self.node.late_faults(self.generation.number) {
            self.tell(MemberEvent::Finding(finding)).await?;
        }
        Ok(())
    }

    /// Notes the incidents that are over.
    pub(super) fn close_incidents(&mut self) {
        for fields in self.node.close_incidents() {
            self.journal
                .record(self.generation.number, "node.incident_closed", fields);
        }
    }
}
