// SPDX-License-Identifier: Apache-2.0
//! Progress pages: small files in shared memory through which training processes show how far they are.
//!
//! The layout is described byte by byte in `docs/progress-page.md`. Pages are written by processes that may crash in the
//! middle of it, or mean harm: they are copied out with `pread` (a file that is truncated under a mapping kills whoever
//! reads it; two reads of 4 KiB cost about a microsecond), checked, and ignored when they make no sense.

mod directory;
mod file;
mod layout;

use std::path::PathBuf;

pub use self::directory::{Look, PageDirectory};
pub use self::file::{PageFault, PageFile};
pub use self::layout::PAGE_SIZE;

/// What a process shows of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// Its process id, as it sees itself: another one than ours when it runs in a container.
    pub pid: u32,
    /// Its rank in the job, if it knows one.
    pub rank: Option<u32>,
    /// Its local rank, if it knows one.
    pub local_rank: Option<u32>,
    /// The generation that it was started in; 0 when it does not know.
    pub generation: u64,
    /// When the page was made, in nanoseconds of the monotonic clock.
    pub created_ns: u64,
    /// The signal upon which the process writes down the stacks of its threads, if it does.
    pub stack_signal: Option<u32>,
    /// The last step that is done, if one is.
    pub step: Option<PageStep>,
    /// When the process last reported a step, or a part of one, in nanoseconds of the monotonic clock.
    pub changed_ns: u64,
    /// What it is busy with.
    pub phase: PagePhase,
    /// When that began, in nanoseconds of the monotonic clock.
    pub phase_ns: u64,
    /// Collective operations issued and finished, if they are counted.
    pub collectives: Option<(u64, u64)>,
    /// The step at which a checkpoint was asked for, if one was.
    pub checkpoint_request: Option<u64>,
    /// When the program last asked whether a checkpoint is wanted, if it ever did, in nanoseconds of the monotonic clock.
    pub asked_ns: Option<u64>,
    /// The step of the last checkpoint that the process has finished, if it said so.
    pub checkpoint_done: Option<u64>,
    /// Where that checkpoint is, if the process said so.
    pub checkpoint_path: Option<PathBuf>,
    /// The last loss that was reported, if one was; it may be infinite, or no number.
    pub loss: Option<f64>,
}

/// A step that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageStep {
    /// Its number.
    pub number: u64,
    /// What kind of number that is.
    pub source: StepSource,
    /// When it was done, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
}

/// Where the number of a step comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepSource {
    /// Counted since the process began: a restart begins anew.
    Counted,
    /// The count that an optimizer keeps and takes along through a checkpoint.
    Optimizer,
    /// The program says so.
    Stated,
}

/// What a process is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagePhase {
    /// It has not trained yet.
    Init,
    /// It trains.
    Train,
    /// It writes a checkpoint.
    Checkpoint,
    /// It evaluates the model.
    Eval,
    /// It reads a checkpoint or data.
    Load,
    /// It compiles, or warms up otherwise.
    Compile,
    /// Something that a newer version knows.
    Other(u32),
}

impl Page {
    /// The page, among those of one worker's processes, that tells how far the worker is: of those that make steps, those
    /// that know their rank, the one that was changed last. Launchers and helpers have pages, too, but make no steps.
    pub fn leading(pages: &[Page]) -> Option<&Page> {
        pages
            .iter()
            .max_by_key(|page| (page.step.is_some(), page.rank.is_some(), page.changed_ns))
    }
}

impl StepSource {
    /// Whether the number goes on through restarts.
    pub fn is_absolute(self) -> bool {
        self != Self::Counted
    }
}

impl PagePhase {
    /// One word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Train => "train",
            Self::Checkpoint => "checkpoint",
            Self::Eval => "eval",
            Self::Load => "load",
            Self::Compile => "compile",
            Self::Other(_) => "other",
        }
    }
}

#[cfg(test)]
mod tests;
