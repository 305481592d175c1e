// SPDX-License-Identifier: Apache-2.0
//! The store as the machines see it: guarded transactions over keys with revisions, as etcd has them.

mod state;
mod text;

use serde::{Deserialize, Serialize};

use crate::{LeaseId, Revision};

pub use state::StoreState;
pub use text::Text;

/// All of `then` is done if all of `when` hold; otherwise nothing is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Transaction {
    /// What must hold; empty means "always".
    pub when: Vec<Condition>,
    /// What is done then, at most one operation for a key.
    pub then: Vec<Operation>,
}

/// Something that a key must satisfy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// The key was last written at exactly this revision (0: the key is absent).
    ModRevision {
        /// Full key.
        key: String,
        /// Revision to equal.
        revision: Revision,
    },
    /// The key was created at exactly this revision (0: the key is absent).
    CreateRevision {
        /// Full key.
        key: String,
        /// Revision to equal.
        revision: Revision,
    },
}

/// A write to one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Creates or replaces a value.
    Put {
        /// Full key.
        key: String,
        /// UTF-8 text, JSON by convention.
        value: Text,
        /// Lease that the key dies with, if any. Replaces the lease that the key had.
        lease: Option<LeaseId>,
    },
    /// Removes the key; nothing happens if it is absent.
    Delete {
        /// Full key.
        key: String,
    },
}

/// How a transaction went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the conditions held and the operations were done.
    pub succeeded: bool,
    /// The store's revision afterwards; for a transaction that wrote something, the revision of its writes.
    pub revision: Revision,
}

/// A key and its value, as read from a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyValue {
    /// Full key.
    pub key: String,
    /// Value.
    pub value: Text,
    /// Revision at which the key came into being.
    pub create_revision: Revision,
    /// Revision of the last write.
    pub mod_revision: Revision,
    /// Lease that the key dies with, if any.
    pub lease: Option<LeaseId>,
}

/// What happened to one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The key was written.
    Put(KeyValue),
    /// The key was removed, by a transaction or because its lease ended.
    Delete {
        /// Full key.
        key: String,
    },
}

/// All changes of one revision. They belong together: never act on a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeBatch {
    /// The revision that made them.
    pub revision: Revision,
    /// In the order of the transaction's operations.
    pub changes: Vec<Change>,
}

impl Condition {
    /// The key that the condition is about.
    pub fn key(&self) -> &str {
        match self {
            Self::ModRevision { key, .. } | Self::CreateRevision { key, .. } => key,
        }
    }

    /// The condition that `key` does not exist.
    pub fn absent(key: String) -> Self {
        Self::ModRevision {
            key,
            revision: Revision(0),
        }
    }
}

impl Operation {
    /// The key that is written.
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

impl Change {
    /// The key that changed.
    pub fn key(&self) -> &str {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Delete { key } => key,
        }
    }
}
