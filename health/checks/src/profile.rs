// SPDX-License-Identifier: Apache-2.0
//! On which occasion a node is checked.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The occasion. It says which checks are made, and how long all of them together may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Before a job starts: the job waits for it.
    Prolog,
    /// After a job has ended: the node waits for it.
    Epilog,
    /// From time to time, beside running jobs.
    Health,
    /// Within a job: while its workers are stopped to be restarted, and on spares.
    Job,
    /// Everything, for a person, on a node without a job.
    Full,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Prolog,
        Self::Epilog,
        Self::Health,
        Self::Job,
        Self::Full,
    ];

    /// As it is written on a command line and in a file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prolog => "prolog",
            Self::Epilog => "epilog",
            Self::Health => "health",
            Self::Job => "job",
            Self::Full => "full",
        }
    }

    /// By its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// How long a run takes at most.
    pub const fn limit(self) -> Duration {
        match self {
            Self::Prolog | Self::Epilog => Duration::from_secs(10),
            Self::Health => Duration::from_secs(50),
            Self::Job => Duration::from_secs(5),
            Self::Full => Duration::from_mins(5),
        }
    }

    /// Whether jobs may be running on the node at that time.
    pub const fn is_beside_jobs(self) -> bool {
        matches!(self, Self::Health | Self::Job)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
