// SPDX-License-Identifier: Apache-2.0
//! Why the simulator itself could not do its work.

use std::io;
use std::path::PathBuf;

/// A failure of the simulator, as opposed to one of what it simulates.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file or the report could not be written.
    #[error("failed to write {what}: {reason}")]
    Write {
        /// File, or what else.
        what: String,
        /// The system's words.
        reason: io::Error,
    },
    /// A file could not be read.
    #[error("failed to read {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
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
