// SPDX-License-Identifier: Apache-2.0
//! What happens in one simulated job, as data: it can be kept in a file and repeated after the
//! generator has changed.

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// The format of a schedule's file.
const SCHEDULE_VERSION: u32 = 1;

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
    /// In the order of their times.
    pub(crate) faults: Vec<Fault>,
}

/// The job that is simulated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    pub(crate) nodes: u32,
    pub(crate) min_nodes: u32,
    pub(crate) max_nodes: u32,
    pub(crate) slots: u32,
    pub(crate) max_restarts: u32,
    pub(crate) steps: u64,
    pub(crate) checkpoint_every: u64,
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
    pub(crate) restart_grace_ms: u64,
    pub(crate) stop_grace_ms: u64,
    pub(crate) lease_ms: u64,
    /// Percent of store calls whose answer is lost, though they may have been carried out, even
    /// later.
    pub(crate) lost_percent: u64,
    /// Whether the other ranks notice that one is gone and fail too; otherwise they wait for ever.
    pub(crate) survivors_fail: bool,
    /// Whether an exit is first reported bare, and again once it is understood.
    pub(crate) late_findings: bool,
}

/// One fault or request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    pub(crate) at_ms: u64,
    pub(crate) node: u32,
    pub(crate) kind: FaultKind,
}

/// What can happen. A worker is named by its local rank; a fault that finds nothing to hit does
/// nothing.
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
    /// The next start of this worker fails.
    SpawnFails {
        worker: u32,
        certain: bool,
    },
    AgentCrashes {
        down_ms: u64,
    },
    /// The whole node is gone, workers included; for good when `down_ms` is absent.
    NodeCrashes {
        down_ms: Option<u64>,
    },
    /// The leader's key vanishes; it may go on believing that it leads.
    LeadershipLost,
    /// The store answers nothing and does nothing.
    StoreDown {
        for_ms: u64,
    },
    /// Changes are missed; the node reads everything anew.
    WatchBroken {
        gap_ms: u64,
    },
    /// An exit that is long known is reported again.
    ExitRepeated,
    OperatorStops,
    OperatorRestarts,
    Interrupted {
        signal: i32,
    },
}

impl Schedule {
    /// Draws a schedule. First come the classes of faults that may occur at all, then the faults: a
    /// run with everything at once hides what a run with two kinds of faults shows.
    pub(crate) fn draw(seed: u64, nodes: Option<u32>) -> Self {
        let mut random = Random::new(seed);
        let shape = draw_shape(&mut random, nodes);
        let pace = draw_pace(&mut random);
        let program_fails_at = random.chance(10).then(|| random.between(1, shape.steps));
        let faults = draw_faults(&mut random, &shape, &pace);
        Self {
            version: SCHEDULE_VERSION,
            seed,
            shape,
            pace,
            program_fails_at,
            faults,
        }
    }

    /// Reads a schedule's file; the error says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let schedule: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let shape = &schedule.shape;
        if schedule.version != SCHEDULE_VERSION {
            return Err(format!(
                "its version is {}, this program knows {SCHEDULE_VERSION}",
                schedule.version
            ));
        }
        let fits = (1..=shape.max_nodes).contains(&shape.min_nodes)
            && (1..=1_000).contains(&shape.nodes)
            && (1..=64).contains(&shape.slots)
            && shape.steps > 0
            && shape.checkpoint_every > 0
            && schedule.pace.step_ms > 0;
        if fits {
            Ok(schedule)
        } else {
            Err("its shape or pace is impossible".to_owned())
        }
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
            Self::SpawnFails { .. } => "spawn fails",
            Self::AgentCrashes { .. } => "agent crashes",
            Self::NodeCrashes { .. } => "node crashes",
            Self::LeadershipLost => "leadership lost",
            Self::StoreDown { .. } => "store down",
            Self::WatchBroken { .. } => "watch broken",
            Self::ExitRepeated => "exit repeated",
            Self::OperatorStops => "operator stops",
            Self::OperatorRestarts => "operator restarts",
            Self::Interrupted { .. } => "interrupted",
        }
    }
}

fn draw_shape(random: &mut Random, nodes: Option<u32>) -> Shape {
    let nodes = nodes.unwrap_or_else(|| random.pick(1, &[1, 2, 2, 3, 4, 5]));
    let max_nodes = if random.chance(30) {
        random.small(1, nodes)
    } else {
        nodes
    };
    let min_nodes = if random.chance(50) {
        max_nodes
    } else {
        random.small(1, max_nodes)
    };
    Shape {
        nodes,
        min_nodes,
        max_nodes,
        slots: random.small(1, 3),
        max_restarts: random.pick(3, &[0, 1, 2, 3, 10]),
        steps: random.between(5, 60),
        checkpoint_every: random.pick(1, &[5, 20]),
    }
}

