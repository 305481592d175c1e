// SPDX-License-Identifier: Apache-2.0
//! What the leader is told, and what it wants done.

use std::time::Duration;

use crate::{ChangeBatch, KeyValue, Outcome, Revision, Transaction};

/// How patient the leader is. What the members must agree on is in the job's spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderSettings {
    /// How long to wait for more members than the smallest world needs, once there are that many.
    pub gather_window: Duration,
    /// Whether the store is shared with other supervisors. If not, nobody else can join, so that nobody is waited for, and
    /// a member whose record is gone is this very node's, which will register again.
    pub shared: bool,
    /// How long a checkpoint may take that is made before the job grows.
    pub save_timeout: Duration,
    /// After how long without a committed checkpoint the workers are asked for one; `None`: the program alone decides.
    pub save_every: Option<Duration>,
}

impl Default for LeaderSettings {
    fn default() -> Self {
        Self {
            gather_window: Duration::from_secs(30),
            shared: false,
            save_timeout: Duration::from_mins(10),
            save_every: None,
        }
    }
}

/// What the leader is told. Send a [`LeaderEvent::Tick`] first, so that it looks around.
#[derive(Debug, Clone, PartialEq)]
pub enum LeaderEvent {
    /// The store changed: everything that is known by now, in order. Many members report at the same time, and looking
    /// at all of them once for each would take long.
    Changed(Vec<ChangeBatch>),
    /// The store was read anew, because changes had been missed.
    Relisted {
        /// All of the job's keys.
        entries: Vec<KeyValue>,
        /// The revision at which they were read.
        revision: Revision,
    },
    /// The last [`LeaderEffect::Write`] was carried out; its guards held or did not.
    WriteDone(Outcome),
    /// It is not known whether the last [`LeaderEffect::Write`] was carried out.
    WriteFailed,
    /// Time has passed; see [`crate::Leader::next_deadline`].
    Tick,
}

/// What the leader wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum LeaderEffect {
    /// Write to the store and answer with `WriteDone` or `WriteFailed`. There is never more than one outstanding.
    Write(Transaction),
    /// Tell the user.
    Say(String),
}
