// SPDX-License-Identifier: Apache-2.0
//! What it comes to, for a person and for a program.

use std::fmt;

use serde_json::{Value, json};
use steadfast_core::{StallVerdict, find_culprit};
use steadfast_health::flight_recorder::{Problem, compare};

use super::sources::Sources;

/// Version of the JSON form.
const VERSION: u32 = 1;

/// What the sources come to.
#[derive(Debug)]
pub(super) struct Report {
    incident: Option<Value>,
    verdict: Option<StallVerdict>,
    /// Ranks of which there is a dump.
    dumps: Vec<u32>,
    problems: Vec<Problem>,
    notes: Vec<String>,
}

impl Report {
    pub(super) fn new(sources: &Sources) -> Report {
        let evidence = sources.evidence.as_ref();
        Report {
            incident: evidence.map(|evidence| evidence.incident.clone()),
            verdict: evidence.and_then(|evidence| find_culprit(&evidence.ranks)),
            dumps: sources.dumps.iter().map(|dump| dump.rank).collect(),
            problems: compare(&sources.dumps),
            notes: sources.notes.clone(),
        }
    }

    pub(super) fn json(&self) -> Value {
        let verdict = self.verdict.as_ref().map(|verdict| {
            json!({
                "class": verdict.class_name(),
                "culprit": verdict.culprit,
                "others": verdict.others,
                "confidence": verdict.confidence,
                "signs": verdict.signs,
                "summary": verdict.summary,
                "advice": verdict.advice,
            })
        });
        let problems: Vec<Value> = self.problems.iter().map(problem_json).collect();
        json!({
            "version": VERSION,
            "incident": self.incident,
            "verdict": verdict,
            "flight_recorder": { "ranks": self.dumps, "problems": problems },
            "notes": self.notes,
        })
    }
}

fn problem_json(problem: &Problem) -> Value {
    json!({
        "kind": problem.kind.name(),
        "group": problem.group.0,
        "description": problem.group.1,
        "sequence": problem.sequence,
        "operation": problem.operation,
        "ranks": problem.ranks,
        "summary": problem.to_string(),
    })
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(verdict) = &self.verdict {
            match &verdict.culprit {
                Some(culprit) => writeln!(
                    formatter,
                    "verdict   rank {} on {} {}",
                    culprit.rank, culprit.node, verdict.summary
                )?,
                None => writeln!(formatter, "verdict   {}", verdict.summary)?,
            }
            writeln!(
                formatter,
                "class     {}, evidence {}",
                verdict.class_name(),
                json!(verdict.confidence).as_str().unwrap_or_default()
            )?;
            for sign in &verdict.signs {
                writeln!(formatter, "sign      {sign}")?;
            }
            writeln!(formatter, "to do     {}", verdict.advice)?;
        }
        if !self.dumps.is_empty() {
            writeln!(formatter, "recorder  dumps of {} ranks", self.dumps.len())?;
            for problem in &self.problems {
                writeln!(formatter, "problem   {problem}")?;
            }
            if self.problems.is_empty() {
                writeln!(formatter, "problem   none: all ranks have done the same")?;
            }
        }
        for note in &self.notes {
            writeln!(formatter, "note      {note}")?;
        }
        Ok(())
    }
}
