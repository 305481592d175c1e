// SPDX-License-Identifier: Apache-2.0
//! Why the harness itself could not do its work.

use std::fmt::Display;
use std::io;

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
    /// The simulator could not do its work.
    #[error(transparent)]
    Simulator(#[from] steadfast_sim::Failure),
    /// A program that is needed is not there.
    #[error(
        "failed to find {0}: it is neither named on the command line nor on PATH; build or install it first"
    )]
    NotFound(String),
    /// A program could not be started.
    #[error("failed to start {name}: {reason}")]
    Start {
        /// The program.
        name: String,
        /// The system's words.
        reason: io::Error,
    },
    /// A program ended that should not have, or not so.
    #[error(
        "failed to measure {name}: it ended too early or badly ({status}); its last words:\n{last_words}"
    )]
    Ended {
        /// The program.
        name: String,
        /// Exit code or signal.
        status: String,
        /// The end of its standard error.
        last_words: String,
    },
    /// Something that was waited for did not happen.
    #[error("failed to wait for {what}: it did not happen within {seconds} s")]
    Waited {
        /// What was waited for.
        what: String,
        /// For how long.
        seconds: u64,
    },
    /// A scenario file is wrong.
    #[error("{file}:{line}:{column}: {message}")]
    Scenario {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// A tool that a fault needs did not do its work.
    #[error("failed to run `{command}`: {reason}")]
    Tool {
        /// Its words.
        command: String,
        /// Its last words, or the system's.
        reason: String,
    },
    /// Somebody wants this program to end.
    #[error("interrupted by {0}; what was started has been ended")]
    Interrupted(&'static str),
    /// Something is not as the harness takes it to be.
    #[error("failed to measure: {0}")]
    Unexpected(String),
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
