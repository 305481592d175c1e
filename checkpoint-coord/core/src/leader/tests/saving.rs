// SPDX-License-Identifier: Apache-2.0
//! Checkpoints that are asked for before something that can wait.

use std::time::Duration;

use super::*;
use crate::{CheckpointReport, SaveMeans};

const WINDOW_MS: u64 = 4_000;

/// A running node whose workers can be asked for a checkpoint, at step 10.
fn saver() -> Bench {
    let mut bench = Bench::one(3);
    bench.leader.note_step(Generation(1), 9, bench.now, true);
    bench.now = bench.now + Duration::from_secs(1);
    bench.leader.note_step(Generation(1), 10, bench.now, true);
    bench
}

fn runs(bench: &mut Bench, change: impl FnOnce(&mut MemberRecord)) {
    bench.report("a", MemberPhase::Running, |record| {
        record.can_save = Some(SaveMeans::AtStep);
        change(record);
    });
}

fn wish(kind: RequestKind) -> Request {
    Request {
        save_ms: WINDOW_MS,
        ..request(kind, 1)
    }
}

const STOP: RequestKind = RequestKind::Stop {
    signal: 15,
    grace_ms: None,
    requeue: false,
};

const LEAVE: RequestKind = RequestKind::Leave {
    signal: 15,
    grace_ms: None,
};

#[test]
fn a_stop_waits_for_a_checkpoint_at_a_step_that_nobody_has_reached() {
    let mut bench = saver();
    runs(&mut bench, |record| {
        record.request = Some(wish(STOP));
    });
    let plan = bench.plan();
    assert!(plan.is_run());
    let order = plan.save.unwrap();
    assert!(order.ends);
    assert!((11..=12).contains(&order.step), "{order:?}");
    // One that was made before does not count.
    runs(&mut bench, |record| {
        record.request = Some(wish(STOP));
        record.saved = Some(order.step - 1);
    });
    assert!(bench.plan().is_run());
    runs(&mut bench, |record| {
        record.request = Some(wish(STOP));
        record.saved = Some(order.step);
    });
    let plan = bench.plan();
    assert!(!plan.is_run());
    assert_eq!(
        (plan.save, plan.last_save.unwrap().made),
        (None, Some(order.step))
    );
    let committed: Vec<u64> = load(&bench.store).committed().keys().copied().collect();
    assert_eq!(committed, [order.step]);
    assert!(
        bench.said.last().unwrap().contains("was made"),
        "{:?}",
        bench.said
    );
}

#[test]
fn a_checkpoint_that_does_not_come_in_time_is_not_waited_for_and_that_is_said() {
    let mut bench = saver();
    runs(&mut bench, |record| {
        record.request = Some(wish(STOP));
    });
    let asked = bench.now;
    bench.pass();
    assert_eq!(bench.now - asked, Duration::from_millis(WINDOW_MS));
    let plan = bench.plan();
    assert!(!plan.is_run());
    assert_eq!(plan.last_save.unwrap().made, None);
    assert!(load(&bench.store).committed().is_empty());
    let said = bench.said.last().unwrap();
    assert!(said.contains("no checkpoint was made in time"), "{said}");
}

#[test]
fn an_order_that_came_too_late_for_some_is_given_again_for_a_later_step_each_time_further_away() {
    let mut bench = saver();
    runs(&mut bench, |record| record.request = Some(wish(STOP)));
    let first = bench.plan().save.unwrap();
    let asked = bench.now;
    let mut last = first.clone();
    let mut distances = Vec::new();
    for _ in 0..3 {
        bench.now = bench.now + Duration::from_millis(500);
        let late = last.step;
        runs(&mut bench, |record| {
            record.request = Some(wish(STOP));
            record.told_late = Some(late);
        });
        let next = bench.plan().save.unwrap();
        distances.push(next.step - last.step);
        last = next;
    }
    assert!(
        distances.is_sorted_by(|one, next| next > one),
        "{distances:?}"
    );
    // What is made at the step that was given up counts for nothing, and the time does not begin anew.
    assert!(last.ends);
    assert_eq!(last.within_ms, WINDOW_MS - 1_500);
    runs(&mut bench, |record| {
        record.request = Some(wish(STOP));
        record.told_late = Some(first.step);
        record.saved = Some(first.step);
    });
    assert_eq!(bench.plan().save, Some(last));
    bench.pass();
    assert_eq!(bench.now - asked, Duration::from_millis(WINDOW_MS));
    assert!(!bench.plan().is_run());
}

