// SPDX-License-Identifier: Apache-2.0
//! Bugs that are put into the world around the core on purpose, to show that the checker can fail.

use clap::ValueEnum;

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Plant {
    /// The keeper starts every worker twice.
    StartTwice,
    /// The keeper says "stopped" and stops nothing.
    IgnoreStop,
    /// A new plan is written over the old one, under the old one's generation.
    ReuseGeneration,
    /// The store does not look at a transaction's conditions.
    UnguardedStore,
    /// The keeper reports the end of a worker that is well.
    FalseExit,
    /// The keeper never says that a generation is stopped.
    MuteKeeper,
    /// Each incident is charged twice.
    DoubleCharge,
    /// A worker is started after the end of the job.
    StartAfterEnd,
    /// The budget that the leader is told is larger than the job's.
    GenerousBudget,
}