fn draw_pace(random: &mut Random) -> Pace {
    let restart_grace_ms = random.pick(5_000, &[500, 15_000]);
    Pace {
        step_ms: random.pick(500, &[50, 200, 2_000]),
        store_ms: random.pick(5, &[1, 5, 50, 400]),
        link_ms: random.pick(1, &[1, 20, 200]),
        reap_ms: random.pick(5, &[1, 50, 1_000]),
        obey_ms: random.pick(20, &[1, 1_000, 8_000]),
        restart_grace_ms,
        stop_grace_ms: restart_grace_ms * 2,
        lease_ms: random.pick(10_000, &[2_000]),
        lost_percent: random.pick(0, &[0, 2, 10]),
        survivors_fail: random.chance(60),
        late_findings: random.chance(40),
    }
}

/// Faults come at any time from the start until a little after an undisturbed job would have ended.
fn draw_faults(random: &mut Random, shape: &Shape, pace: &Pace) -> Vec<Fault> {
    const CLASSES: u64 = 15;
    let window_ms = shape.steps * pace.step_ms * 6 / 5 + 3_000;
    let allowed: Vec<u64> = (0..CLASSES)
        .filter(|class| random.chance(if *class < 3 { 50 } else { 25 }))
        .collect();
    let count = random.pick(0, &[1, 2, 2, 3, 4, 6, 9]);
    let mut faults = Vec::new();
    for _ in 0..count {
        let node = random.small(0, shape.nodes - 1);
        let at_ms = random.between(0, window_ms);
        let class = random.pick(0, &allowed);
        let kind = draw_kind(random, class, shape);
        faults.push(Fault { at_ms, node, kind });
        if random.chance(30) {
            // A second fault while the first is being dealt with.
            let at_ms = at_ms + random.between(0, 3_000);
            let node = random.small(0, shape.nodes - 1);
            let class = random.below(7);
            let kind = draw_kind(random, class, shape);
            faults.push(Fault { at_ms, node, kind });
        }
    }
    faults.sort_by_key(|fault| fault.at_ms);
    faults
}

fn draw_kind(random: &mut Random, class: u64, shape: &Shape) -> FaultKind {
    let worker = random.small(0, shape.slots - 1);
    match class {
        0 => FaultKind::WorkerExits {
            worker,
            code: random.pick(1, &[2, 77]),
        },
        1 => FaultKind::WorkerKilled {
            worker,
            signal: random.pick(9, &[6, 11]),
        },
        2 => FaultKind::AgentCrashes {
            down_ms: random.pick(5, &[50, 500, 3_000, 20_000]),
        },
        3 => FaultKind::LeadershipLost,
        4 => FaultKind::SpawnFails {
            worker,
            certain: random.chance(20),
        },
        5 => FaultKind::WatchBroken {
            gap_ms: random.between(1, 3_000),
        },
        6 => FaultKind::ExitRepeated,
        7 => FaultKind::WorkerLeavesEarly { worker },
        8 => FaultKind::WorkerIgnoresTerm { worker },
        9 => FaultKind::WorkerUnkillable { worker },
        10 => FaultKind::NodeCrashes {
            down_ms: random.chance(70).then(|| random.between(500, 90_000)),
        },
        11 => FaultKind::StoreDown {
            for_ms: random.between(100, 20_000),
        },
        12 => FaultKind::OperatorStops,
        13 => FaultKind::OperatorRestarts,
        _ => FaultKind::Interrupted {
            signal: random.pick(15, &[2, 1]),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_survives_its_file_and_a_seed_means_one_schedule() {
        for seed in 0..200 {
            let schedule = Schedule::draw(seed, None);
            assert_eq!(schedule, Schedule::draw(seed, None));
            let text = serde_json::to_string(&schedule).unwrap();
            assert_eq!(Schedule::parse(&text), Ok(schedule));
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
    fn every_kind_of_fault_is_drawn() {
        let names: std::collections::BTreeSet<_> = (0..3_000)
            .flat_map(|seed| Schedule::draw(seed, None).faults)
            .map(|fault| fault.kind.name())
            .collect();
        assert_eq!(names.len(), 15);
    }
}
