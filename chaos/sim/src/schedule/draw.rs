// SPDX-License-Identifier: Apache-2.0
//! From a seed to a schedule.

use super::{Fault, FaultKind, Growth, Pace, SCHEDULE_VERSION, Schedule, Shape, Witness};
use crate::random::Random;

/// How many of the numbers in [`draw_kind`] there are.
const CLASSES: u64 = 29;
/// The first so many classes are common: what really happens to jobs every day.
const COMMON: u64 = 5;
/// How long after the last fault everything is well at the latest.
const LONGEST_FAULT_MS: u64 = 60_000;

pub(super) fn schedule(seed: u64, nodes: Option<u32>) -> Schedule {
    let mut random = Random::new(seed);
    let shape = draw_shape(&mut random, nodes);
    let pace = draw_pace(&mut random);
    let program_fails_at = random.chance(6).then(|| random.between(1, shape.steps));
    let window_ms = window(&shape, &pace);
    let mut faults = draw_faults(&mut random, &shape, window_ms);
    let heal_ms = window_ms + random.between(0, LONGEST_FAULT_MS / 3);
    faults.extend(draw_unfitness(&mut random, &shape, window_ms));
    Schedule {
        version: SCHEDULE_VERSION,
        seed,
        shape,
        pace,
        program_fails_at,
        faults,
        heal_ms,
    }
}

pub(super) fn one_recovery(seed: u64, nodes: u32) -> Schedule {
    let shape = Shape {
        nodes,
        late_nodes: 0,
        min_nodes: nodes,
        max_nodes: nodes,
        node_multiple: 1,
        slots: 8,
        max_restarts: 3,
        steps: 40,
        checkpoint_every: 10,
        evaluate_every: 0,
        evaluation_ms: 0,
        synchronous: true,
        witness: Witness::Auto,
        grow: Growth::AtCheckpoint,
        wait_for_nodes_ms: 900_000,
        shrink_after_ms: 30_000,
    };
    let pace = Pace {
        step_ms: 500,
        store_ms: 5,
        link_ms: 1,
        reap_ms: 50,
        obey_ms: 100,
        start_ms: 1_000,
        restart_grace_ms: 5_000,
        stop_grace_ms: 30_000,
        lease_ms: 10_000,
        witness_lease_ms: 2_000,
        lost_percent: 0,
        survivors_fail: false,
        late_findings: false,
        clocks_drift: true,
    };
    let killed = FaultKind::WorkerKilled {
        worker: 3,
        signal: 9,
    };
    Schedule {
        version: SCHEDULE_VERSION,
        seed,
        shape,
        pace,
        program_fails_at: None,
        faults: vec![Fault {
            at_ms: 15_000,
            in_restart: None,
            node: nodes / 2,
            kind: killed,
        }],
        heal_ms: 16_000,
    }
}

fn draw_shape(random: &mut Random, nodes: Option<u32>) -> Shape {
    let nodes = nodes.unwrap_or_else(|| random.pick(1, &[2, 2, 3, 3, 4, 5, 8]));
    let max_nodes = match random.below(10) {
        0..=2 => random.small(1, nodes),
        _ => nodes,
    };
    let node_multiple = match random.below(10) {
        0..=1 if max_nodes >= 2 => 2,
        2 if max_nodes >= 4 => 4,
        _ => 1,
    };
    let min_nodes = match random.below(10) {
        0..=3 => max_nodes,
        _ => random.small(1, max_nodes),
    };
    let synchronous = random.chance(85);
    let trusted = random.pick(Witness::Auto, &[Witness::Auto, Witness::On, Witness::Off]);
    let evaluates = synchronous && random.chance(30);
    let steps = random.between(5, 50);
    Shape {
        nodes,
        late_nodes: if nodes > 1 {
            random.pick(0, &[0, 1, 2])
        } else {
            0
        },
        // A size that the multiple can meet.
        min_nodes: min_nodes.min(max_nodes / node_multiple * node_multiple),
        max_nodes,
        node_multiple,
        slots: random.small(1, 2),
        max_restarts: random.pick(3, &[0, 1, 3, 10, 10]),
        steps,
        checkpoint_every: random.pick(1, &[5, 20]),
        evaluate_every: if evaluates {
            random.between(2, steps)
        } else {
            0
        },
        evaluation_ms: if evaluates {
            random.pick(1_000, &[5_000, 15_000])
        } else {
            0
        },
        synchronous,
        witness: if synchronous { trusted } else { Witness::Off },
        grow: random.pick(
            Growth::AtCheckpoint,
            &[Growth::AtCheckpoint, Growth::Immediately, Growth::Never],
        ),
        wait_for_nodes_ms: random.pick(30_000, &[120_000]),
        shrink_after_ms: random.pick(5_000, &[1_000, 30_000]),
    }
}

fn draw_pace(random: &mut Random) -> Pace {
    let restart_grace_ms = random.pick(5_000, &[500, 15_000]);
    Pace {
        step_ms: random.pick(500, &[200, 200, 500, 2_000]),
        store_ms: random.pick(5, &[1, 5, 50, 300]),
        link_ms: random.pick(1, &[1, 20, 200]),
        reap_ms: random.pick(5, &[1, 50, 1_000]),
        obey_ms: random.pick(20, &[1, 1_000, 8_000]),
        start_ms: random.pick(200, &[10, 1_000, 8_000]),
        restart_grace_ms,
        stop_grace_ms: restart_grace_ms * 2,
        lease_ms: 10_000,
        witness_lease_ms: random.pick(2_000, &[2_000, 10_000]),
        lost_percent: random.pick(0, &[0, 0, 2, 10]),
        survivors_fail: random.chance(60),
        late_findings: random.chance(40),
        clocks_drift: random.chance(70),
    }
}

