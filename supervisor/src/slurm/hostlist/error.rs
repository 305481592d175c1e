// SPDX-License-Identifier: Apache-2.0
//! What can be wrong with a host list, and where.

use std::fmt;

use super::{MAX_HOSTS, MAX_NAME, MAX_RANGE};

/// Characters shown on each side of the place that is wrong.
const SHOWN: usize = 40;

/// A list that cannot be taken. Nothing of it has been expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("host list `{excerpt}`, {place}: {fault}")]
pub(crate) struct HostListError {
    excerpt: String,
    place: Place,
    fault: Fault,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// Nothing but separators.
    #[error("it names no host")]
    NoHost,
    /// A byte that belongs to no character.
    #[error("it is not valid UTF-8 from here on")]
    NotText,
    /// A control character in a name.
    #[error("a host's name cannot hold a control character")]
    Control,
    /// An opening bracket without its closing one.
    #[error("this `[` is never closed")]
    NotClosed,
    /// A closing bracket without its opening one.
    #[error("this `]` closes nothing")]
    NotOpened,
    /// An opening bracket between brackets.
    #[error("a `[` cannot stand inside brackets")]
    Nested,
    /// Nothing between two brackets or commas.
    #[error("a number is missing")]
    NoNumber,
    /// Something between brackets that is no number and no range.
    #[error("`{0}` is neither a number nor a range such as 1-3")]
    NotANumber(String),
    /// Coordinates, as clusters with more than one dimension have them.
    #[error("`{0}` is a box of coordinates, which only clusters with several dimensions have")]
    Coordinates(String),
    /// A range whose end comes before its start.
    #[error("the range `{0}` runs backwards")]
    Backwards(String),
    /// A range that Slurm does not take either.
    #[error("the range `{0}` holds more than {MAX_RANGE} hosts")]
    LongRange(String),
    /// A number that does not fit into 64 bits.
    #[error("`{0}` is too large a number")]
    LargeNumber(String),
    /// A name that no host can have.
    #[error("the name of a host cannot be longer than {MAX_NAME} bytes")]
    LongName,
    /// More hosts than are allowed for.
    #[error("with this there are more than {MAX_HOSTS} hosts in all")]
    TooManyHosts,
}

/// A place in a text, for a person: both count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Absent where the text is one line.
    line: Option<usize>,
    character: usize,
}

impl HostListError {
    /// `fault` at byte `at` of `list`; `at` lies between characters.
    pub(super) fn new(list: &str, at: usize, fault: Fault) -> Self {
        let (before, after) = list.split_at(at);
        let one_line = !list.trim_ascii_end().contains('\n');
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        let place = Place {
            line: (!one_line).then(|| before.matches('\n').count() + 1),
            character: before[line_start..].chars().count() + 1,
        };
        Self {
            excerpt: excerpt(before, after),
            place,
            fault: fault.shortened(),
        }
    }

    /// What is wrong.
    #[cfg(test)]
    pub(super) fn fault(&self) -> &Fault {
        &self.fault
    }

    /// What to do next, where the message alone does not say it.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self.fault {
            Fault::NoHost => Some("SLURM_JOB_NODELIST is set only inside an allocation"),
            _ => None,
        }
    }
}

impl Fault {
    /// `text` is neither a number nor a range: says so in the way that fits it best.
    pub(super) fn not_a_number(text: &str) -> Self {
        let alphanumeric =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        match text.split_once('x') {
            Some((low, high)) if alphanumeric(low) && alphanumeric(high) => {
                Self::Coordinates(text.to_owned())
            }
            _ => Self::NotANumber(text.to_owned()),
        }
    }

    /// With what it quotes made fit for a line of a terminal.
    fn shortened(self) -> Self {
        match self {
            Self::NotANumber(text) => Self::NotANumber(excerpt("", &text)),
            Self::Coordinates(text) => Self::Coordinates(excerpt("", &text)),
            Self::Backwards(text) => Self::Backwards(excerpt("", &text)),
            Self::LongRange(text) => Self::LongRange(excerpt("", &text)),
            Self::LargeNumber(text) => Self::LargeNumber(excerpt("", &text)),
            other => other,
        }
    }
}

/// The end of one text and the start of the other, escaped.
fn excerpt(before: &str, after: &str) -> String {
    let skipped = before.chars().count().saturating_sub(SHOWN);
    let left: String = before.chars().skip(skipped).collect();
    let right: String = after.chars().take(SHOWN).collect();
    format!(
        "{}{}{}{}",
        if skipped > 0 { "..." } else { "" },
        left.escape_debug(),
        right.escape_debug(),
        if right.len() < after.len() { "..." } else { "" },
    )
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(formatter, "line {line}, ")?;
        }
        write!(formatter, "character {}", self.character)
    }
}
