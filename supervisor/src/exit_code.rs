// SPDX-License-Identifier: Apache-2.0
//! The exit codes of the supervisor, and how a user changes them.

use serde::{Deserialize, Serialize};

/// Why the supervisor ends, where a scheduler should be able to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ExitCode {
    /// The job is done.
    Success = 0,
    /// The coordination store could not be reached at the start.
    Coordination = 69,
    /// The infrastructure is at fault; the scheduler should run the job again.
    Infrastructure = 75,
    /// This node is at fault; the scheduler should run the job again somewhere else.
    Node = 76,
    /// The command line, the environment or a configuration file is wrong; nothing was started.
    Configuration = 78,
}

/// The numbers in force for one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExitCodes {
    /// For [`ExitCode::Infrastructure`], 1 to 255.
    pub(crate) infrastructure: u8,
    /// For [`ExitCode::Node`], 1 to 255.
    pub(crate) node: u8,
    /// For [`ExitCode::Coordination`], 1 to 255.
    pub(crate) coordination: u8,
    /// When the training program is at fault, 1 to 255; absent passes the root-cause worker's own code on.
    pub(crate) program: Option<u8>,
}

/// What passes the failed worker's own code on.
const PASS: &str = "pass";

impl ExitCodes {
    /// The documented numbers, with this one when the program is at fault (absent: the worker's own).
    pub(crate) fn standard(program: Option<u8>) -> Self {
        Self {
            infrastructure: ExitCode::Infrastructure as u8,
            node: ExitCode::Node as u8,
            coordination: ExitCode::Coordination as u8,
            program,
        }
    }

    /// These codes with the changes of `text`, such as `infra=80,program=pass`. The code for a wrong configuration
    /// has no name here: a command line that could not be read cannot say what it means.
    pub(crate) fn remapped(mut self, text: &str) -> Result<Self, String> {
        for entry in text
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
        {
            let (name, code) = entry
                .split_once('=')
                .ok_or_else(|| format!("`{entry}` is not NAME=CODE"))?;
            if (name, code) == ("program", PASS) {
                self.program = None;
                continue;
            }
            let code: u8 = code
                .parse()
                .ok()
                .filter(|code| *code > 0)
                .ok_or_else(|| format!("`{code}` is not an exit code from 1 to 255"))?;
            match name {
                "infra" => self.infrastructure = code,
                "node" => self.node = code,
                "coord" => self.coordination = code,
                "program" => self.program = Some(code),
                _ => {
                    return Err(format!(
                        "`{name}` is not one of infra, node, coord and program"
                    ));
                }
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_documented_ones_until_remapped() {
        let codes = ExitCodes::standard(None);
        assert_eq!(
            (codes.infrastructure, codes.node, codes.coordination),
            (75, 76, 69)
        );
        let codes = codes.remapped("infra=80, program=1").unwrap();
        assert_eq!(
            (codes.infrastructure, codes.node, codes.program),
            (80, 76, Some(1))
        );
        assert_eq!(codes.remapped("program=pass").unwrap().program, None);
    }

    #[test]
    fn a_wrong_remap_is_named() {
        let error = |text: &str| ExitCodes::standard(None).remapped(text).unwrap_err();
        assert_eq!(error("infra"), "`infra` is not NAME=CODE");
        assert_eq!(error("infra=0"), "`0` is not an exit code from 1 to 255");
        assert_eq!(
            error("node=pass"),
            "`pass` is not an exit code from 1 to 255"
        );
        assert_eq!(
            error("gpu=3"),
            "`gpu` is not one of infra, node, coord and program"
        );
    }
}