#[test]
fn a_leader_that_has_seen_no_step_yet_goes_by_what_the_records_say_of_them() {
    let mut bench = Bench::one(3);
    runs(&mut bench, |record| {
        record.step = Some(20);
        record.request = Some(wish(STOP));
    });
    let order = bench.plan().save.unwrap();
    assert_eq!((order.step, order.ends), (21, true));
    bench.leader.note_step(Generation(1), 90, bench.now, true);
    runs(&mut bench, |record| {
        record.step = Some(20);
        record.request = Some(wish(STOP));
        record.told_late = Some(21);
    });
    let later = bench.plan().save.unwrap();
    assert!(later.step > 90, "{later:?}");

    // What was saved since the record told of a step is no answer to a new question.
    let mut bench = Bench::one(3);
    runs(&mut bench, |record| {
        record.step = Some(20);
        record.saved = Some(25);
        record.request = Some(wish(STOP));
    });
    assert_eq!(bench.plan().save.unwrap().step, 26);
}

#[test]
fn a_fault_is_not_kept_waiting() {
    let mut bench = saver();
    runs(&mut bench, |record| {
        record.request = Some(wish(RequestKind::Restart));
    });
    assert!(bench.plan().is_run());
    bench.find(failure("x"));
    let plan = bench.plan();
    assert!(!plan.is_run());
    assert_eq!(plan.last_save.unwrap().made, None);
}

#[test]
fn workers_that_cannot_be_asked_are_stopped_at_once() {
    let mut bench = saver();
    bench.report("a", MemberPhase::Running, |record| {
        record.request = Some(wish(STOP));
    });
    let plan = bench.plan();
    assert!(!plan.is_run());
    assert_eq!(plan.last_save, None);
    assert!(
        bench.said.is_empty(),
        "not known to make any: {:?}",
        bench.said
    );
}

#[test]
fn a_stop_that_comes_too_early_for_a_checkpoint_says_what_it_costs() {
    let stop = |steps: &[u64], newest: Option<u64>, phase: MemberPhase| {
        let mut bench = Bench::one(3);
        for step in steps {
            bench
                .leader
                .note_step(Generation(1), *step, bench.now, true);
        }
        bench.report("a", phase, |record| {
            record.checkpoints = Some(CheckpointReport::default());
            record.checkpoint = newest;
            record.request = Some(wish(STOP));
        });
        assert!(!bench.plan().is_run());
        bench.said
    };
    // A member whose workers cannot save does not wait for the leader.
    for phase in [MemberPhase::Running, MemberPhase::Draining] {
        let said = stop(&[], None, phase);
        assert!(said[0].contains("no step is known to be lost"), "{said:?}");
        let said = stop(&[7, 9], None, phase);
        assert!(said[0].contains("the last checkpoint, up to 9"), "{said:?}");
        let said = stop(&[7, 9], Some(7), phase);
        assert!(said[0].contains("the steps after 7, up to 9"), "{said:?}");
        let said = stop(&[7, 9], Some(9), phase);
        assert!(said.is_empty(), "nothing is lost: {said:?}");
    }
    let mut bench = saver();
    bench.report("a", MemberPhase::Running, |record| {
        record.checkpoints = Some(CheckpointReport::default());
        record.request = Some(request(STOP, 1));
    });
    assert!(!bench.plan().is_run());
    assert!(bench.said.is_empty(), "none was wanted: {:?}", bench.said);
}

