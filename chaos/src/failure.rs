// SPDX-License-Identifier: Apache-2.0
//! Why the harness itself could not do its work.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;

/// A failure of the harness, as opposed to one of what it tests.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A file or the report could not be written.
    #[error("failed to write {what}: {reason}")]
    Write {
        /// File, or what else.
        what: String,
        /// The system's words.
        reason: io::Error,
    },
    /// A file could not be read.
    #[error("failed to read {what}: {reason}")]
    Read {
        /// File, or what else.
        what: String,
        /// The system's words.
        reason: io::Error,
    },
    /// A schedule's file is none.
    #[error("failed to use the schedule in {}: {why}", path.display())]
    Schedule {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl Failure {
    pub(crate) fn write(what: impl Display, reason: io::Error) -> Self {
        Self::Write {
            what: what.to_string(),
            reason,
        }
    }

    pub(crate) fn read(what: impl Display, reason: io::Error) -> Self {
        Self::Read {
            what: what.to_string(),
            reason,
        }
    }
}
