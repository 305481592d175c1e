// SPDX-License-Identifier: Apache-2.0
//! What the node says about its hardware: the kernel log, and the driver's library.

use serde_json::json;
use steadfast_core::MemberEvent;
use steadfast_health::incidents::Sighting;
use steadfast_health::nvml::{self, Condition, Report};

use super::Agent;
use crate::agent::AgentError;
use crate::agent::kernel_log::FromKernelLog;
use crate::agent::node_watch::Consequences;
use crate::agent::nvml_watch::{FromProbe, ProbeNews};
use crate::keeper::protocol::Request;

impl Agent {
    pub(super) async fn on_kernel_log(&mut self, event: FromKernelLog) -> Result<(), AgentError> {
        match event {
            FromKernelLog::Opened(path) => self.node.log_opened(path),
            FromKernelLog::Nvml(report) => {
                if self.nvml.is_served() {
                    self.on_report(report).await?;
                }
            }
            FromKernelLog::NoNvml(reason) => {
                if self.nvml.is_served() {
                    self.nvml.service_gone(&reason);
                }
            }
            FromKernelLog::Failed(path, error) => {
                self.nvml.service_gone("the node service is gone");
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
                self.on_sighting(*sighting, told).await?;
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

    async fn on_sighting(&mut self, sighting: Sighting, told: bool) -> Result<(), AgentError> {
        let active = self
            .generation
            .is_active()
            .then_some(self.generation.number);
        let follows = self.node.take(sighting, told, active);
        self.nvml.keep_quiet_about(&self.node.unresponsive());
        self.carry_out(follows).await
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

    pub(super) async fn on_probe(&mut self, event: FromProbe) -> Result<(), AgentError> {
        let report = match event {
            FromProbe::Says(report) => report,
            FromProbe::Gone(reason) => {
                let news = self.nvml.gone(&reason);
                self.tell_news(news);
                return Ok(());
            }
        };
        self.on_report(report).await
    }

    /// What the driver's library says, through the probe or the node service.
    async fn on_report(&mut self, report: Report) -> Result<(), AgentError> {
        let before = match &report {
            Report::Conditions { gpu, .. } => self.nvml.conditions_of(gpu).to_vec(),
            _ => Vec::new(),
        };
        if let Some(news) = self.nvml.note(&report) {
            self.tell_news(news);
        }
        match &report {
            Report::Opened { driver, gpus, .. } => self.node.set_gpus(driver, gpus),
            Report::Holders { gpu, processes } => {
                for text in self.node.strangers(gpu, processes) {
                    self.say(&text);
                }
            }
            Report::Conditions {
                gpu,
                conditions,
                first,
                ..
            } => self.tell_conditions(gpu, &before, conditions, *first),
            _ => {}
        }
        match self.sighting(&report, &before) {
            Some(sighting) => self.on_sighting(sighting, false).await,
            None => Ok(()),
        }
    }

    /// What a report says that the kernel log says as well.
    fn sighting(&self, report: &Report, before: &[Condition]) -> Option<Sighting> {
        match report {
            Report::Xid { gpu, code, at_ns } => nvml::xid(self.nvml.identity(gpu)?, *code, *at_ns),
            Report::Lost { gpu, at_ns } => nvml::lost(self.nvml.identity(gpu)?, *at_ns),
            Report::Conditions {
                gpu,
                conditions,
                first,
                at_ns,
            } => {
                let (from, to) = (recovery(before), recovery(conditions));
                // What was so at the first look may have been so before the job.
                let at_ns = if *first { 1 } else { *at_ns };
                let gpu = self.nvml.identity(gpu)?;
                (from != to).then(|| nvml::recovery(gpu, from, to, at_ns))?
            }
            _ => None,
        }
    }

    /// What is wrong with a GPU that was not before.
    fn tell_conditions(&mut self, gpu: &str, before: &[Condition], now: &[Condition], first: bool) {
        let ours = self.node.is_ours(gpu);
        for condition in now.iter().filter(|condition| !before.contains(condition)) {
            let fields = json!({
                "gpu": gpu,
                "condition": condition,
                "words": condition.to_string(),
                "action": condition.action().name(),
                "first": first,
            });
            self.journal
                .record(self.generation.number, "gpu.condition", fields);
            // What the driver wants is told as XID 154 is.
            let told = matches!(condition, Condition::Recovery(_)) && !first;
            if ours && !told && (!first || self.welcome.incarnation == 1) {
                let note = if first { "note: " } else { "" };
                self.say(&format!(
                    "{note}GPU {gpu}: {condition}. {}",
                    condition.action().advice()
                ));
            }
        }
    }

    fn tell_news(&mut self, news: ProbeNews) {
        self.journal
            .record(self.generation.number, news.kind, news.fields);
        if let Some(text) = news.say {
            self.say(&text);
        }
    }

    /// Starts the probe when it is due, and looks whether it hangs.
    pub(super) fn look_after_probe(&mut self) -> Result<(), AgentError> {
        for news in self.nvml.look() {
            self.tell_news(news);
        }
        match self.nvml.start_if_due() {
            Some(pid) => self.ask(&Request::Probe { pid: pid.as_raw() }, Vec::new()),
            None => Ok(()),
        }
    }
}

/// The number of what the driver says that the GPU needs; 0 for nothing.
fn recovery(conditions: &[Condition]) -> u32 {
    let number = |condition: &Condition| match condition {
        Condition::Recovery(number) => Some(*number),
        _ => None,
    };
    conditions.iter().find_map(number).unwrap_or_default()
}
