// SPDX-License-Identifier: Apache-2.0
//! The command `steadfast diagnose`: explains what was kept of a stall, and dumps of PyTorch's flight recorder.

mod report;
mod sources;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::PathBuf;

use self::report::Report;
use crate::exit_code::ExitCode;

/// Exit code when there is nothing that could be explained, or the answer cannot be written.
const FAILED: u8 = 1;

/// What `steadfast diagnose` is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// A directory of evidence, one of dumps, or a file of either.
    pub(crate) path: PathBuf,
    /// Answer in JSON.
    pub(crate) json: bool,
}

/// Carries out the command, and gives the exit code.
pub(crate) fn run(request: &Request) -> u8 {
    let sources = match sources::read(&request.path) {
        Ok(sources) => sources,
        Err(error) => {
            // There is nowhere left to say that standard error cannot be written.
            drop(writeln!(io::stderr(), "error: {error}"));
            return FAILED;
        }
    };
    let report = Report::new(&sources);
    let mut output = io::stdout().lock();
    let written = if request.json {
        writeln!(output, "{:#}", report.json())
    } else {
        write!(output, "{report}")
    };
    match written.and_then(|()| output.flush()) {
        Ok(()) => ExitCode::Success as u8,
        Err(_) => FAILED,
    }
}
