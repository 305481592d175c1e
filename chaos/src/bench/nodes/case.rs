// SPDX-License-Identifier: Apache-2.0
//! What is done to the job, and who is asked to bear it.

use serde::Serialize;

use crate::bench::job::LauncherKind;

/// What happens to the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Case {
    /// A worker is killed; there are no other nodes.
    RankKilled,
    /// A worker is killed while a spare stands by, which is not needed.
    RankKilledBesideSpare,
    /// Everything on one node is killed at once; a spare takes over.
    NodeKilled,
    /// Everything on one node stands still; a spare takes over.
    NodeSilent,
    /// Everything on one node is killed at once; there is no spare, and the job goes on without.
    Shrink,
    /// One node's supervisor gets SIGTERM; a spare takes over.
    Sigterm,
    /// Everything is killed on the node that the others meet at; a spare takes over. For steadfast that is the node that
    /// leads, and the leading member of an etcd of three with it.
    HostLost,
}

impl Case {
    pub(super) const ALL: [Self; 7] = [
        Self::RankKilled,
        Self::RankKilledBesideSpare,
        Self::NodeKilled,
        Self::NodeSilent,
        Self::Shrink,
        Self::Sigterm,
        Self::HostLost,
    ];

    /// How many nodes there are, the spare included.
    pub(super) fn nodes(self) -> u32 {
        if matches!(self, Self::RankKilled | Self::Shrink) {
            2
        } else {
            3
        }
    }

    /// How many nodes train when the job has got over it.
    pub(super) fn nodes_after(self) -> u32 {
        if self == Self::Shrink { 1 } else { 2 }
    }

    /// Whether a node is gone afterwards.
    pub(super) fn costs_a_node(self) -> bool {
        !self.is_about_a_worker()
    }

    /// Whether one worker is hit, and not its node.
    pub(super) fn is_about_a_worker(self) -> bool {
        matches!(self, Self::RankKilled | Self::RankKilledBesideSpare)
    }

    /// Whether each try has a job of its own: what others meet at does not come back by itself.
    pub(super) fn wants_a_job_of_its_own(self) -> bool {
        self == Self::HostLost
    }

    /// Why a launcher cannot be asked to bear it at all.
    pub(super) fn impossible_for(self, launcher: LauncherKind) -> Option<&'static str> {
        (self == Self::Shrink && launcher == LauncherKind::FtLauncher)
            .then_some("its jobs have one size")
    }

    /// For people.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::RankKilled => "worker killed",
            Self::RankKilledBesideSpare => "worker killed, spare there",
            Self::NodeKilled => "node killed, spare there",
            Self::NodeSilent => "node silent, spare there",
            Self::Shrink => "node killed, no spare",
            Self::Sigterm => "SIGTERM to one node",
            Self::HostLost => "meeting point lost",
        }
    }
}
