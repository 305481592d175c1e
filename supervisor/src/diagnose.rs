// SPDX-License-Identifier: Apache-2.0
//! The command `steadfast diagnose`: says what was at fault, from logs of whatever launcher and what else was kept of a
//! failure; explains what was kept of a stall, and dumps of PyTorch's flight recorder.

mod checkpoints;
mod files;
mod folder;
mod hostlists;
mod report;
mod sources;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::Value;
use steadfast_diagnosis::{RuleError, Rules};

use self::folder::Folder;
use self::report::Report;
use self::sources::SourceError;
use crate::exit_code::ExitCode;

/// Exit code when there is nothing that could be explained, or the answer cannot be written.
const FAILED: u8 = 1;

/// What `steadfast diagnose` is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// A directory of logs, of evidence, one of dumps, or a file of any of them.
    pub(crate) path: PathBuf,
    /// Rules of the user's own.
    pub(crate) rules: Option<PathBuf>,
    /// Answer in JSON.
    pub(crate) json: bool,
}

/// What it comes to.
enum Outcome {
    /// What the supervisor kept of a stall, or dumps.
    Kept(Box<Report>),
    /// Everything else.
    Folder(Box<Folder>),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error(transparent)]
    Source(SourceError),
    #[error(transparent)]
    Rules(RuleError),
}

/// Carries out the command, and gives the exit code.
pub(crate) fn run(request: &Request) -> u8 {
    let outcome = match examine(request) {
        Ok(outcome) => outcome,
        Err(error) => {
            // There is nowhere left to say that standard error cannot be written.
            drop(writeln!(io::stderr(), "error: {error}"));
            return match error {
                CommandError::Source(_) => FAILED,
                CommandError::Rules(_) => ExitCode::Configuration as u8,
            };
        }
    };
    let mut output = io::stdout().lock();
    let written = if request.json {
        writeln!(output, "{:#}", outcome.json())
    } else {
        write!(output, "{outcome}")
    };
    match written.and_then(|()| output.flush()) {
        Ok(()) => ExitCode::Success as u8,
        Err(_) => FAILED,
    }
}

fn examine(request: &Request) -> Result<Outcome, CommandError> {
    let rules = request.rules.as_deref().map(Rules::read).transpose();
    let rules = rules.map_err(CommandError::Rules)?;
    let kept = sources::read(&request.path);
    match kept {
        Ok(sources) if sources.evidence.is_some() || !sources.dumps.is_empty() => {
            return Ok(Outcome::Kept(Box::new(Report::new(&sources))));
        }
        Err(error @ (SourceError::Read { .. } | SourceError::Index { .. })) => {
            return Err(CommandError::Source(error));
        }
        // Whatever it is, it is neither.
        Ok(_) | Err(SourceError::Nothing(_) | SourceError::Dump { .. }) => {}
    }
    let folder = Folder::examine(&request.path, rules.as_ref().unwrap_or(Rules::built_in()));
    match folder.map_err(CommandError::Source)? {
        Some(folder) => Ok(Outcome::Folder(Box::new(folder))),
        // What was wrong with the file that looked like a dump, or that there is nothing.
        None => Err(CommandError::Source(match sources::read(&request.path) {
            Err(error) => error,
            Ok(_) => SourceError::Nothing(request.path.clone()),
        })),
    }
}

impl Outcome {
    fn json(&self) -> Value {
        match self {
            Self::Kept(report) => report.json(),
            Self::Folder(folder) => folder.json(),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept(report) => report.fmt(formatter),
            Self::Folder(folder) => folder.fmt(formatter),
        }
    }
}
