// SPDX-License-Identifier: Apache-2.0
//! What the dumps of several ranks say together.
//!
//! In each group, the operations of all ranks must be the same, in the same order. The rank that has not come to an
//! operation that others wait in holds them up; where ranks differ, those in the minority are wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Dump, Entry};

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What.
    pub kind: ProblemKind,
    /// In which group: its name, and what the program calls it.
    pub group: (String, String),
    /// At which of its operations.
    pub sequence: i64,
    /// Who is to blame.
    pub ranks: Vec<u32>,
    /// The operation, as most ranks have it.
    pub operation: String,
    /// What else there is to say.
    pub detail: String,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProblemKind {
    /// Ranks have not come to an operation that others have.
    NotJoined,
    /// Ranks do another operation than most.
    OtherOperation,
    /// Ranks do it with other shapes than most.
    OtherShape,
    /// Ranks do it with other types than most.
    OtherType,
    /// All ranks are in it, and it does not end: the network or a GPU.
    Stuck,
    /// Ranks of the group have left no dump: dead, or stuck before they could.
    NoDump,
}

impl ProblemKind {
    /// One word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotJoined => "not_joined",
            Self::OtherOperation => "other_operation",
            Self::OtherShape => "other_shape",
            Self::OtherType => "other_type",
            Self::Stuck => "stuck",
            Self::NoDump => "no_dump",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self
            .ranks
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        let what = match self.kind {
            ProblemKind::NotJoined => "have not joined",
            ProblemKind::OtherOperation => "do another operation than most, who do",
            ProblemKind::OtherShape => "have other shapes than most in",
            ProblemKind::OtherType => "have other types than most in",
            ProblemKind::Stuck => "are all in, and stay in,",
            ProblemKind::NoDump => "have left no dump; the others came to",
        };
        let (name, description) = &self.group;
        write!(
            formatter,
            "group {name} ({description}), operation {}: ranks {ranks} {what} {}{}",
            self.sequence, self.operation, self.detail
        )
    }
}

type GroupName = (String, String);
type Sequences<'a> = BTreeMap<i64, BTreeMap<u32, &'a Entry>>;

/// Compares dumps of different ranks. What is wrong is given once for each group: the first thing.
pub fn compare(dumps: &[Dump]) -> Vec<Problem> {
    let mut groups: BTreeMap<GroupName, Sequences<'_>> = BTreeMap::new();
    for dump in dumps {
        for entry in dump.entries.iter().filter(|entry| !entry.is_p2p) {
            let sequences = groups.entry(entry.group.clone()).or_default();
            let ranks = sequences.entry(entry.sequence).or_default();
            ranks.insert(dump.rank, entry);
        }
    }
    let mut problems: Vec<Problem> = groups
        .iter()
        .filter_map(|(name, sequences)| group_problem(dumps, name, sequences))
        .collect();
    // A rank that waits in one group cannot come to another: who is blamed in the group that waits longest goes first.
    problems.sort_by_key(|problem| problem.kind);
    problems
}

