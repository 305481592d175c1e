// SPDX-License-Identifier: Apache-2.0
//! What checks need of the world that they may not do themselves. The program provides it; tests provide made answers.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Work for a process of its own: it can hang in the kernel, where no thread could be abandoned safely, or it is another
/// program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// [`snapshot`](steadfast_health::nvml::snapshot), each line as JSON on standard output. It is not killed, except in
    /// the profile [`Job`](crate::Profile::Job): a driver can take that badly.
    Nvml {
        /// The library; absent for the one that is installed.
        library: Option<PathBuf>,
        /// A file that the process keeps locked as long as it lives, so that such processes never pile up; absent for none.
        lock: Option<PathBuf>,
    },
    /// [`probe_mount`](crate::probe_mount), its answer as JSON on standard output.
    Mount {
        /// A directory.
        path: PathBuf,
        /// Whether a file is to be written there, synced and removed.
        write: bool,
    },
    /// Another program, and its arguments.
    Command {
        /// The program first; searched for on `PATH` when it has no slash.
        words: Vec<String>,
    },
}

/// How such a process ended, and what it said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How it ended.
    pub how: How,
    /// What it wrote to standard output, cut at a megabyte.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error, cut likewise.
    pub stderr: Vec<u8>,
}

/// How such a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal, sent by somebody else.
    Killed(i32),
    /// It had not ended at the deadline. It was killed, unless it must not be.
    TimedOut {
        /// Its process id.
        pid: i32,
        /// Its state at the deadline, a letter as in `/proc/PID/stat`.
        state: char,
        /// The kernel function that it waited in, where that can be read.
        waits_in: Option<String>,
    },
    /// There never was one.
    NotStarted(String),
    /// One of an earlier run still holds the lock.
    Earlier {
        /// Its process id, if it is known.
        pid: Option<i32>,
        /// Since when.
        age: Duration,
    },
}

impl Ended {
    /// One that said nothing.
    pub fn silently(how: How) -> Self {
        Self {
            how,
            stdout: Vec::new(),
            stderr: Vec::new(),
        }
    }
}

/// What the kernel says about its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelClock {
    /// Whether somebody keeps it.
    pub synchronised: bool,
    /// Estimated error, in microseconds.
    pub estimated_error_us: u64,
    /// Largest possible error, in microseconds.
    pub maximum_error_us: u64,
}

/// What a check keeps of its own time for after the end of a process: it may have to be killed, and its answer judged.
const KEPT: Duration = Duration::from_millis(400);

/// Until when a process may take, so that a check can end in time.
pub(crate) fn in_time_for(until: Instant) -> Instant {
    let now = Instant::now();
    let left = until.saturating_duration_since(now);
    now + left.saturating_sub(KEPT).max(left / 2)
}

/// What checks may not do themselves.
pub trait Outside: Send + Sync {
    /// Lets a process do this work, and waits until it has ended or `until` has come.
    fn run(&self, work: &Work, until: Instant) -> Ended;

    /// Asks the kernel about its clock.
    ///
    /// # Errors
    ///
    /// In words, when it does not say.
    fn kernel_clock(&self) -> Result<KernelClock, String>;
}