#[test]
fn workers_that_end_after_they_were_asked_to_save_have_not_finished() {
    let mut bench = saver();
    runs(&mut bench, |record| {
        record.request = Some(wish(RequestKind::Restart));
    });
    let step = bench.plan().save.unwrap().step;
    let completed = |bench: &mut Bench| {
        bench.report("a", MemberPhase::Completed, |record| {
            record.can_save = Some(SaveMeans::AtStep);
            record.request = Some(wish(RequestKind::Restart));
            record.saved = Some(step);
            record.clean = true;
        });
    };
    completed(&mut bench);
    assert!(load(&bench.store).result().is_none());
    assert!(!bench.plan().is_run());
    bench.report("a", MemberPhase::Stopped, |record| {
        record.request = Some(wish(RequestKind::Restart));
        record.clean = true;
    });
    assert_eq!(bench.plan().generation, Generation(2));
}

#[test]
fn workers_that_end_before_the_step_at_which_they_were_to_save_have_finished() {
    let mut bench = saver();
    runs(&mut bench, |record| {
        record.request = Some(wish(RequestKind::Restart));
    });
    bench.report("a", MemberPhase::Completed, |record| {
        record.can_save = Some(SaveMeans::AtStep);
        record.request = Some(wish(RequestKind::Restart));
        record.clean = true;
    });
    assert!(bench.plan().is_run(), "what they have left is looked for");
    bench.pass();
    assert_eq!(bench.result().outcome, JobOutcome::Succeeded);
}

#[test]
fn a_checkpoint_on_request_is_made_once_and_the_training_goes_on() {
    let mut bench = saver();
    let kind = RequestKind::Checkpoint { number: 7 };
    runs(&mut bench, |record| {
        record.request = Some(wish(kind));
    });
    let order = bench.plan().save.unwrap();
    assert!(!order.ends);
    let saved = |record: &mut MemberRecord| {
        record.request = Some(wish(kind));
        record.saved = Some(order.step);
    };
    runs(&mut bench, saved);
    let plan = bench.plan();
    assert!(plan.is_run());
    let outcome = plan.last_save.unwrap();
    assert_eq!(
        (plan.save, outcome.made, outcome.number),
        (None, Some(order.step), 7)
    );
    // The wish stands in the record until its member has heard of it.
    runs(&mut bench, |record| {
        saved(record);
        record.next_port += 1;
    });
    assert_eq!(bench.plan().save, None);
    // A stop that comes now wants another one.
    runs(&mut bench, |record| {
        record.request = Some(wish(STOP));
    });
    assert!(bench.plan().save.unwrap().ends);
}

#[test]
fn a_stop_makes_a_checkpoint_that_is_being_made_the_last() {
    let mut bench = saver();
    runs(&mut bench, |record| {
        record.request = Some(wish(RequestKind::Checkpoint { number: 7 }));
    });
    let first = bench.plan().save.unwrap();
    runs(&mut bench, |record| {
        record.request = Some(wish(STOP));
    });
    let second = bench.plan().save.unwrap();
    assert_eq!((second.step, second.ends), (first.step, true));
}

/// Two nodes, the second of which wants to leave, and their directories.
fn two(directories: [&str; 2]) -> (Bench, u64) {
    let mut bench = Bench::new(1, 2, 3);
    bench.member(&idle("a"));
    bench.member(&idle("b"));
    bench.leader.note_step(Generation(1), 10, bench.now, true);
    for (node, directory) in ["a", "b"].into_iter().zip(directories) {
        save(&mut bench, node, directory, None, None);
    }
    save(&mut bench, "b", directories[1], None, Some(wish(LEAVE)));
    let step = bench.plan().save.unwrap().step;
    (bench, step)
}

fn save(
    bench: &mut Bench,
    node: &str,
    directory: &str,
    saved: Option<u64>,
    request: Option<Request>,
) {
    bench.report(node, MemberPhase::Running, |record| {
        record.can_save = Some(SaveMeans::AtStep);
        record.saved = saved;
        record.request = request;
        record.checkpoints = Some(CheckpointReport {
            directory: directory.to_owned(),
            whole: Vec::new(),
        });
    });
}

