// SPDX-License-Identifier: Apache-2.0
//! What the ends and last words of all ranks come to, by the rules that `steadfast diagnose` goes by.
//!
//! Each node sends what its ranks said along with its findings; the node that leads judges them together. The rules take a
//! moment to be made ready, so that is done at the first failure, on a thread that nobody waits for.

mod evidence;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use jiff::tz::TimeZone;
use steadfast_core::{ClocksAhead, Jury, NodeName, Opinion, Plan, Rank, kinds};
use steadfast_diagnosis::{Action, Answer, Class, Rules, diagnose};
use steadfast_proto::v1::{FaultClass, FaultRole, Finding};

use super::exits::lines_as_evidence;
use crate::output::LastLines;
use crate::redact;
use crate::settings::RulesFile;

/// Judges words by the rules.
#[derive(Debug, Clone)]
pub(super) struct WordsJury {
    own: Option<RulesFile>,
    rules: Arc<OnceLock<Option<Rules>>>,
    zone: TimeZone,
}

/// A worker that was stopped, and what it had said until then.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) generation: u64,
    pub(super) rank: u32,
    pub(super) local_rank: u32,
    pub(super) pid: u32,
    /// When it had said that, at the latest.
    pub(super) wall_ms: i64,
    pub(super) tail: LastLines,
}

impl WordsJury {
    /// `own` are the user's rules, which go before the others.
    pub(super) fn new(own: Option<RulesFile>) -> WordsJury {
        WordsJury {
            own,
            rules: Arc::new(OnceLock::new()),
            zone: TimeZone::system(),
        }
    }

    /// Makes the rules ready, in a moment at which nobody waits for them.
    pub(super) fn get_ready(&self) {
        if self.rules.get().is_some() {
            return;
        }
        let jury = self.clone();
        // Without a thread they are made ready when they are needed.
        let _later = std::thread::Builder::new()
            .name("rules".to_owned())
            .spawn(move || {
                let _rules = jury.rules();
            });
    }

    fn rules(&self) -> &Rules {
        let own = self.rules.get_or_init(|| {
            let own = self.own.as_ref()?;
            // It was read once already, when the job was started.
            Rules::with(Some((Path::new(&own.file), &own.text))).ok()
        });
        own.as_ref().unwrap_or_else(|| Rules::built_in())
    }

    /// The finding for a worker that did not fail by itself, if a line of its tells of what may have been the cause.
    pub(super) fn said(&self, heard: &Heard) -> Option<Finding> {
        let all = heard.tail.stdout.iter().chain(&heard.tail.stderr);
        let (line, meaning) = all.rev().find_map(|line| {
            let meaning = self.rules().meaning_of_cause(line)?;
            Some((line, meaning))
        })?;
        Some(redact::finding(Finding {
            kind: kinds::WORKER_SAID.to_owned(),
            role: FaultRole::Consequence.into(),
            generation: heard.generation,
            rank: Some(heard.rank),
            local_rank: Some(heard.local_rank),
            pid: heard.pid,
            wall_ms: heard.wall_ms,
            fingerprint: format!("said:{meaning}"),
            summary: format!(
                "did not end by itself, but had said before: {meaning}: {}",
                line.trim().chars().take(300).collect::<String>()
            ),
            evidence: [&heard.tail.stdout, &heard.tail.stderr]
                .into_iter()
                .filter_map(|lines| lines_as_evidence(lines))
                .collect(),
            ..Finding::default()
        }))
    }
}

impl Jury for WordsJury {
    fn judge(&self, plan: &Plan, findings: &[Finding], clocks: &ClocksAhead) -> Option<Opinion> {
        let speaks = |finding: &&Finding| {
            matches!(
                finding.kind.as_str(),
                kinds::WORKER_EXITED | kinds::WORKER_DYING | kinds::WORKER_SAID
            )
        };
        let words: Vec<&Finding> = findings.iter().filter(speaks).collect();
        if words.is_empty() {
            return None;
        }
        let evidence = evidence::gather(plan, &words, clocks, &self.zone);
        opinion(diagnose(&evidence, self.rules()))
    }
}

fn opinion(answer: Answer) -> Option<Opinion> {
    let class = class_of(answer.class);
    let says_nothing = class == FaultClass::Unknown && answer.culprit.rank.is_none();
    if !answer.fault || says_nothing {
        return None;
    }
    let advice = match answer.action {
        Action::FailJob => format!("{} (a restart may fail again)", answer.next_step),
        _ => answer.next_step,
    };
    Some(Opinion {
        rank: answer.culprit.rank.map(Rank),
        node: answer.culprit.node.map(NodeName),
        class,
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it lies between 1 and 100"
        )]
        confidence: (answer.confidence * 100.0).round().clamp(1.0, 100.0) as u32,
        summary: answer.summary,
        advice,
    })
}

fn class_of(class: Class) -> FaultClass {
    match class {
        Class::ProgramError | Class::Configuration => FaultClass::Program,
        Class::HostMemory => FaultClass::HostMemory,
        Class::GpuMemory => FaultClass::GpuMemory,
        Class::GpuHardware => FaultClass::GpuHardware,
        Class::Link => FaultClass::Link,
        Class::Network => FaultClass::Network,
        Class::Storage => FaultClass::Storage,
        Class::Hang => FaultClass::Hang,
        Class::Straggler => FaultClass::Straggler,
        Class::NodeLost => FaultClass::NodeLost,
        Class::Preempted => FaultClass::Preempted,
        Class::Numeric => FaultClass::Numeric,
        Class::Unknown => FaultClass::Unknown,
    }
}
