// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use steadfast_core::{KernelState, LocalRank, NodeName, Rank, StallSettings};

use super::*;
use crate::agent::generation::Generation;
use crate::evidence::RankEvidence;
use crate::keeper::protocol::WorkerView;

/// Two workers that have made steps of 200 ms until `end`.
fn trained(end: Instant) -> Generation {
    let mut generation = Generation::default();
    for local_rank in 0..2 {
        generation.attach(WorkerView {
            generation: 1,
            rank: local_rank,
            local_rank,
            pid: 100,
            started_ns: 0,
            exit: None,
            ended_ns: None,
            spawn_error: None,
        });
    }
    for step in 1..=40 {
        let at = end - Duration::from_secs(8) + Duration::from_millis(200 * step);
        for local_rank in 0..2 {
            generation.printed(1, local_rank, step, at.as_nanos());
        }
    }
    generation
}

/// The generation by itself, as of that time.
fn scene(generation: &Generation, now: Instant) -> Scene {
    Scene {
        generation: generation.number,
        is_active: generation.is_active(),
        has_stepped: generation.step.is_some(),
        state: generation.stall.judge(now),
        scope: Scope::Node,
    }
}

fn tick(desk: &mut StallDesk, generation: &Generation, now: Instant) -> Option<StallOrder> {
    desk.tick(&scene(generation, now), now)
}

fn desk(action: StallAction) -> StallDesk {
    StallDesk::new(StallOptions {
        action,
        bounds: StallSettings::default(),
    })
}

#[test]
fn it_is_looked_once_and_not_at_all_where_nobody_wants_to_know() {
    let end = Instant::from_nanos(100_000_000_000);
    let generation = trained(end);
    let late = end + Duration::from_secs(31);
    let mut on = desk(StallAction::Restart);
    assert!(tick(&mut on, &generation, end + Duration::from_secs(29)).is_none());
    assert!(matches!(
        tick(&mut on, &generation, late),
        Some(StallOrder::Look { number: 1 })
    ));
    assert!(
        tick(&mut on, &generation, late).is_none(),
        "while somebody looks"
    );
    assert!(tick(&mut desk(StallAction::Off), &generation, late).is_none());
    let mut stopping = trained(end);
    stopping.stopping = true;
    assert!(tick(&mut desk(StallAction::Restart), &stopping, late).is_none());
}

#[test]
fn a_stall_that_passes_is_over_and_the_next_one_is_another() {
    let end = Instant::from_nanos(100_000_000_000);
    let mut generation = trained(end);
    let mut desk = desk(StallAction::Report);
    let late = end + Duration::from_secs(31);
    tick(&mut desk, &generation, late);
    generation.printed(1, 0, 41, late.as_nanos());
    let order = tick(&mut desk, &generation, late);
    assert!(
        matches!(
            order,
            Some(StallOrder::Over {
                was_told: false,
                ..
            })
        ),
        "{order:?}"
    );
    assert!(tick(&mut desk, &generation, late).is_none());
    let later = late + Duration::from_mins(10);
    assert!(matches!(
        tick(&mut desk, &generation, later),
        Some(StallOrder::Look { number: 2 })
    ));
}

#[test]
fn where_another_node_leads_it_is_not_looked_before_it_asks() {
    let end = Instant::from_nanos(100_000_000_000);
    let generation = trained(end);
    let late = end + Duration::from_secs(31);
    let mut desk = desk(StallAction::Restart);
    let led = Scene {
        scope: Scope::Led,
        ..scene(&generation, late)
    };
    assert!(desk.tick(&led, late).is_none());
    let status = desk.status(&led, late).unwrap();
    assert!(status.contains("the node that leads"), "{status}");
    // The stream breaks: from now on this node judges for itself.
    assert!(matches!(
        tick(&mut desk, &generation, late),
        Some(StallOrder::Look { number: 1 })
    ));
}

#[test]
fn what_the_leading_core_may_not_have_got_is_said_again() {
    let end = Instant::from_nanos(100_000_000_000);
    let generation = trained(end);
    let late = end + Duration::from_secs(31);
    let mut desk = desk(StallAction::Restart);
    let leading = |now| Scene {
        scope: Scope::Job,
        ..scene(&generation, now)
    };
    desk.tick(&leading(late), late);
    let stopped = RankEvidence::unknown(
        &NodeName("n2".to_owned()),
        (Rank(3), LocalRank(1)),
        KernelState::Stopped,
    )
    .signs;
    let ranks = [stopped];
    let outcome = desk.looked(1, &ranks, &leading(late), (late, Path::new("/logs")));
    let finding = outcome.unwrap().finding.unwrap();
    assert_eq!((finding.node.as_str(), finding.rank), ("n2", Some(3)));
    assert_eq!(finding.local_rank, Some(1));
    // The time of a stall that others tell of varies a little.
    let again = late + Duration::from_mins(2);
    assert!(matches!(
        desk.tick(&leading(again), again),
        Some(StallOrder::Look { number: 1 })
    ));
}
