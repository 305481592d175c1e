// SPDX-License-Identifier: Apache-2.0
//! What makes a checkpoint a torn one.

use std::fmt;

/// One thing that is wrong with a checkpoint. Paths are relative to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A file that belongs to it is not there.
    Missing {
        /// Which one, or what kind of file.
        file: String,
        /// How it is known to belong here.
        because: String,
    },
    /// A file is shorter than it should be.
    Short {
        /// Which one.
        file: String,
        /// Its size in bytes.
        size: u64,
        /// What it should have at least, in bytes.
        expected: u64,
    },
    /// A file is not what its name promises.
    Damaged {
        /// Which one.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file or directory cannot be read.
    Unreadable {
        /// Which one.
        file: String,
        /// The system's words.
        error: String,
    },
    /// The framework has not finished it, or has begun to write it again.
    Unfinished(
        /// How that shows.
        String,
    ),
    /// The machine went down before it was flushed: parts of it may be nothing but zeros.
    Unflushed,
}

impl Problem {
    pub(crate) fn missing(file: impl Into<String>, because: impl Into<String>) -> Self {
        Self::Missing {
            file: file.into(),
            because: because.into(),
        }
    }

    pub(crate) fn damaged(file: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Damaged {
            file: file.into(),
            what: what.into(),
        }
    }

    /// Whether it says nothing about the checkpoint, but about what it is read from.
    #[must_use]
    pub fn is_of_reading(&self) -> bool {
        matches!(self, Self::Unreadable { .. })
    }

    pub(crate) fn unreadable(file: impl Into<String>, error: impl fmt::Display) -> Self {
        Self::Unreadable {
            file: file.into(),
            error: error.to_string(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { file, because } => write!(f, "{file} is missing ({because})"),
            Self::Short {
                file,
                size,
                expected,
            } => write!(f, "{file} has {size} bytes of at least {expected}"),
            Self::Damaged { file, what } => write!(f, "{file} {what}"),
            Self::Unreadable { file, error } => write!(f, "{file} cannot be read: {error}"),
            Self::Unfinished(how) => f.write_str(how),
            Self::Unflushed => f.write_str(
                "the machine went down before all of it was on stable storage, so parts of it may be lost",
            ),
        }
    }
}
