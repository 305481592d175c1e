// SPDX-License-Identifier: Apache-2.0
//! Stops that wait for a checkpoint.

use super::*;
use crate::{CheckpointReport, SaveMeans, SaveOrder, SaveOutcome};

const SECOND: u64 = 1_000_000_000;

/// A running member whose workers can be asked for a checkpoint.
fn saver() -> Bench {
    let mut bench = Bench::running();
    bench.tell(MemberEvent::CanSave {
        generation: Generation(1),
        means: Some(SaveMeans::AtStep),
    });
    bench
}

fn order() -> SaveOrder {
    SaveOrder {
        step: 12,
        number: 0,
        within_ms: 4_000,
        ends: true,
        why: String::new(),
    }
}

fn publish(bench: &mut Bench, change: impl FnOnce(&mut Plan)) {
    let view = load(&bench.store);
    let mut plan = Plan::clone(&view.plan().unwrap().value);
    change(&mut plan);
    let batch = bench.put(Keys::new("job").plan(), encode(&plan));
    bench.tell(MemberEvent::Changed(batch));
}

fn interrupt(bench: &mut Bench, count: u32) {
    bench.tell(MemberEvent::Interrupt { signal: 15, count });
}

/// Grace of the stops that the member has ordered.
fn graces(bench: &Bench) -> Vec<Duration> {
    let stop = |effect: &MemberEffect| match effect {
        MemberEffect::Stop { grace, .. } => Some(*grace),
        _ => None,
    };
    bench.said.iter().filter_map(stop).collect()
}

#[test]
fn a_signal_waits_for_a_checkpoint_but_not_longer_than_its_grace_allows() {
    let mut bench = saver();
    interrupt(&mut bench, 1);
    assert_eq!(bench.stops(), 0);
    // Of 30 seconds, 5 are left for the workers to end in.
    let within = Duration::from_secs(25);
    assert!(bench.said.contains(&MemberEffect::Postpone { within }));
    assert_eq!(bench.record().request.unwrap().save_ms, 25_000);
    bench.now += 24 * SECOND;
    bench.tell(MemberEvent::Tick);
    assert_eq!(bench.stops(), 0);
    bench.now += SECOND;
    bench.tell(MemberEvent::Tick);
    let graces = graces(&bench);
    assert_eq!(graces.len(), 1);
    assert!(graces[0] <= Duration::from_secs(5), "{graces:?}");
}

#[test]
fn whoever_insists_does_not_wait() {
    let mut bench = saver();
    interrupt(&mut bench, 1);
    interrupt(&mut bench, 2);
    assert_eq!(bench.stops(), 1);
    let generation = Generation(1);
    assert!(bench.said.contains(&MemberEffect::KillNow { generation }));
}

#[test]
fn the_stop_comes_as_soon_as_the_plan_says_so_within_what_is_left_of_the_grace() {
    let mut bench = saver();
    interrupt(&mut bench, 1);
    publish(&mut bench, |plan| plan.save = Some(order()));
    let generation = Generation(1);
    let asked = MemberEffect::Save {
        generation,
        order: Some(order()),
    };
    assert!(bench.said.contains(&asked), "{:?}", bench.said);
    bench.now += 3 * SECOND;
    bench.tell(MemberEvent::Saved {
        generation,
        step: 12,
    });
    assert_eq!(bench.record().saved, Some(12));
    let request = bench.record().request;
    publish(&mut bench, |plan| {
        plan.save = None;
        plan.phase = PlanPhase::Drain {
            signal: 15,
            request,
            why: String::new(),
        };
    });
    let graces = graces(&bench);
    assert_eq!(graces.len(), 1);
    assert!(graces[0] <= Duration::from_secs(27), "{graces:?}");
    assert!(graces[0] > Duration::from_secs(26), "{graces:?}");
}

