// SPDX-License-Identifier: Apache-2.0
//! What is done to a job, and what has to be said of it.

use serde::Serialize;

/// What is done to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// A rank is stopped by a signal.
    Stop,
    /// A rank waits for its next batch without end.
    Data,
    /// A rank leaves out a collective and goes on to another.
    Skip,
    /// A rank never lets go of the interpreter's lock.
    Spin,
    /// A thread of a rank keeps the interpreter's lock, asleep.
    Lock,
    /// A rank does not come to its first step.
    Init,
    /// A rank writes to a disk that does not answer.
    Write,
    /// Everything on one node stands still.
    NodeSilent,
    /// A rank takes three times as long for each step: to be left alone.
    Slow,
    /// A rank once takes 1.2 s: to be left alone.
    Pause,
    /// A rank evaluates for 8 s by itself, while the others wait: to be left alone.
    Eval,
    /// Nothing is wrong, but steps, saves and evaluations are of all lengths: to be left alone, and not even spoken of.
    Uneven,
}

impl Fault {
    pub(super) const ALL: [Self; 12] = [
        Self::Stop,
        Self::Data,
        Self::Skip,
        Self::Spin,
        Self::Lock,
        Self::Init,
        Self::Write,
        Self::NodeSilent,
        Self::Slow,
        Self::Pause,
        Self::Eval,
        Self::Uneven,
    ];

    /// Whether it can be tried with so many nodes.
    pub(super) fn fits(self, nodes: u32) -> bool {
        self != Self::NodeSilent || nodes > 1
    }

    /// Whether nothing must be done about it.
    pub(super) fn is_none(self) -> bool {
        matches!(self, Self::Slow | Self::Pause | Self::Eval | Self::Uneven)
    }

    /// The class that it has to be called.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Write => "storage",
            Self::NodeSilent => "node_lost",
            _ => "hang",
        }
    }

    /// The word that the training script understands, if it does it by itself.
    pub(super) fn word(self) -> Option<&'static str> {
        match self {
            Self::Data => Some("data"),
            Self::Skip => Some("skip"),
            Self::Spin => Some("spin"),
            Self::Lock => Some("lock"),
            Self::Write => Some("write"),
            Self::Slow => Some("slow"),
            Self::Pause => Some("pause"),
            Self::Eval => Some("eval"),
            Self::Uneven => Some("uneven"),
            Self::Stop | Self::Init | Self::NodeSilent => None,
        }
    }

    /// For people.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Stop => "rank stopped (SIGSTOP)",
            Self::Data => "endless wait for data",
            Self::Skip => "a collective left out",
            Self::Spin => "spins with the GIL",
            Self::Lock => "a thread keeps the GIL",
            Self::Init => "stuck before the first step",
            Self::Write => "write to a frozen disk",
            Self::NodeSilent => "a whole node stands still",
            Self::Slow => "rank 3 times slower",
            Self::Pause => "stall of 1.2 s",
            Self::Eval => "evaluation of 8 s on one rank",
            Self::Uneven => "nothing wrong, uneven steps",
        }
    }
}
