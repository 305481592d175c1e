// SPDX-License-Identifier: Apache-2.0
//! A folder with what was kept of a failure by whomever: logs, kernel logs, states, host lists, checkpoints.

use std::fmt;
use std::path::Path;

use serde_json::{Map, Value};
use steadfast_diagnosis::{Action, Answer, Class, Evidence, Rules, diagnose};

use super::checkpoints::{self, Checkpoints};
use super::files::{self, Files};
use super::hostlists::{self, Expanded};
use super::sources::SourceError;

/// What it comes to.
#[derive(Debug)]
pub(super) struct Folder {
    answer: Answer,
    expanded: Vec<Expanded>,
    checkpoints: Option<Checkpoints>,
}

impl Folder {
    /// Examines what is at a path. `None` where there is nothing that could be examined.
    pub(super) fn examine(path: &Path, rules: &Rules) -> Result<Option<Self>, SourceError> {
        let Files {
            evidence,
            hostlists,
            describes_behaviour,
            notes,
        } = files::read(path)?;
        let expanded = hostlists::expand(&hostlists);
        let checkpoints = if path.is_dir() {
            checkpoints::look(path)
        } else {
            None
        };
        if evidence.is_empty()
            && hostlists.is_empty()
            && checkpoints.is_none()
            && !describes_behaviour
        {
            return Ok(None);
        }
        let has_evidence = !evidence.is_empty();
        let mut answer = diagnose(&Evidence::new(evidence), rules);
        if !answer.fault && !has_evidence {
            answer = without_logs(checkpoints.as_ref(), &expanded);
        }
        answer.notes.extend(notes);
        Ok(Some(Self {
            answer,
            expanded,
            checkpoints,
        }))
    }

    /// The answer as one object.
    pub(super) fn json(&self) -> Value {
        let mut object = match self.answer.json() {
            Value::Object(object) => object,
            _ => Map::new(),
        };
        if !self.expanded.is_empty() {
            let list = self.expanded.iter().map(Expanded::json).collect();
            object.insert("expand".to_owned(), Value::Array(list));
        }
        if let Some(checkpoints) = &self.checkpoints {
            object.extend(checkpoints.fields());
        }
        Value::Object(object)
    }
}

/// What there is to say where nothing was printed.
fn without_logs(checkpoints: Option<&Checkpoints>, expanded: &[Expanded]) -> Answer {
    let nothing = Evidence::new(Vec::new());
    let mut answer = diagnose(&nothing, Rules::built_in());
    if let Some(checkpoints) = checkpoints {
        answer.summary = checkpoints.summary();
        if checkpoints.is_any_torn() {
            answer.fault = true;
            answer.class = Class::Storage;
            answer.action = Action::RestartInPlace;
            answer.confidence = 0.9;
            answer.incidents = 1;
            answer.signals = checkpoints.signals();
            "resume from the newest checkpoint that is whole, and leave the torn ones aside"
                .clone_into(&mut answer.next_step);
        }
    } else if !expanded.is_empty() {
        answer.class = Class::Configuration;
        "host lists only".clone_into(&mut answer.summary);
    } else {
        "there is a description and no evidence: nothing is judged".clone_into(&mut answer.summary);
    }
    answer
}

impl fmt::Display for Folder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.answer.fmt(formatter)?;
        for expanded in &self.expanded {
            writeln!(formatter, "hosts     {expanded}")?;
        }
        match &self.checkpoints {
            Some(checkpoints) => checkpoints.fmt(formatter),
            None => Ok(()),
        }
    }
}
