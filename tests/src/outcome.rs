// SPDX-License-Identifier: Apache-2.0
//! How a job ended.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Exit status and output of `steadfast`.
#[derive(Debug)]
pub struct Outcome {
    /// As the parent sees it.
    pub status: ExitStatus,
    /// Everything that came to standard output.
    pub stdout: Vec<u8>,
    /// Everything that came to standard error.
    pub stderr: String,
}

impl Outcome {
    /// Checks the exit code; shows the output when it is another one.
    #[track_caller]
    pub fn ended_with(&self, code: i32) -> &Outcome {
        assert_eq!(
            (self.status.code(), self.status.signal()),
            (Some(code), None),
            "exit code (left), expected (right); {self}"
        );
        self
    }

    /// Checks that standard error contains this text.
    #[track_caller]
    pub fn said(&self, text: &str) -> &Outcome {
        assert!(self.stderr.contains(text), "`{text}` was not said; {self}");
        self
    }

    /// Checks that standard error does not contain this text.
    #[track_caller]
    pub fn did_not_say(&self, text: &str) -> &Outcome {
        assert!(!self.stderr.contains(text), "`{text}` was said; {self}");
        self
    }

    /// Standard output as text.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cut = |text: &str| text.chars().take(20_000).collect::<String>();
        write!(
            formatter,
            "{}\n--- stdout ---\n{}\n--- stderr ---\n{}",
            self.status,
            cut(&self.stdout_text()),
            cut(&self.stderr)
        )
    }
}
