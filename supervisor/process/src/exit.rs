// SPDX-License-Identifier: Apache-2.0
//! How a process ended, and the reaping of children.

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It exited by itself with this code, 0..=255.
    Code(i32),
    /// A signal ended it.
    Signal {
        /// Number of the signal.
        signal: i32,
        /// Whether the kernel wrote a core dump.
        core_dumped: bool,
    },
}

impl Exit {
    /// Whether it exited with code 0.
    pub fn is_success(self) -> bool {
        self == Exit::Code(0)
    }

    /// The exit code that a shell would show: the code itself, or 128 plus the signal.
    pub fn shell_code(self) -> i32 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal { signal, .. } => 128 + signal,
        }
    }
}

/// Reaps this child if it has ended, without blocking. A child that was reaped already counts as one that exited with code 0.
///
/// # Errors
///
/// Whatever `waitpid` reports.
pub fn reap(child: Pid) -> Result<Option<Exit>, Errno> {
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => return Ok(Some(Exit::Code(code))),
            Ok(WaitStatus::Signaled(_, signal, core_dumped)) => {
                return Ok(Some(Exit::Signal {
                    signal: signal as i32,
                    core_dumped,
                }));
            }
            Ok(WaitStatus::StillAlive) => return Ok(None),
            Err(Errno::ECHILD) => return Ok(Some(Exit::Code(0))),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reaps one child that has ended, if there is one, without blocking.
///
/// # Errors
///
/// Whatever `waitpid` reports, except that having no children at all is `Ok(None)`.
pub fn reap_one() -> Result<Option<(Pid, Exit)>, Errno> {
    loop {
        match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => return Ok(Some((pid, Exit::Code(code)))),
            Ok(WaitStatus::Signaled(pid, signal, core_dumped)) => {
                let signal = signal as i32;
                return Ok(Some((
                    pid,
                    Exit::Signal {
                        signal,
                        core_dumped,
                    },
                )));
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(None),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}