#[test]
fn a_worker_that_fails_meanwhile_ends_the_waiting() {
    let mut bench = saver();
    interrupt(&mut bench, 1);
    bench.exit(0, WorkerExit::Code(0), 5, None);
    assert_eq!(bench.stops(), 0, "one that has saved may end");
    bench.exit(1, WorkerExit::Code(1), 6, None);
    assert_eq!(bench.stops(), 1);
}

#[test]
fn a_checkpoint_on_request_is_asked_for_once_and_answered() {
    let mut bench = saver();
    bench.tell(MemberEvent::Operator(OperatorRequest::Checkpoint {
        number: 7,
        reason: "somebody asked".to_owned(),
    }));
    let request = bench.record().request.unwrap();
    assert_eq!(request.kind, RequestKind::Checkpoint { number: 7 });
    let findings = load(&bench.store);
    assert_eq!(
        findings.requests().count(),
        0,
        "it need not outlive the record"
    );
    let outcome = SaveOutcome {
        wanted: 12,
        number: 7,
        made: Some(12),
        why: String::new(),
    };
    publish(&mut bench, |plan| plan.last_save = Some(outcome.clone()));
    assert_eq!(bench.record().request, None);
    let ended = MemberEffect::SaveEnded {
        generation: Generation(1),
        outcome,
    };
    assert_eq!(bench.said, [ended]);
}

#[test]
fn what_it_can_vouch_for_is_written_when_its_workers_have_stopped() {
    let mut bench = saver();
    let report = |step| CheckpointReport {
        directory: "d".to_owned(),
        whole: vec![crate::WholeCheckpoint {
            step,
            name: format!("step-{step}"),
            only_for: None,
        }],
    };
    bench.tell(MemberEvent::Checkpoints(Some(report(10))));
    assert_eq!(bench.record().checkpoints, Some(report(10)));
    bench.tell(MemberEvent::Checkpoints(Some(report(20))));
    assert_eq!(
        bench.record().checkpoints,
        Some(report(10)),
        "nobody needs it yet"
    );
    publish(&mut bench, |plan| {
        plan.phase = PlanPhase::Drain {
            signal: 15,
            request: None,
            why: String::new(),
        };
    });
    bench.tell(MemberEvent::Checkpoints(Some(report(30))));
    bench.tell(MemberEvent::Stopped {
        generation: Generation(1),
        unkillable: vec![],
        next_port: 4_001,
    });
    assert_eq!(bench.record().checkpoints, Some(report(30)));
}

#[test]
fn what_is_on_stable_storage_is_written_down_and_a_commit_is_passed_on_once() {
    let mut bench = saver();
    for step in [10, 30, 20, 30, 40, 50] {
        bench.tell(MemberEvent::Durable {
            generation: Generation(1),
            step,
        });
    }
    bench.tell(MemberEvent::Durable {
        generation: Generation(2),
        step: 60,
    });
    assert_eq!(bench.record().durable, [20, 30, 40, 50]);
    publish(&mut bench, |plan| plan.committed = Some(50));
    bench.tell(MemberEvent::Tick);
    let committed = MemberEffect::Committed {
        generation: Generation(1),
        step: 50,
    };
    let told = bench.said.iter().filter(|effect| **effect == committed);
    assert_eq!(told.count(), 1);
}

#[test]
fn a_member_tells_of_an_order_that_came_too_late_and_passes_on_the_next_one() {
    let mut bench = saver();
    publish(&mut bench, |plan| plan.save = Some(order()));
    bench.tell(MemberEvent::ToldLate {
        generation: Generation(1),
        step: 12,
    });
    assert_eq!(bench.record().told_late, Some(12));
    let later = SaveOrder {
        step: 20,
        ..order()
    };
    publish(&mut bench, |plan| plan.save = Some(later.clone()));
    let passed_on = MemberEffect::Save {
        generation: Generation(1),
        order: Some(later),
    };
    assert!(bench.said.contains(&passed_on), "{:?}", bench.said);
}