#[test]
fn one_node_vouches_for_a_directory_that_all_share() {
    let (mut bench, step) = two(["d", "d"]);
    save(&mut bench, "a", "d", Some(step), None);
    assert!(!bench.plan().is_run());
}

#[test]
fn parts_in_several_directories_must_all_be_there() {
    for directories in [["d1", "d2"], ["", ""]] {
        let (mut bench, step) = two(directories);
        save(&mut bench, "a", directories[0], Some(step), None);
        assert!(bench.plan().is_run(), "{directories:?}");
        save(
            &mut bench,
            "b",
            directories[1],
            Some(step),
            Some(wish(LEAVE)),
        );
        assert!(!bench.plan().is_run(), "{directories:?}");
    }
}

fn flushed(bench: &mut Bench, node: &str, steps: &[u64]) {
    bench.report(node, MemberPhase::Running, |record| {
        record.durable = steps.to_vec();
    });
}

fn committed(bench: &Bench) -> Vec<u64> {
    load(&bench.store).committed().keys().copied().collect()
}

#[test]
fn what_the_program_saves_by_itself_is_committed_once_every_member_has_it_on_stable_storage() {
    let mut bench = Bench::new(1, 2, 3);
    bench.member(&idle("a"));
    bench.member(&idle("b"));
    flushed(&mut bench, "a", &[10, 20]);
    assert_eq!(committed(&bench), [0; 0]);
    flushed(&mut bench, "b", &[10]);
    assert_eq!(committed(&bench), [10]);
    assert_eq!(bench.plan().committed, Some(10));
    // One that all had before, and that is older, is no news.
    flushed(&mut bench, "b", &[5, 10, 20]);
    flushed(&mut bench, "a", &[5, 10, 20, 30]);
    assert_eq!(committed(&bench), [10, 20]);
    assert!(bench.plan().is_run());
    assert_eq!(bench.said, [""; 0], "a healthy day is quiet");
}

#[test]
fn what_a_member_of_another_generation_has_flushed_commits_nothing() {
    let mut bench = Bench::one(3);
    bench.report("a", MemberPhase::Running, |record| {
        record.durable = vec![10];
        record.generation = Generation(9);
    });
    assert_eq!(committed(&bench), [0; 0]);
    bench.report("a", MemberPhase::Running, |record| {
        record.durable = vec![10];
        record.incarnation = Incarnation(9);
    });
    assert_eq!(committed(&bench), [0; 0]);
}

#[test]
fn the_newest_commits_are_remembered_and_a_fault_waits_for_none() {
    let mut bench = Bench::one(3);
    for step in 1..20 {
        flushed(&mut bench, "a", &[step]);
    }
    assert_eq!(committed(&bench), (12..20).collect::<Vec<u64>>());
    bench.find(failure("x"));
    flushed(&mut bench, "a", &[20]);
    assert_eq!(committed(&bench).last(), Some(&19));
}

#[test]
fn workers_are_asked_when_none_was_committed_for_long_and_a_save_that_fails_is_not_repeated_at_once()
 {
    let mut bench = saver();
    let every = Duration::from_mins(1);
    bench.leader.set_save_every(Some(every));
    runs(&mut bench, |_| {});
    let began = bench.now;
    assert_eq!(bench.plan().save, None);
    bench.pass();
    assert_eq!(bench.now - began, every);
    let order = bench.plan().save.unwrap();
    assert!(!order.ends);
    runs(&mut bench, |record| record.saved = Some(order.step));
    let plan = bench.plan();
    assert_eq!((plan.save, plan.committed), (None, Some(order.step)));
    assert_eq!(bench.said, [""; 0], "a healthy day is quiet");
    // The next one is not made.
    let step = order.step + 5;
    bench.leader.note_step(Generation(1), step, bench.now, true);
    bench.pass();
    let next = bench.plan().save.unwrap();
    bench.pass();
    assert_eq!(bench.plan().save, None);
    assert_eq!(bench.said.len(), 1, "{next:?}: {:?}", bench.said);
    let failed = bench.now;
    bench.pass();
    assert_eq!(bench.now - failed, every);
    assert!(bench.plan().save.is_some());
}
