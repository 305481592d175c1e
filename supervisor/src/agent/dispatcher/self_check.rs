// SPDX-License-Identifier: Apache-2.0
//! Looks at this node, and the report that waits a moment for them.

use serde_json::json;
use steadfast_core::{FaultScore, Generation, LocalRank, MemberEvent};

use super::Agent;
use crate::agent::AgentError;
use crate::agent::self_check::FromSelfCheck;
use crate::keeper::protocol::Unkillable;

/// That nothing of a generation runs any more, and what could not be killed.
#[derive(Debug)]
pub(super) struct StopReport {
    pub(super) generation: u64,
    pub(super) unkillable: Vec<Unkillable>,
}

impl Agent {
    pub(super) async fn on_self_check(&mut self, event: FromSelfCheck) -> Result<(), AgentError> {
        let number = self.generation.number;
        match event {
            FromSelfCheck::Looked(looked) => {
                self.journal
                    .record(number, "node.looked_at", looked.fields.clone());
                let gpus = self.node.our_gpus();
                self.self_check.note_end(&looked, gpus);
                let weight = self.node.past_faults(&looked.book);
                if FaultScore::is_repeated(weight) != FaultScore::is_repeated(self.told_past) {
                    // What has decayed a little is not worth a write.
                    self.told_past = weight;
                    self.tell(MemberEvent::PastFaults(weight)).await?;
                }
                self.tell(MemberEvent::Looked(looked.faults)).await?;
            }
            FromSelfCheck::Late => {
                let fields = json!({ "why": "the restart does not wait for it any longer" });
                self.journal.record(number, "node.look_is_late", fields);
                self.self_check.note_late();
            }
        }
        if self.self_check.is_awaited() {
            return Ok(());
        }
        match self.held_report.take() {
            Some(report) => self.report_stopped(report).await,
            None => Ok(()),
        }
    }

    /// The workers are about to be stopped, and the node may be why.
    pub(super) fn on_look(&mut self) {
        self.self_check.look_now(self.node.our_gpus());
    }

    /// Once in each heartbeat.
    pub(super) fn look_at_node(&mut self) {
        let gpus = self.node.our_gpus();
        self.self_check
            .look_if_due(self.generation.is_active(), gpus);
    }

    /// Tells the core that the workers are gone, as soon as it is known how fit the node is, or that takes too long.
    pub(super) async fn report_when_looked(
        &mut self,
        report: StopReport,
    ) -> Result<(), AgentError> {
        if self.self_check.is_awaited() {
            self.held_report = Some(report);
            return Ok(());
        }
        self.report_stopped(report).await
    }

    async fn report_stopped(&mut self, report: StopReport) -> Result<(), AgentError> {
        let next_port = self.offer_port();
        let unkillable = report.unkillable.iter();
        let unkillable = unkillable.filter_map(|process| process.local_rank);
        self.tell(MemberEvent::Stopped {
            generation: Generation(report.generation),
            unkillable: unkillable.map(LocalRank).collect(),
            next_port,
        })
        .await
    }
}
