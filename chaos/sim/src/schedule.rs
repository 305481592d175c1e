// SPDX-License-Identifier: Apache-2.0
//! What happens in one simulated job, as data: it can be kept in a file and repeated after the generator has changed.

mod draw;

use serde::{Deserialize, Serialize};

/// The format of a schedule's file.
const SCHEDULE_VERSION: u32 = 2;
/// More nodes than anybody has.
pub(crate) const MOST_NODES: u32 = 20_000;

/// One simulated job. Times are virtual.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Schedule {
    pub(crate) version: u32,
    /// Drives every delay and every choice that is not written down here.
    pub(crate) seed: u64,
    pub(crate) shape: Shape,
    pub(crate) pace: Pace,
    /// The program's own error: it fails at this step, always.
    pub(crate) program_fails_at: Option<u64>,
    pub(crate) faults: Vec<Fault>,
    /// From then on nothing breaks any more: links, clocks and the store are well, and the job must run or end.
    pub(crate) heal_ms: u64,
}

/// The job that is simulated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    /// Nodes on which a supervisor is started at the beginning.
    pub(crate) nodes: u32,
    /// Nodes on which one is started later, if a fault says so.
    pub(crate) late_nodes: u32,
    pub(crate) min_nodes: u32,
    pub(crate) max_nodes: u32,
    pub(crate) node_multiple: u32,
    pub(crate) slots: u32,
    pub(crate) max_restarts: u32,
    pub(crate) steps: u64,
    pub(crate) checkpoint_every: u64,
    /// After so many steps comes an evaluation, in which no step is made; 0 for never.
    pub(crate) evaluate_every: u64,
    pub(crate) evaluation_ms: u64,
    /// Whether no rank can make a step without all others.
    pub(crate) synchronous: bool,
    pub(crate) witness: Witness,
    pub(crate) grow: Growth,
    pub(crate) wait_for_nodes_ms: u64,
    pub(crate) shrink_after_ms: u64,
}

/// Whether steps are trusted to prove that workers live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Witness {
    Off,
    Auto,
    On,
}

/// When nodes that come later are taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Growth {
    Never,
    AtCheckpoint,
    Immediately,
}

/// How fast things go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pace {
    pub(crate) step_ms: u64,
    /// Most milliseconds of one way to or from the store.
    pub(crate) store_ms: u64,
    /// Most milliseconds between keeper and agent.
    pub(crate) link_ms: u64,
    /// Most milliseconds from a worker's death until it is reaped.
    pub(crate) reap_ms: u64,
    /// Most milliseconds that a worker takes to obey SIGTERM.
    pub(crate) obey_ms: u64,
    /// Most milliseconds from the start of the workers until they can make a step.
    pub(crate) start_ms: u64,
    pub(crate) restart_grace_ms: u64,
    pub(crate) stop_grace_ms: u64,
    pub(crate) lease_ms: u64,
    pub(crate) witness_lease_ms: u64,
    /// Percent of store calls whose answer is lost, though they may have been carried out, even later.
    pub(crate) lost_percent: u64,
    /// Whether the other ranks notice that one is gone and fail too; otherwise they wait for ever.
    pub(crate) survivors_fail: bool,
    /// Whether an exit is first reported bare, and again once it is understood.
    pub(crate) late_findings: bool,
    /// Whether the nodes' clocks run at different paces.
    pub(crate) clocks_drift: bool,
}

/// One fault or request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    /// After the beginning, or after the restart that is named.
    pub(crate) at_ms: u64,
    /// Comes while the job restarts for the time with this number, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) in_restart: Option<u32>,
    pub(crate) node: u32,
    pub(crate) kind: FaultKind,
}

