// SPDX-License-Identifier: Apache-2.0
//! What a check has found.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How something stands, the better ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// It could not be looked at; the text says why. It counts against nobody.
    Unknown,
    /// The check itself failed. It counts against nobody, and is said.
    Broken,
    /// Not as it should be, but jobs can run.
    Warn,
    /// No job should run here.
    Fail,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Ok,
        Self::Unknown,
        Self::Broken,
        Self::Warn,
        Self::Fail,
    ];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Broken => "broken",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// One thing that is not as it should be, or that could not be seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// How bad it is; never [`Status::Ok`].
    pub status: Status,
    /// What is wrong, where; a sentence without its full stop.
    pub text: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
}

/// All that one check has found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) problems: Vec<Problem>,
    /// What there is to say when nothing is wrong.
    pub(crate) fine: String,
    /// What it was concluded from.
    pub(crate) evidence: Vec<String>,
    /// What the next run of this check should know.
    pub(crate) memory: Option<Value>,
}

/// Evidence that is kept of one check, in lines.
const MOST_EVIDENCE: usize = 64;
/// Problems that are kept of one check.
const MOST_PROBLEMS: usize = 64;
/// Characters of one text.
const MOST_TEXT: usize = 500;

impl Outcome {
    /// Nothing is wrong, in these words.
    pub(crate) fn ok(fine: impl Into<String>) -> Self {
        Self {
            fine: fine.into(),
            ..Self::default()
        }
    }

    /// It cannot be looked at, and why.
    pub(crate) fn unknown(why: impl AsRef<str>) -> Self {
        let mut outcome = Self::default();
        outcome.unsure(why);
        outcome
    }

    /// The check itself failed, and how.
    pub(crate) fn broken(how: impl AsRef<str>) -> Self {
        let mut outcome = Self::default();
        outcome.add(Status::Broken, how, None);
        outcome
    }

    pub(crate) fn warn(&mut self, text: impl AsRef<str>, next_step: &str) {
        self.add(Status::Warn, text, Some(next_step));
    }

    pub(crate) fn fail(&mut self, text: impl AsRef<str>, next_step: &str) {
        self.add(Status::Fail, text, Some(next_step));
    }

    /// Part of it cannot be looked at.
    pub(crate) fn unsure(&mut self, why: impl AsRef<str>) {
        self.add(Status::Unknown, why, None);
    }

    pub(crate) fn add(&mut self, status: Status, text: impl AsRef<str>, next_step: Option<&str>) {
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(Problem {
                status,
                text: readable(text.as_ref()),
                next_step: next_step.map(readable),
            });
        }
    }

    pub(crate) fn evidence(&mut self, line: impl AsRef<str>) {
        if self.evidence.len() < MOST_EVIDENCE {
            self.evidence.push(readable(line.as_ref()));
        }
    }

    pub(crate) fn remember(&mut self, memory: &impl Serialize) {
        // What cannot be written is what was never remembered: the next run begins anew.
        self.memory = serde_json::to_value(memory).ok();
    }

    /// The worst of what was found.
    #[cfg(test)]
    pub(crate) fn status(&self) -> Status {
        let statuses = self.problems.iter().map(|problem| problem.status);
        statuses.max().unwrap_or(Status::Ok)
    }
}

/// One line that cannot steer a terminal, and is not longer than somebody reads.
fn readable(text: &str) -> String {
    let mut line: String = text
        .trim()
        .chars()
        .take(MOST_TEXT)
        .map(|character| {
            if character.is_control() {
                ' '
            } else {
                character
            }
        })
        .collect();
    if text.trim().chars().nth(MOST_TEXT).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_counts_and_what_could_not_be_seen_is_better_than_what_is_wrong() {
        let mut outcome = Outcome::ok("fine");
        assert_eq!(outcome.status(), Status::Ok);
        outcome.unsure("why");
        assert_eq!(outcome.status(), Status::Unknown);
        outcome.warn("odd", "look");
        outcome.add(Status::Broken, "bug", None);
        assert_eq!(outcome.status(), Status::Warn);
        outcome.fail("bad", "mend");
        assert_eq!(outcome.status(), Status::Fail);
    }

    #[test]
    fn foreign_text_is_one_bounded_line_without_escapes() {
        let mut outcome = Outcome::default();
        outcome.evidence(format!("\x1b[31m a\nb{}", "x".repeat(1000)));
        assert_eq!(outcome.evidence[0].chars().count(), MOST_TEXT + 1);
        assert!(!outcome.evidence[0].contains(['\x1b', '\n']));
        for _ in 0..1000 {
            outcome.warn("w", "n");
            outcome.evidence("e");
        }
        assert!(outcome.problems.len() <= MOST_PROBLEMS && outcome.evidence.len() <= MOST_EVIDENCE);
    }
}
