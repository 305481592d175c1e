// SPDX-License-Identifier: Apache-2.0
//! Who judges the words of the ranks: somebody who knows what failures look like in text, which is not the business of
//! this crate.

use std::collections::BTreeMap;
use std::fmt;

use steadfast_proto::v1::{FaultClass, Finding};

use crate::{NodeName, Plan, Rank};

/// Judges over what all ranks of a generation have said. It must be a pure function: the same findings give the same
/// opinion, whoever leads.
pub trait Jury: fmt::Debug + Send + Sync {
    /// What the ends and the last words of the ranks of `plan` come to; `None` where they say nothing.
    fn judge(&self, plan: &Plan, findings: &[Finding], clocks: &ClocksAhead) -> Option<Opinion>;
}

/// By how many milliseconds the clock of each node is ahead of the leader's. Those that are not in it count as right.
pub type ClocksAhead = BTreeMap<NodeName, i64>;

/// What the words of all ranks come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opinion {
    /// The rank at fault, if it can be told.
    pub rank: Option<Rank>,
    /// The node at fault, if it can be told.
    pub node: Option<NodeName>,
    /// What kind of fault it is.
    pub class: FaultClass,
    /// How sure that is, from 0 to 100.
    pub confidence: u32,
    /// What was concluded, as part of a sentence.
    pub summary: String,
    /// What a person does next.
    pub advice: String,
}

impl Opinion {
    /// Below this confidence the evidence is thin: it decides only where there is nothing better.
    pub const THIN: u32 = 60;

    /// Whether the evidence is thin.
    pub fn is_thin(&self) -> bool {
        self.confidence < Self::THIN
    }
}