/// What can happen. A worker is named by its local rank; a fault that finds nothing to hit does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FaultKind {
    WorkerExits {
        worker: u32,
        code: i32,
    },
    WorkerKilled {
        worker: u32,
        signal: i32,
    },
    /// The worker ends well, before the others.
    WorkerLeavesEarly {
        worker: u32,
    },
    /// From now on this worker does not obey SIGTERM.
    WorkerIgnoresTerm {
        worker: u32,
    },
    /// From now on not even SIGKILL ends this worker.
    WorkerUnkillable {
        worker: u32,
    },
    /// The worker does nothing for a while, and with it all that wait for it.
    WorkerHangs {
        worker: u32,
        for_ms: u64,
    },
    /// The next start of this worker fails.
    SpawnFails {
        worker: u32,
        certain: bool,
    },
    AgentCrashes {
        down_ms: u64,
    },
    AgentPaused {
        for_ms: u64,
    },
    /// The keeper dies, and everything on its node with it; somebody starts a new one, or nobody does.
    KeeperKilled {
        down_ms: Option<u64>,
    },
    /// The machine is off, and boots again or does not.
    NodeOff {
        down_ms: Option<u64>,
    },
    /// Everything on the machine stands still, while its clock goes on.
    NodePaused {
        for_ms: u64,
    },
    /// Somebody starts a supervisor on a node that had none yet.
    NodeStarts,
    /// The node cannot send to the store, or hears nothing from it, or both.
    CutFromStore {
        for_ms: u64,
        sends: bool,
        hears: bool,
    },
    /// The node cannot send to anybody, or hears nothing, or both.
    CutFromAll {
        for_ms: u64,
        sends: bool,
        hears: bool,
    },
    /// What the ranks on this node send to those on the other one gets lost.
    DataCut {
        to: u32,
        for_ms: u64,
    },
    /// The store answers nothing and does nothing.
    StoreDown {
        for_ms: u64,
    },
    /// Another member of the store's cluster leads; leases begin anew.
    StoreLeaderChange,
    StoreSlow {
        for_ms: u64,
        way_ms: u64,
    },
    /// Reads show the store as it was some revisions ago.
    StaleReads {
        for_ms: u64,
        behind: u32,
    },
    /// The store forgets its history.
    Compaction,
    /// Somebody revokes the node's lease by hand.
    LeaseRevoked,
    /// The leader's key vanishes; it may go on believing that it leads.
    LeadershipLost,
    /// Changes are missed; the node reads everything anew.
    WatchBroken {
        gap_ms: u64,
    },
    /// Looks at the node find it unfit for so long.
    NodeUnfit {
        for_ms: u64,
    },
    /// An exit that is long known is reported again.
    ExitRepeated,
    /// The scheduler wants the node back.
    Preempted {
        signal: i32,
    },
    OperatorStops,
    OperatorRestarts,
    /// Takes the node out of the job.
    OperatorDrains,
}

impl Schedule {
    /// Draws a schedule. First come the classes of faults that may occur at all, then the faults: a run with everything
    /// at once hides what a run with two kinds of faults shows.
    pub(crate) fn draw(seed: u64, nodes: Option<u32>) -> Self {
        draw::schedule(seed, nodes)
    }

    /// A large job on which one worker is killed, and nothing else goes wrong.
    pub(crate) fn one_recovery(seed: u64, nodes: u32) -> Self {
        draw::one_recovery(seed, nodes)
    }

    /// Reads a schedule's file; the error says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let schedule: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if schedule.version != SCHEDULE_VERSION {
            return Err(format!(
                "its version is {}, this program knows {SCHEDULE_VERSION}",
                schedule.version
            ));
        }
        if schedule.is_possible() {
            Ok(schedule)
        } else {
            Err("its shape or pace is impossible".to_owned())
        }
    }

    pub(crate) fn all_nodes(&self) -> u32 {
        self.shape.nodes + self.shape.late_nodes
    }

    /// Whether agents look at their nodes: where that shows anything, so that what is without it stays as it is.
    pub(crate) fn has_looks(&self) -> bool {
        let unfit = |fault: &Fault| matches!(fault.kind, FaultKind::NodeUnfit { .. });
        self.faults.iter().any(unfit)
    }

    /// Whether the job runs on a store of its own, in the one supervisor's process: nothing is fenced then.
    pub(crate) fn is_alone(&self) -> bool {
        self.all_nodes() == 1
    }

    fn is_possible(&self) -> bool {
        let (shape, pace) = (&self.shape, &self.pace);
        let sizes = (1..=shape.max_nodes).contains(&shape.min_nodes)
            && (1..=shape.max_nodes).contains(&shape.node_multiple)
            && (1..=MOST_NODES).contains(&shape.nodes)
            && shape.late_nodes <= MOST_NODES
            && (1..=64).contains(&shape.slots);
        let work = shape.steps > 0 && shape.checkpoint_every > 0 && pace.step_ms > 0;
        let longest = u64::from(u32::MAX);
        let bounded = [
            self.heal_ms,
            pace.step_ms.saturating_mul(shape.steps),
            shape.evaluation_ms.saturating_mul(shape.steps),
            shape.wait_for_nodes_ms,
            shape.shrink_after_ms,
            pace.restart_grace_ms,
            pace.stop_grace_ms,
            pace.start_ms,
        ];
        sizes
            && work
            && (1_000..=longest).contains(&pace.lease_ms)
            && (1_000..=pace.lease_ms).contains(&pace.witness_lease_ms)
            && bounded.iter().all(|time| *time <= longest)
            && (shape.synchronous || shape.witness == Witness::Off)
    }
}

