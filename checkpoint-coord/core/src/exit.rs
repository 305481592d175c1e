// SPDX-License-Identifier: Apache-2.0
//! How a worker ended, and what the job's exit code says.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerExit {
    /// It exited by itself, with this code (0-255).
    Code(i32),
    /// It was killed by this signal.
    Signal(i32),
}

/// Why the job's exit code is what it is. The only place where reasons become numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// Every worker ended well, or stopped in good order when it was asked to.
    Success,
    /// The root-cause worker's own end.
    Worker(WorkerExit),
    /// The job was asked to stop by this signal, and not every worker ended well.
    Interrupted(i32),
    /// The infrastructure is at fault; the scheduler should run the job again.
    Infrastructure,
    /// This node is at fault; the scheduler should use another one.
    Node,
    /// This member's settings do not agree with the job's.
    Configuration,
}

impl WorkerExit {
    /// Whether the worker ended well: by itself, with code 0.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }

    /// The code that a shell would show: the exit code, or 128 + signal.
    pub const fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

impl fmt::Display for WorkerExit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(formatter, "exited with code {code}"),
            Self::Signal(signal) => write!(formatter, "was killed by signal {signal}"),
        }
    }
}

impl ExitReason {
    /// The process exit code, before any remapping by the user.
    pub const fn code(self) -> i32 {
        match self {
            Self::Success => 0,
            Self::Worker(exit) => exit.shell_code(),
            Self::Interrupted(signal) => 128 + signal,
            Self::Infrastructure => 75,
            Self::Node => 76,
            Self::Configuration => 78,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_documented_ones() {
        let table = [
            (ExitReason::Success, 0),
            (ExitReason::Worker(WorkerExit::Code(7)), 7),
            (ExitReason::Worker(WorkerExit::Signal(9)), 137),
            (ExitReason::Interrupted(15), 143),
            (ExitReason::Infrastructure, 75),
            (ExitReason::Node, 76),
            (ExitReason::Configuration, 78),
        ];
        for (reason, code) in table {
            assert_eq!(reason.code(), code, "{reason:?}");
        }
    }
}
