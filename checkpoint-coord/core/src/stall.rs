// SPDX-License-Identifier: Apache-2.0
//! Does the training still move, and if not, whose fault is it?
//!
//! [`StallWatch`] says when a generation has gone without a step for longer than its own step times explain. That alone is
//! only a reason to look closer: signs are then collected of every rank ([`RankSigns`]), and [`find_culprit`] compares
//! them. In synchronous training everybody waits for the one that does not come, so the culprit is the rank that is
//! *not* where the others are.
//!
//! Invariants:
//! - ST-1: a gap within the bounds that were in force when it began never counts as a stall.
//! - ST-2: where no step and no phase was ever seen there is [`StallState::NoSignal`], never a stall, unless somebody has set
//!   a bound for the time before the first step.
//! - ST-3: nothing is carried from one generation to the next.

mod allowance;
mod culprit;
mod pace;
mod signs;
mod watch;

pub use allowance::{Activity, StallSettings};
pub use culprit::{Confidence, Culprit, StallVerdict, find_culprit};
pub use signs::{Doing, KernelState, RankSigns};
pub use watch::{Stall, StallState, StallWatch};