impl FaultKind {
    /// For counting.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WorkerExits { .. } => "worker exits",
            Self::WorkerKilled { .. } => "worker killed",
            Self::WorkerLeavesEarly { .. } => "worker leaves early",
            Self::WorkerIgnoresTerm { .. } => "worker ignores SIGTERM",
            Self::WorkerUnkillable { .. } => "worker unkillable",
            Self::WorkerHangs { .. } => "worker hangs",
            Self::SpawnFails { .. } => "spawn fails",
            Self::AgentCrashes { .. } => "agent crashes",
            Self::AgentPaused { .. } => "agent paused",
            Self::KeeperKilled { .. } => "keeper killed",
            Self::NodeOff { .. } => "node off",
            Self::NodePaused { .. } => "node paused",
            Self::NodeStarts => "node joins",
            Self::CutFromStore { .. } => "cut from the store",
            Self::CutFromAll { .. } => "cut from all",
            Self::DataCut { .. } => "data cut",
            Self::StoreDown { .. } => "store down",
            Self::StoreLeaderChange => "store elects",
            Self::StoreSlow { .. } => "store slow",
            Self::StaleReads { .. } => "stale reads",
            Self::Compaction => "compaction",
            Self::LeaseRevoked => "lease revoked",
            Self::LeadershipLost => "leadership lost",
            Self::WatchBroken { .. } => "watch broken",
            Self::NodeUnfit { .. } => "node unfit",
            Self::ExitRepeated => "exit repeated",
            Self::Preempted { .. } => "preempted",
            Self::OperatorStops => "operator stops",
            Self::OperatorRestarts => "operator restarts",
            Self::OperatorDrains => "operator drains",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_survives_its_file_and_a_seed_means_one_schedule() {
        for seed in 0..500 {
            let schedule = Schedule::draw(seed, None);
            assert_eq!(schedule, Schedule::draw(seed, None));
            let text = serde_json::to_string(&schedule).unwrap();
            assert_eq!(Schedule::parse(&text), Ok(schedule), "seed {seed}");
        }
        assert_ne!(Schedule::draw(1, None), Schedule::draw(2, None));
    }

    #[test]
    fn files_that_cannot_be_run_are_refused() {
        let mut schedule = Schedule::draw(1, Some(3));
        schedule.shape.slots = 0;
        let text = serde_json::to_string(&schedule).unwrap();
        assert!(Schedule::parse(&text).is_err());
        schedule.shape.slots = 1;
        schedule.version = 9;
        let text = serde_json::to_string(&schedule).unwrap();
        assert!(Schedule::parse(&text).is_err_and(|message| message.contains("version")));
    }

    #[test]
    fn every_kind_of_fault_is_drawn_but_the_one_that_breaks_a_promise() {
        let names: std::collections::BTreeSet<_> = (0..5_000)
            .flat_map(|seed| Schedule::draw(seed, None).faults)
            .map(|fault| fault.kind.name())
            .collect();
        assert_eq!(names.len(), 29, "{names:?}");
        assert!(!names.contains(FaultKind::LeaseRevoked.name()));
    }
}
