// SPDX-License-Identifier: Apache-2.0
//! One line of output: who wrote it, when, and what is left when the prefixes of launchers and loggers are taken away.

mod ansi;
mod prefix;

use crate::clock::{self, Moment};
use crate::context::Context;
use crate::evidence::EvidenceFile;

pub(crate) use self::ansi::without_colour;

/// The most bytes of a line that are looked at.
const MAX_LINE: usize = 8 << 10;
/// Lines by which it is decided whether a launcher has numbered all of them.
const PROBED: usize = 200;

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line<'a> {
    /// From 1.
    pub(crate) number: u32,
    pub(crate) rank: Option<u32>,
    pub(crate) node: Option<String>,
    /// By the writer's own clock.
    pub(crate) written: Option<Moment>,
    /// As it was, without colours.
    pub(crate) whole: std::borrow::Cow<'a, str>,
    /// Where the message begins in `whole`.
    pub(crate) start: usize,
}

impl Line<'_> {
    /// What is left without the prefixes.
    pub(crate) fn message(&self) -> &str {
        self.whole.get(self.start..).unwrap_or_default()
    }
}

/// What is known of all lines of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    pub(crate) rank: Option<u32>,
    pub(crate) node: Option<String>,
    /// A launcher has put the number of the task before each line.
    is_labelled: bool,
}

impl Origin {
    pub(crate) fn of(file: &EvidenceFile, context: &Context) -> Self {
        let named = file.node(context.nodes.iter().map(|node| node.name.as_str()));
        let rank = file.rank().or_else(|| {
            let local_rank = file.local_rank()?;
            context.rank_at(named, local_rank).or(Some(local_rank))
        });
        let lines = file.text.lines().map(without_colour);
        let probe: Vec<Option<u32>> = lines
            .filter(|line| !line.trim().is_empty())
            .take(PROBED)
            .map(|line| prefix::label(&line))
            .collect();
        Self {
            node: rank
                .and_then(|rank| context.node_of(rank))
                .map(|node| node.name.clone())
                .or_else(|| named.map(str::to_owned)),
            rank,
            is_labelled: rank.is_none() && are_labels(&probe, context.world()),
        }
    }
}

/// Whether the numbers before lines are those of tasks. What the launcher itself says, and what is mixed in, has none.
fn are_labels(probe: &[Option<u32>], world: Option<u32>) -> bool {
    let labels = probe.iter().flatten();
    let count = labels.clone().count();
    let least = match world {
        Some(world) if labels.clone().all(|label| *label < world) => 10,
        Some(_) => return false,
        None => 3,
    };
    count > 1 && count * least >= probe.len()
}

/// The lines of a file.
pub(crate) fn lines<'a>(
    file: &'a EvidenceFile,
    origin: &'a Origin,
    context: &'a Context,
) -> impl Iterator<Item = Line<'a>> {
    file.numbered()
        .filter(|(_, text)| !text.trim().is_empty())
        .map(move |(number, text)| read(number, text, origin, context))
}

fn read<'a>(number: u32, text: &'a str, origin: &Origin, context: &Context) -> Line<'a> {
    let mut end = text.len().min(MAX_LINE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let whole = without_colour(&text[..end]);
    let found = prefix::take(&whole, origin.is_labelled, context);
    let node = found.node.or_else(|| origin.node.clone());
    let rank = found
        .rank
        .or_else(|| found.pid.and_then(|pid| context.rank_of_pid(pid)))
        .or_else(|| {
            let local_rank = found.local_rank?;
            context
                .rank_at(node.as_deref(), local_rank)
                .or_else(|| context.nodes.is_empty().then_some(local_rank))
        })
        .or(origin.rank);
    let node = rank
        .and_then(|rank| context.node_of(rank))
        .map(|node| node.name.clone())
        .or(node);
    Line {
        number,
        rank,
        written: clock::find(&whole),
        node,
        start: found.start,
        whole,
    }
}
