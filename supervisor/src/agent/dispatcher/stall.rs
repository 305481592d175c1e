// SPDX-License-Identifier: Apache-2.0
//! A training that does not move: looks at the workers, names the one to blame, and tells the core.

use serde_json::json;
use steadfast_core::{Activity, Instant, MemberEvent, NodeName};
use steadfast_health::progress_page::PagePhase;

use super::Agent;
use crate::agent::AgentError;
use crate::agent::stall::{Looked, StallOrder};
use crate::clock;
use crate::evidence::{self, Bundle, Subject};
use crate::redact;

/// Lines of each stream that are kept as evidence.
const LAST_LINES: usize = 50;

impl Agent {
    /// Whether something is to be done about a stall.
    pub(super) fn look_for_stall(&mut self) {
        let now = Instant::from_nanos(clock::monotonic_ns());
        match self.stall.tick(&self.generation, now) {
            Some(StallOrder::Look { number }) => self.look_at_workers(number),
            Some(StallOrder::Over { fields, was_told }) => {
                if was_told {
                    self.say("the training moves again");
                }
                self.journal
                    .record(self.generation.number, "stall.ended", fields);
            }
            None => {}
        }
    }

    /// In a thread of its own: whatever touches a process that hangs may hang as well.
    fn look_at_workers(&self, number: u64) {
        let subjects = self.subjects();
        let sender = self.stall.sender();
        // Without a thread nothing is seen, and the stall is looked at no more.
        let _nothing_seen = std::thread::Builder::new()
            .name("evidence".to_owned())
            .spawn(move || {
                let ranks = evidence::look_at_all(&subjects);
                // The agent is about to end.
                drop(sender.send(Looked { number, ranks }));
            });
    }

    /// The workers that still run.
    fn subjects(&self) -> Vec<Subject> {
        let generation = &self.generation;
        let living = generation
            .workers
            .values()
            .filter(|worker| worker.view.exit.is_none());
        living
            .map(|worker| {
                let view = &worker.view;
                let tail = self.outputs.tail(generation.number, view.local_rank);
                let last = |lines: Vec<String>| {
                    let skipped = lines.len().saturating_sub(LAST_LINES);
                    lines.into_iter().skip(skipped)
                };
                let lines = last(tail.stdout).chain(last(tail.stderr));
                Subject {
                    node: NodeName(self.settings.node.clone()),
                    rank: view.rank,
                    local_rank: view.local_rank,
                    pid: view.pid,
                    trains: worker.trains,
                    pages: self.hook.pages_of(generation.number, view.local_rank),
                    step: worker.step,
                    activity: worker.phase.map(activity),
                    last_lines: lines.map(|line| redact::line(&line)).collect(),
                }
            })
            .collect()
    }

    pub(super) async fn on_looked(&mut self, looked: Looked) -> Result<(), AgentError> {
        let outcome = self.stall.looked(
            looked.number,
            &looked.ranks,
            &self.generation,
            &self.settings,
        );
        let Some(outcome) = outcome else {
            return Ok(());
        };
        let mut incident = outcome.fields.clone();
        incident["kind"] = json!("stall");
        incident["job"] = json!(self.settings.job);
        incident["node"] = json!(self.settings.node);
        incident["generation"] = json!(self.generation.number);
        incident["wall_ms"] = json!(clock::wall_ms());
        let directory = outcome.directory;
        let mut fields = outcome.fields;
        fields["evidence"] = json!(directory);
        self.journal
            .record_incident(self.generation.number, "stall.judged", fields);
        // What was seen is in memory, so the workers need not be kept for a slow disk.
        keep(
            directory,
            Bundle {
                incident,
                ranks: looked.ranks,
            },
        );
        if let Some(text) = outcome.say {
            self.say(&format!("generation {}: {text}", self.generation.number));
        }
        if let Some(finding) = outcome.finding {
            self.generation.failure_told = true;
            self.tell(MemberEvent::Finding(finding)).await?;
        }
        Ok(())
    }
}

/// Writes the evidence in the background.
fn keep(directory: std::path::PathBuf, bundle: Bundle) {
    // Evidence that cannot be written is in the journal still, in short.
    let _in_short = std::thread::Builder::new()
        .name("evidence".to_owned())
        .spawn(move || drop(evidence::write_bundle(&directory, &bundle)));
}

/// A phase in the core's words.
pub(in crate::agent) fn activity(phase: PagePhase) -> Activity {
    match phase {
        PagePhase::Init => Activity::Init,
        PagePhase::Train => Activity::Train,
        PagePhase::Checkpoint => Activity::Checkpoint,
        PagePhase::Eval => Activity::Eval,
        PagePhase::Load => Activity::Load,
        PagePhase::Compile => Activity::Compile,
        PagePhase::Other(_) => Activity::Other,
    }
}
