// SPDX-License-Identifier: Apache-2.0
//! What the error numbers of NVIDIA's GPUs (XIDs) and switches (SXIDs) mean, and what they ask for.
//!
//! The [catalogue](find) is data, compiled in. [`assess`] reads one event of the kernel log with it; [`Judge`] applies
//! what a user decided instead; [`Grouping`] puts the events of one incident together and finds its cause.

mod assessment;
mod catalogue;
mod driver;
mod grouping;
mod judge;
mod nvlink;
mod other_events;
mod policy;
mod recovery;
#[cfg(test)]
mod reference;
mod terms;

pub use assessment::{Assessment, assess};
pub use catalogue::{Entry, entries, find, find_all};
pub use driver::{Branches, Driver, DriverError};
pub use grouping::{Grouping, Placed, rank_in_incident};
pub use judge::Judge;
pub use nvlink::{Condition, SubCode, sub_codes};
pub use policy::{Policy, PolicyError, Rule};
pub use recovery::RecoveryAction;
pub use terms::{Action, Cause, Kind, Severity};
