// SPDX-License-Identifier: Apache-2.0
//! What may be the cause.

use crate::answer::{Action, Answer, Class, Culprit, Signal};
use crate::clock::Moment;
use crate::rules::Rule;

/// The most that anything is believed.
const SUREST: f64 = 0.97;

/// One possible cause.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a property of its own"
)]
pub(crate) struct Candidate {
    /// The rule or the way of looking that it comes from.
    pub(crate) id: String,
    pub(crate) class: Class,
    pub(crate) action: Action,
    /// From 0 to 100.
    pub(crate) strength: u8,
    pub(crate) confidence: f64,
    pub(crate) culprit: Culprit,
    pub(crate) at: Option<Moment>,
    /// Whether a line of its own says when.
    pub(crate) is_timed: bool,
    /// Whether program and hardware have still to be told apart.
    pub(crate) is_ambiguous: bool,
    pub(crate) summary: String,
    pub(crate) next: String,
    pub(crate) signals: Vec<Signal>,
    /// The process that it is about.
    pub(crate) pid: Option<u32>,
    pub(crate) incidents: u32,
    /// Whether most ranks say it: then it is about nobody in particular.
    pub(crate) is_shared: bool,
    /// Whether it explains a failure, but is none by itself.
    pub(crate) is_background: bool,
}

impl Candidate {
    pub(crate) fn new(id: &str, class: Class, strength: u8, summary: impl Into<String>) -> Self {
        Self {
            id: id.to_owned(),
            class,
            action: class.usual_action(),
            strength,
            confidence: f64::from(strength) / 100.0,
            culprit: Culprit::default(),
            at: None,
            is_timed: true,
            is_ambiguous: false,
            summary: summary.into(),
            next: String::new(),
            signals: Vec::new(),
            pid: None,
            incidents: 1,
            is_shared: false,
            is_background: false,
        }
    }

    pub(crate) fn of_rule(rule: &Rule) -> Self {
        let mut candidate = Self::new(&rule.id, rule.class, rule.strength, &rule.meaning);
        candidate.action = rule.action;
        candidate.confidence = rule.confidence.unwrap_or(candidate.confidence);
        candidate.is_ambiguous = rule.is_ambiguous;
        candidate.next.clone_from(&rule.next);
        candidate
    }

    /// Whether it says little by itself.
    pub(crate) fn is_thin(&self) -> bool {
        self.strength < Rule::THIN
    }

    pub(crate) fn answer(self) -> Answer {
        Answer {
            action: self.action,
            culprit: self.culprit,
            signals: self.signals,
            incidents: self.incidents,
            next_step: if self.next.is_empty() {
                "look at the lines below, and at what came before them".to_owned()
            } else {
                self.next
            },
            ..Answer::of(self.class, self.confidence.min(SUREST), self.summary)
        }
    }
}
