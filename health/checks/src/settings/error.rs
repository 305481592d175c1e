// SPDX-License-Identifier: Apache-2.0
//! Why a configuration file cannot be used.

use std::io;
use std::path::PathBuf;

/// What is wrong with a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// It cannot be read.
    #[error("cannot read {file}: {reason}", file = file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// It is no TOML.
    #[error("{file}:{line}: {reason}", file = file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// From 1.
        line: usize,
        /// Why.
        reason: String,
    },
    /// Something in it is not known, or not what it should be.
    #[error("{file}:{line}: `{field}` {reason}", file = file.display())]
    Field {
        /// The file.
        file: PathBuf,
        /// From 1.
        line: usize,
        /// Which one.
        field: String,
        /// Why.
        reason: String,
    },
}