/// Faults come at any time from the start until a little after an undisturbed job would have ended.
fn window(shape: &Shape, pace: &Pace) -> u64 {
    let evaluations = shape.steps.checked_div(shape.evaluate_every).unwrap_or(0);
    let training = shape.steps * pace.step_ms + evaluations * shape.evaluation_ms;
    pace.start_ms + 2_000 + training * 6 / 5
}

fn draw_faults(random: &mut Random, shape: &Shape, window_ms: u64) -> Vec<Fault> {
    let allowed: Vec<u64> = (0..CLASSES)
        .filter(|class| random.chance(if *class < COMMON { 40 } else { 20 }))
        .collect();
    let count = random.pick(0, &[1, 1, 2, 2, 3, 4, 6, 9]);
    let last_node = shape.nodes + shape.late_nodes - 1;
    let mut faults = Vec::new();
    for _ in 0..count {
        let at_ms = random.between(0, window_ms);
        let node = random.small(0, last_node);
        let class = random.pick(0, &allowed);
        let kind = draw_kind(random, class, shape);
        let fault = |at_ms, kind| Fault {
            at_ms,
            in_restart: None,
            node,
            kind,
        };
        faults.push(fault(at_ms, kind));
        if random.chance(8) {
            // The same thing again and again: a flapping node, an agent that crash-loops, a link that comes and goes.
            let pause = random.pick(1_000, &[5_000, 20_000]);
            for turn in 1..=random.between(1, 4) {
                faults.push(fault(at_ms + turn * pause, kind));
            }
        }
        if random.chance(35) {
            // A second fault while the first is being dealt with.
            faults.push(Fault {
                at_ms: random.between(0, 4_000),
                in_restart: Some(random.pick(1, &[1, 2])),
                node: random.small(0, last_node),
                kind: {
                    let class = random.below(CLASSES);
                    draw_kind(random, class, shape)
                },
            });
        }
    }
    for node in shape.nodes..shape.nodes + shape.late_nodes {
        faults.push(Fault {
            at_ms: random.between(0, window_ms),
            in_restart: None,
            node,
            kind: FaultKind::NodeStarts,
        });
    }
    faults
}

/// Nodes that turn out to be unfit when they are looked at. Drawn last, so that what came before is what it was without it.
fn draw_unfitness(random: &mut Random, shape: &Shape, window_ms: u64) -> Vec<Fault> {
    let count = if random.chance(15) {
        random.between(1, 4)
    } else {
        0
    };
    let last_node = shape.nodes + shape.late_nodes - 1;
    let one = |_| Fault {
        at_ms: random.between(0, window_ms),
        in_restart: None,
        node: random.small(0, last_node),
        kind: FaultKind::NodeUnfit {
            for_ms: away(random),
        },
    };
    (0..count).map(one).collect()
}

/// How long something is away: around the lease, the witness window and the patience of those who wait.
fn away(random: &mut Random) -> u64 {
    let scale = random.pick(500, &[2_000, 4_000, 10_000, 15_000, 30_000]);
    (scale * random.between(50, 200) / 100).min(LONGEST_FAULT_MS)
}

fn draw_kind(random: &mut Random, class: u64, shape: &Shape) -> FaultKind {
    let worker = random.small(0, shape.slots - 1);
    let for_ms = away(random);
    let back = random.chance(65).then_some(for_ms);
    let (sends, hears) = random.pick((true, true), &[(true, true), (true, false), (false, true)]);
    match class {
        0 => FaultKind::WorkerExits {
            worker,
            code: random.pick(1, &[2, 77]),
        },
        1 => FaultKind::WorkerKilled {
            worker,
            signal: random.pick(9, &[6, 11]),
        },
        2 => FaultKind::NodeOff { down_ms: back },
        3 => FaultKind::CutFromAll {
            for_ms,
            sends,
            hears,
        },
        4 => FaultKind::StoreDown { for_ms },
        5 => FaultKind::AgentCrashes {
            down_ms: random.pick(5, &[50, 500, 3_000, 20_000]),
        },
        6 => FaultKind::AgentPaused { for_ms },
        7 => FaultKind::KeeperKilled { down_ms: back },
        8 => FaultKind::NodePaused { for_ms },
        9 => FaultKind::CutFromStore {
            for_ms,
            sends,
            hears,
        },
        10 => FaultKind::DataCut {
            to: random.small(0, shape.nodes - 1),
            for_ms,
        },
        11 => FaultKind::StoreLeaderChange,
        12 => FaultKind::StoreSlow {
            for_ms,
            way_ms: random.between(200, 3_000),
        },
        13 => FaultKind::StaleReads {
            for_ms,
            behind: random.small(1, 6),
        },
        14 => FaultKind::Compaction,
        15 => FaultKind::LeadershipLost,
        16 => FaultKind::WatchBroken {
            gap_ms: random.between(1, 3_000),
        },
        17 => FaultKind::SpawnFails {
            worker,
            certain: random.chance(20),
        },
        18 => FaultKind::WorkerHangs { worker, for_ms },
        19 => FaultKind::WorkerLeavesEarly { worker },
        20 => FaultKind::WorkerIgnoresTerm { worker },
        21 => FaultKind::WorkerUnkillable { worker },
        22 => FaultKind::ExitRepeated,
        23 | 24 => FaultKind::Preempted {
            signal: random.pick(15, &[15, 2]),
        },
        25 => FaultKind::OperatorStops,
        26 => FaultKind::OperatorRestarts,
        27 => FaultKind::OperatorDrains,
        _ => FaultKind::NodeStarts,
    }
}
