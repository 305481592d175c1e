// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use steadfast_core::StallSettings;

use super::*;
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
    assert!(
        on.tick(&generation, end + Duration::from_secs(29))
            .is_none()
    );
    assert!(matches!(
        on.tick(&generation, late),
        Some(StallOrder::Look { number: 1 })
    ));
    assert!(on.tick(&generation, late).is_none(), "while somebody looks");
    assert!(desk(StallAction::Off).tick(&generation, late).is_none());
    let mut stopping = trained(end);
    stopping.stopping = true;
    assert!(desk(StallAction::Restart).tick(&stopping, late).is_none());
}

#[test]
fn a_stall_that_passes_is_over_and_the_next_one_is_another() {
    let end = Instant::from_nanos(100_000_000_000);
    let mut generation = trained(end);
    let mut desk = desk(StallAction::Report);
    let late = end + Duration::from_secs(31);
    desk.tick(&generation, late);
    generation.printed(1, 0, 41, late.as_nanos());
    let order = desk.tick(&generation, late);
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
    assert!(desk.tick(&generation, late).is_none());
    let later = late + Duration::from_mins(10);
    assert!(matches!(
        desk.tick(&generation, later),
        Some(StallOrder::Look { number: 2 })
    ));
}
