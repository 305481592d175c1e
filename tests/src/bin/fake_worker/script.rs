// SPDX-License-Identifier: Apache-2.0
//! The language of the arguments.

use crate::identity::Identity;

/// One step, and who does it.
pub(crate) struct Step {
    conditions: Vec<Condition>,
    /// Name and values.
    pub(crate) words: Vec<String>,
}

struct Condition {
    subject: Subject,
    relation: Relation,
    number: u64,
}

#[derive(Clone, Copy)]
enum Subject {
    Rank,
    Restart,
}

#[derive(Clone, Copy)]
enum Relation {
    Is,
    IsNot,
    Below,
}

impl Step {
    pub(crate) fn applies_to(&self, identity: &Identity) -> bool {
        self.conditions
            .iter()
            .all(|condition| condition.holds(identity))
    }
}

impl Condition {
    fn holds(&self, identity: &Identity) -> bool {
        let actual = match self.subject {
            Subject::Rank => identity.rank,
            Subject::Restart => identity.restart_count,
        };
        match self.relation {
            Relation::Is => actual == self.number,
            Relation::IsNot => actual != self.number,
            Relation::Below => actual < self.number,
        }
    }
}

/// Reads all steps.
pub(crate) fn parse(arguments: &[String]) -> Vec<Step> {
    arguments
        .iter()
        .map(|argument| parse_step(argument))
        .collect()
}

fn parse_step(argument: &str) -> Step {
    let (conditions, step) = match argument.strip_prefix('@') {
        Some(rest) => rest.split_once('@').expect("@CONDITION@STEP"),
        None => ("", argument),
    };
    Step {
        conditions: conditions
            .split(',')
            .filter(|text| !text.is_empty())
            .map(parse_condition)
            .collect(),
        words: step.split(':').map(str::to_owned).collect(),
    }
}

fn parse_condition(text: &str) -> Condition {
    let relations = [
        ("!=", Relation::IsNot),
        ("=", Relation::Is),
        ("<", Relation::Below),
    ];
    let (subject, relation, number) = relations
        .into_iter()
        .find_map(|(sign, relation)| {
            text.split_once(sign)
                .map(|(subject, number)| (subject, relation, number))
        })
        .unwrap_or_else(|| panic!("`{text}` is no condition"));
    let subject = match subject {
        "rank" => Subject::Rank,
        "restart" => Subject::Restart,
        other => panic!("`{other}` is nothing that a condition can be about"),
    };
    Condition {
        subject,
        relation,
        number: number.parse().unwrap(),
    }
}
