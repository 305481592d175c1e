// SPDX-License-Identifier: Apache-2.0
//! Typed identifiers, so that a rank is never taken for a local rank.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }
    };
}

number_id!(
    /// One incarnation of the world. Counted from 1, never reused; 0 means "none yet".
    Generation(u64)
);
number_id!(
    /// A worker's rank among all workers of its generation, from 0.
    Rank(u32)
);
number_id!(
    /// A worker's rank among the workers of its node, from 0.
    LocalRank(u32)
);
number_id!(
    /// One life of a node's keeper. A respawned agent keeps it, since the workers live on; a keeper that is started anew
    /// takes another one.
    Incarnation(u64)
);
number_id!(
    /// A lease in the store; 0 means "no lease".
    LeaseId(i64)
);
number_id!(
    /// A point in the store's history; every successful write makes the next one. 0 means "absent".
    Revision(i64)
);

impl Generation {
    /// The generation that follows this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// How many restarts led to this generation: its number less one.
    pub const fn restart_count(self) -> u64 {
        self.0.saturating_sub(1)
    }
}

/// The name of a node, unique within a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeName(pub String);

impl fmt::Display for NodeName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl From<&str> for NodeName {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl AsRef<str> for NodeName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}
