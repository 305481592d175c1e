// SPDX-License-Identifier: Apache-2.0
//! How a job ends.

use std::collections::BTreeMap;

use super::{Leader, LeaderEffect, LeaderState, TERMINATE};
use crate::judgement::note_progress;
use crate::records::encode;
use crate::verdict::Verdict;
use crate::{
    EndRule, ExitReason, Generation, JobOutcome, JobResult, Ledger, Operation, Plan,
    RECORD_VERSION, Request, RequestKind,
};

/// How a job ends, before it is put into a record.
pub(super) struct Ending {
    pub(super) outcome: JobOutcome,
    pub(super) rule: EndRule,
    pub(super) exit: ExitReason,
    pub(super) message: String,
    pub(super) verdict: Option<Verdict>,
}

impl Leader {
    /// All workers finished.
    pub(super) fn succeed(&mut self, plan: &Plan, effects: &mut Vec<LeaderEffect>) {
        let mut ledger = self.ledger();
        note_progress(&mut ledger, self.best_step(plan));
        ledger.judged = plan.generation;
        let ending = Ending {
            outcome: JobOutcome::Succeeded,
            rule: EndRule::Completed,
            exit: ExitReason::Success,
            message: format!("all {} workers finished", plan.world_size),
            verdict: None,
        };
        self.end(plan.generation, &ledger, ending, effects);
    }

    /// Publishes the result. Nothing is decided after it.
    pub(super) fn end(
        &mut self,
        generation: Generation,
        ledger: &Ledger,
        mut ending: Ending,
        effects: &mut Vec<LeaderEffect>,
    ) {
        if ending.rule != EndRule::NodeAtFault {
            ending
                .message
                .push_str(&unkillable_remark(ledger, generation));
        }
        self.set(LeaderState::Deciding(generation), &ending.message);
        let (root_cause, others) = match ending.verdict {
            Some(verdict) => (Some(verdict.root), verdict.others),
            None => (None, Vec::new()),
        };
        let result = JobResult {
            version: RECORD_VERSION,
            outcome: ending.outcome,
            rule: ending.rule,
            exit: ending.exit,
            message: ending.message,
            generation,
            root_cause,
            others,
            restarts: generation.restart_count(),
            best_step: ledger.best_step,
            extra: BTreeMap::new(),
        };
        let mut transaction = self.guarded();
        transaction.then.push(Operation::Put {
            key: self.view.keys().result(),
            value: encode(&result),
            lease: None,
        });
        transaction.then.push(self.put_ledger(ledger));
        self.write(transaction, String::new(), effects);
    }
}

pub(super) fn stopped(request: &Request, clean: bool, verdict: Option<Verdict>) -> Ending {
    let signal = match request.kind {
        RequestKind::Stop { signal, .. } | RequestKind::Leave { signal, .. } => signal,
        RequestKind::Restart | RequestKind::Checkpoint { .. } => TERMINATE,
    };
    let (exit, how) = if matches!(request.kind, RequestKind::Stop { requeue: true, .. }) {
        (ExitReason::Infrastructure, "it is to be run again")
    } else if clean {
        (ExitReason::Success, "every worker ended with exit code 0")
    } else {
        (
            ExitReason::Interrupted(signal),
            "not every worker ended with exit code 0",
        )
    };
    Ending {
        outcome: JobOutcome::Stopped,
        rule: EndRule::Requested,
        exit,
        message: format!("the job was stopped: {}; {how}", request.reason),
        verdict,
    }
}

/// Workers that outlive the job must not go unmentioned, whatever ended it.
fn unkillable_remark(ledger: &Ledger, generation: Generation) -> String {
    ledger
        .excluded
        .iter()
        .filter(|(_, exclusion)| exclusion.generation == generation)
        .fold(String::new(), |text, (node, exclusion)| {
            text + "; besides, on " + &node.0 + " " + &exclusion.reason
        })
}

pub(super) fn node_at_fault(ledger: &Ledger) -> Ending {
    let nodes: Vec<_> = ledger
        .excluded
        .iter()
        .map(|(node, exclusion)| format!("{node}: {}", exclusion.reason))
        .collect();
    let root = ledger.last_fault.clone();
    Ending {
        outcome: JobOutcome::Failed,
        rule: EndRule::NodeAtFault,
        exit: ExitReason::Node,
        message: format!(
            "{}; no other node can take over: take the node out of service, it most likely needs a reboot, \
             and start the job elsewhere",
            nodes.join("; ")
        ),
        verdict: root.map(|root| Verdict {
            root,
            others: Vec::new(),
        }),
    }
}