fn group_problem(dumps: &[Dump], name: &GroupName, sequences: &Sequences<'_>) -> Option<Problem> {
    let with_dump: BTreeSet<u32> = dumps.iter().map(|dump| dump.rank).collect();
    let members = members(dumps, name, sequences);
    let present: BTreeSet<u32> = members.intersection(&with_dump).copied().collect();
    // The memory is a ring: before this, somebody's has been overwritten.
    let oldest = |rank: u32| {
        let mut seen = sequences
            .iter()
            .filter(|(_, ranks)| ranks.contains_key(&rank));
        seen.next().map(|(&sequence, _)| sequence)
    };
    let begin = present.iter().filter_map(|&rank| oldest(rank)).max()?;
    let problem = |kind, sequence, ranks: Vec<u32>, operation: String, detail: String| Problem {
        kind,
        group: name.clone(),
        sequence,
        ranks,
        operation,
        detail,
    };
    for (&sequence, ranks) in sequences.range(begin..) {
        let operation = most_common(ranks.values().map(|entry| entry.name.as_str()));
        let missing: Vec<u32> = present
            .iter()
            .copied()
            .filter(|rank| !ranks.contains_key(rank))
            .collect();
        if !missing.is_empty() && missing.len() < present.len() {
            let waiting = ranks.len();
            let detail = format!(", in which {waiting} others are");
            return Some(problem(
                ProblemKind::NotJoined,
                sequence,
                missing,
                operation,
                detail,
            ));
        }
        if let Some((kind, differing, detail)) = difference(ranks) {
            return Some(problem(kind, sequence, differing, operation, detail));
        }
    }
    let (&sequence, last) = sequences.last_key_value()?;
    let operation = most_common(last.values().map(|entry| entry.name.as_str()));
    let absent: Vec<u32> = members.difference(&with_dump).copied().collect();
    let is_open = last
        .values()
        .any(|entry| entry.state != "completed" && !entry.retired);
    if !absent.is_empty() {
        return Some(problem(
            ProblemKind::NoDump,
            sequence,
            absent,
            operation,
            String::new(),
        ));
    }
    let all = last.keys().copied().collect();
    is_open.then(|| problem(ProblemKind::Stuck, sequence, all, operation, String::new()))
}

/// The ranks of a group: as it was made, else those that have an operation in it.
fn members(dumps: &[Dump], name: &GroupName, sequences: &Sequences<'_>) -> BTreeSet<u32> {
    let configured = dumps.iter().flat_map(|dump| {
        // The first group is called by its number in one place and not at all in the other.
        let group = dump.groups.get(&name.0).or_else(|| {
            let is_default = name.1 == "default_pg";
            is_default.then(|| dump.groups.get("")).flatten()
        });
        group.map_or(&[][..], |group| group.ranks.as_slice())
    });
    let seen = sequences.values().flat_map(BTreeMap::keys);
    configured.chain(seen).copied().collect()
}

/// In what ranks differ at an operation, and which of them are in the minority.
fn difference(ranks: &BTreeMap<u32, &Entry>) -> Option<(ProblemKind, Vec<u32>, String)> {
    let odd = |of: &dyn Fn(&Entry) -> String| -> Option<(Vec<u32>, String)> {
        let common = most_common(ranks.values().map(|entry| of(entry)));
        let differing: Vec<u32> = ranks
            .iter()
            .filter(|(_, entry)| of(entry) != common)
            .map(|(&rank, _)| rank)
            .collect();
        let first = differing.first()?;
        let detail = format!(": {} instead of {common}", of(ranks.get(first)?));
        Some((differing, detail))
    };
    if let Some((differing, detail)) = odd(&|entry| entry.name.clone()) {
        return Some((ProblemKind::OtherOperation, differing, detail));
    }
    // In some operations, ranks may well have different shapes.
    let is_even = ranks.values().all(|entry| {
        [
            "all_reduce",
            "broadcast",
            "_allgather_base",
            "_reduce_scatter_base",
        ]
        .iter()
        .any(|name| entry.name.ends_with(name))
    });
    if is_even && let Some((differing, detail)) = odd(&|entry| entry.sizes.0.clone()) {
        return Some((ProblemKind::OtherShape, differing, detail));
    }
    let (differing, detail) = odd(&|entry| entry.types.0.clone())?;
    Some((ProblemKind::OtherType, differing, detail))
}

/// What most have; the first in the order of texts where as many have another.
fn most_common<Text: Into<String>>(texts: impl Iterator<Item = Text>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for text in texts {
        *counts.entry(text.into()).or_default() += 1;
    }
    let most = counts.values().max().copied();
    counts
        .into_iter()
        .find(|(_, count)| Some(*count) == most)
        .map(|(text, _)| text)
        .unwrap_or_default()
}
