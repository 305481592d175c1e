// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

fn at(milliseconds: u64) -> Instant {
    Instant::from_nanos(milliseconds * 1_000_000)
}

/// Two ranks that have made `steps` steps of `gap_ms` each, and show that they train.
fn trained(steps: u64, gap_ms: u64) -> (StallWatch, u64) {
    let mut watch = StallWatch::new(StallSettings::default(), at(0));
    for step in 1..=steps {
        for rank in [0, 1] {
            let now = at(step * gap_ms);
            watch.shows(LocalRank(rank), Activity::Train, at(0), now);
            watch.stepped(LocalRank(rank), step, now);
        }
    }
    (watch, steps * gap_ms)
}

#[track_caller]
fn stalled(watch: &StallWatch, milliseconds: u64) -> Stall {
    match watch.judge(at(milliseconds)) {
        StallState::Stalled(stall) => stall,
        state => panic!("{state:?}"),
    }
}

#[track_caller]
fn moves(watch: &StallWatch, milliseconds: u64) {
    let state = watch.judge(at(milliseconds));
    assert!(matches!(state, StallState::Moving { .. }), "{state:?}");
}

#[test]
fn without_any_signal_nothing_is_said() {
    let mut watch = StallWatch::new(StallSettings::default(), at(0));
    assert_eq!(watch.judge(at(u64::from(u32::MAX))), StallState::NoSignal);
    watch.joins(LocalRank(0));
    assert_eq!(watch.judge(at(u64::from(u32::MAX))), StallState::NoSignal);
    watch
        .settings
        .fixed
        .insert(Activity::Init, Duration::from_secs(5));
    moves(&watch, 4_999);
    assert_eq!(stalled(&watch, 5_000).activity, Activity::Init);
    watch.ended(LocalRank(0));
    assert_eq!(watch.judge(at(5_000)), StallState::NoSignal);
}

#[test]
fn short_steps_are_missed_within_seconds_and_long_ones_within_four() {
    let (watch, end) = trained(20, 200);
    moves(&watch, end + 1_999);
    let stall = stalled(&watch, end + 2_000);
    assert_eq!((stall.since, stall.step), (at(end), Some(20)));
    assert_eq!(stall.typical, Some(Duration::from_millis(200)));
    let (watch, end) = trained(20, 5_000);
    moves(&watch, end + 15_000);
    stalled(&watch, end + 17_000);
}

#[test]
fn a_phase_gives_room_until_the_first_step_after_it_whoever_is_in_it() {
    let (mut watch, end) = trained(20, 200);
    watch.shows(LocalRank(0), Activity::Eval, at(end + 10), at(end));
    moves(&watch, end + 10_000);
    watch.shows(LocalRank(0), Activity::Train, at(end + 10_000), at(end));
    moves(&watch, end + 20_000);
    for rank in [0, 1] {
        watch.stepped(LocalRank(rank), 21, at(end + 20_000));
    }
    moves(&watch, end + 21_999);
    assert_eq!(stalled(&watch, end + 22_100).activity, Activity::Train);
}

#[test]
fn the_first_step_may_take_long_and_bounds_can_be_set() {
    let mut watch = StallWatch::new(StallSettings::default(), at(0));
    watch.shows(LocalRank(0), Activity::Init, at(5), at(5));
    moves(&watch, 1_700_000);
    assert_eq!(stalled(&watch, 1_900_000).activity, Activity::Init);
    watch
        .settings
        .fixed
        .insert(Activity::Init, Duration::from_secs(3));
    assert_eq!(stalled(&watch, 3_005).bound, Duration::from_secs(3));
    let (mut watch, end) = trained(20, 200);
    watch
        .settings
        .fixed
        .insert(Activity::Train, Duration::from_mins(1));
    moves(&watch, end + 59_000);
}

#[test]
fn parts_of_a_step_are_signs_of_life_and_ended_ranks_are_not_waited_for() {
    let (mut watch, end) = trained(20, 200);
    watch.shows(LocalRank(1), Activity::Train, at(0), at(end + 1_900));
    moves(&watch, end + 3_800);
    stalled(&watch, end + 3_900);
    watch.ended(LocalRank(0));
    stalled(&watch, end + 3_900);
    watch.ended(LocalRank(1));
    assert_eq!(watch.judge(at(end + 9_000)), StallState::NoSignal);
}

#[test]
fn steps_in_the_output_alone_give_more_room() {
    let mut watch = StallWatch::new(StallSettings::default(), at(0));
    for step in 1..20 {
        watch.stepped(LocalRank(0), step, at(step * 200));
    }
    moves(&watch, 19 * 200 + 29_000);
    stalled(&watch, 19 * 200 + 30_000);
}

proptest! {
    /// ST-1: whatever the steps take, none of them is called a stall that comes before its due time.
    #[test]
    fn no_gap_within_the_bounds_is_a_stall(
        gaps in prop::collection::vec((1..20_000_u64, 0..7_u8), 1..200)
    ) {
        let mut watch = StallWatch::new(StallSettings::default(), at(0));
        let mut now = 0;
        for (step, (gap, kind)) in (1..).zip(gaps) {
            let activity = match kind {
                0 => Activity::Checkpoint,
                1 => Activity::Eval,
                _ => Activity::Train,
            };
            watch.shows(LocalRank(0), activity, at(now), at(now));
            if let StallState::Moving { due } = watch.judge(at(now)) {
                let gap = gap.min((due - at(now)).as_millis().saturating_sub(1).try_into().unwrap());
                now += gap;
                prop_assert!(!matches!(watch.judge(at(now)), StallState::Stalled(_)));
            } else {
                now += gap;
            }
            watch.shows(LocalRank(0), Activity::Train, at(now), at(now));
            watch.stepped(LocalRank(0), step, at(now));
            prop_assert!(!matches!(watch.judge(at(now)), StallState::Stalled(_)), "a step ends it");
        }
    }

    /// Steps that are uneven by half, checkpoints of ten steps, evaluations of fifty, all of them marked.
    #[test]
    fn a_healthy_job_is_never_called_stalled(
        step_ms in 20..6_000_u64,
        plan in prop::collection::vec((50..151_u64, 0..20_u8), 20..120)
    ) {
        let (mut watch, mut now) = trained(10, step_ms);
        for (step, (percent, kind)) in (11..).zip(plan) {
            let (activity, times) = match kind {
                0 => (Activity::Eval, 50),
                1 => (Activity::Checkpoint, 10),
                _ => (Activity::Train, 1),
            };
            watch.shows(LocalRank(0), activity, at(now), at(now));
            now += step_ms * times * percent / 100;
            prop_assert!(!matches!(watch.judge(at(now)), StallState::Stalled(_)), "{activity:?}");
            watch.shows(LocalRank(0), Activity::Train, at(now), at(now));
            now += step_ms * percent / 100;
            prop_assert!(!matches!(watch.judge(at(now)), StallState::Stalled(_)));
            watch.stepped(LocalRank(0), step, at(now));
            watch.stepped(LocalRank(1), step, at(now));
        }
    }
}
