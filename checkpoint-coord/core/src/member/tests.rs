// SPDX-License-Identifier: Apache-2.0
mod looking;
mod saving;

use steadfast_proto::v1::{FaultClass, FaultRole};

use super::*;
use crate::records::encode;
use crate::{
    ChangeBatch, EndRule, Incarnation, JobSpec, KeyValue, Keys, LastStep, LeaseId, LocalRank,
    MemberRecord, NodeName, Operation, Plan, PlanPhase, StoreState, Transaction, WorkerExit,
};

/// A member and a store that answers at once.
struct Bench {
    store: StoreState,
    member: Member,
    now: u64,
    said: Vec<MemberEffect>,
}

fn settings() -> MemberSettings {
    let spec = JobSpec::new(1, 1, 3, "digest".to_owned());
    MemberSettings {
        address: "a.test".to_owned(),
        slots: 2,
        ..MemberSettings::new(Keys::new("job"), "a".into(), Incarnation(1), spec)
    }
}

fn load(store: &StoreState) -> View {
    let entries: Vec<KeyValue> = store.range("").cloned().collect();
    View::load(Keys::new("job"), &entries, store.revision())
}

impl Bench {
    fn new() -> Self {
        let store = StoreState::default();
        let mut bench = Self {
            member: Member::new(settings(), load(&store)),
            store,
            now: 1_000,
            said: Vec::new(),
        };
        bench.tell(MemberEvent::Resume {
            workers: vec![],
            stopping: None,
            next_port: 4_000,
        });
        bench
    }

    fn running() -> Self {
        let mut bench = Self::new();
        bench.publish(1, PlanPhase::Run);
        bench.tell(MemberEvent::Started {
            generation: Generation(1),
            failures: vec![],
        });
        bench.said.clear();
        bench
    }

    /// Tells the member something, and carries out its writes until it has nothing more to write.
    fn tell(&mut self, event: MemberEvent) {
        self.now += 10;
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for effect in self.member.handle(Instant::from_nanos(self.now), event) {
                let MemberEffect::Write(transaction) = effect else {
                    self.said.push(effect);
                    continue;
                };
                let (outcome, batch) = self.store.apply(&transaction);
                assert!(outcome.succeeded, "{transaction:?}");
                events.extend(batch.map(MemberEvent::Changed));
                events.push(MemberEvent::WriteDone(outcome));
            }
        }
    }

    fn put(&mut self, key: String, value: impl Into<crate::Text>) -> ChangeBatch {
        let put = Transaction {
            when: vec![],
            then: vec![Operation::Put {
                key,
                value: value.into(),
                lease: None,
            }],
        };
        self.store.apply(&put).1.unwrap()
    }

    fn publish(&mut self, generation: u64, phase: PlanPhase) {
        let record = self.record();
        let mut plan =
            crate::formation::plan(Generation(generation), &[&record], String::new()).unwrap();
        plan.phase = phase;
        let batch = self.put(Keys::new("job").plan(), encode(&plan));
        self.tell(MemberEvent::Changed(batch));
    }

    fn exit(&mut self, local_rank: u32, exit: WorkerExit, at: u64, finding: Option<Finding>) {
        self.tell(MemberEvent::WorkerExited {
            generation: Generation(1),
            local_rank: LocalRank(local_rank),
            exit,
            at: Instant::from_nanos(at),
            finding,
        });
    }

    fn record(&self) -> MemberRecord {
        let view = load(&self.store);
        let record = view.member(&NodeName::from("a")).unwrap();
        MemberRecord::clone(&record.value)
    }

    fn findings(&self) -> Vec<Finding> {
        load(&self.store).findings_of(Generation(1))
    }

    fn stops(&self) -> usize {
        let stops = self.said.iter();
        stops
            .filter(|effect| matches!(effect, MemberEffect::Stop { .. }))
            .count()
    }

    /// The agent dies, and another one hears this from the keeper.
    fn respawn(&mut self, workers: Vec<WorkerObservation>, stopping: Option<u64>) {
        self.member = Member::new(settings(), load(&self.store));
        self.said.clear();
        self.tell(MemberEvent::Resume {
            workers,
            stopping: stopping.map(|began| KeeperStop {
                generation: Generation(1),
                began: Instant::from_nanos(began),
            }),
            next_port: 5_000,
        });
    }
}

fn observed(local_rank: u32, state: WorkerState) -> WorkerObservation {
    WorkerObservation {
        generation: Generation(1),
        local_rank: LocalRank(local_rank),
        state,
    }
}

fn exited(exit: WorkerExit, at: u64) -> WorkerState {
    WorkerState::Exited {
        exit,
        at: Instant::from_nanos(at),
        finding: None,
    }
}

#[test]
fn what_the_plan_says_to_all_is_not_said_again_by_each() {
    let mut bench = Bench::running();
    let drain = PlanPhase::Drain {
        signal: 15,
        request: None,
        why: "a fault on another node".to_owned(),
    };
    let before = bench.store.revision();
    bench.publish(1, drain);
    assert!(matches!(bench.said[..], [MemberEffect::Stop { .. }]));
    assert_eq!(bench.member.state(), MemberState::Draining(Generation(1)));
    // The plan alone was written. What is found meanwhile is news.
    assert_eq!(bench.store.revision(), Revision(before.0 + 1));
    assert_eq!(bench.record().phase, MemberPhase::Running);
    bench.tell(MemberEvent::Finding(Finding {
        kind: kinds::GPU_FAULT.to_owned(),
        monotonic_ns: 1,
        ..Finding::default()
    }));
    assert_eq!(bench.record().phase, MemberPhase::Draining);
    bench.tell(MemberEvent::Stopped {
        generation: Generation(1),
        unkillable: vec![],
        next_port: 4_001,
    });
    assert_eq!(bench.record().phase, MemberPhase::Stopped);
}

#[test]
fn registers_with_spec_and_port_and_starts_what_the_plan_says() {
    let mut bench = Bench::new();
    let record = bench.record();
    assert_eq!((record.next_port, record.phase), (4_000, MemberPhase::Idle));
    assert!(load(&bench.store).spec().is_some());
    bench.publish(1, PlanPhase::Run);
    assert!(matches!(&bench.said[..], [MemberEffect::Start { plan }] if plan.generation.0 == 1));
    assert_eq!(bench.member.state(), MemberState::Starting(Generation(1)));
}

#[test]
fn a_member_with_other_settings_is_refused_by_the_name_of_the_field() {
    let mut store = StoreState::default();
    let spec = JobSpec::new(1, 1, 7, "digest".to_owned());
    store.apply(&Transaction {
        when: vec![],
        then: vec![Operation::Put {
            key: Keys::new("job").spec(),
            value: encode(&spec),
            lease: None,
        }],
    });
    let mut member = Member::new(settings(), load(&store));
    let effects = member.handle(
        Instant::from_nanos(1),
        MemberEvent::Resume {
            workers: vec![],
            stopping: None,
            next_port: 1,
        },
    );
    let [MemberEffect::Finish(result)] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert_eq!(result.exit_code(), 78);
    assert!(
        result
            .message
            .contains("max_restarts is 7 for the job, but 3 on this node")
    );
}

#[test]
fn a_fault_is_written_and_the_stop_begins_in_the_same_step() {
    let mut bench = Bench::running();
    bench.exit(1, WorkerExit::Code(3), 500, None);
    let MemberEffect::Stop {
        first_signal,
        grace,
        ..
    } = &bench.said[0]
    else {
        panic!("{:?}", bench.said);
    };
    assert_eq!((*first_signal, grace.as_secs()), (15, 5));
    let finding = &bench.findings()[0];
    assert_eq!((finding.rank, finding.exit_code), (Some(1), Some(3)));
    assert_eq!(finding.class(), FaultClass::Program);
    assert_eq!(bench.record().phase, MemberPhase::Draining);
}

#[test]
fn what_our_own_stop_kills_is_no_finding_but_what_died_before_it_is() {
    let mut bench = Bench::running();
    bench.exit(1, WorkerExit::Code(3), 500, None);
    let began = bench.record().stop_began.unwrap().as_nanos();
    bench.exit(0, WorkerExit::Signal(15), began + 5, None);
    assert_eq!(bench.findings().len(), 1);
    // Its error file tells of an earlier time than the stop.
    let finding = Finding {
        monotonic_ns: 400,
        role: FaultRole::Cause.into(),
        summary: "ValueError".to_owned(),
        ..Finding::default()
    };
    bench.exit(0, WorkerExit::Code(1), began + 5, Some(finding));
    let findings = bench.findings();
    assert_eq!(findings.len(), 2);
    assert_eq!(findings[1].monotonic_ns, 400);
}

#[test]
fn a_worker_seen_dying_before_the_stop_counts_however_late_it_is_reaped() {
    let mut bench = Bench::running();
    bench.tell(MemberEvent::Finding(Finding {
        kind: kinds::WORKER_DYING.to_owned(),
        local_rank: Some(0),
        signal: Some(11),
        monotonic_ns: 300,
        ..Finding::default()
    }));
    assert_eq!(bench.stops(), 1);
    let late = bench.now + 1_000_000_000;
    bench.exit(0, WorkerExit::Signal(11), late, None);
    let findings = bench.findings();
    assert_eq!(findings.len(), 2);
    assert_eq!(findings[1].monotonic_ns, 300);
}

#[test]
fn dying_without_a_bad_end_is_not_acted_upon() {
    let mut bench = Bench::running();
    for exit_code in [None, Some(0)] {
        bench.tell(MemberEvent::Finding(Finding {
            kind: kinds::WORKER_DYING.to_owned(),
            local_rank: Some(0),
            exit_code,
            ..Finding::default()
        }));
    }
    assert_eq!(bench.said, []);
    assert_eq!(bench.findings(), []);
}

#[test]
fn a_better_finding_takes_the_place_of_a_guess_and_repetition_changes_nothing() {
    let mut bench = Bench::running();
    bench.exit(1, WorkerExit::Code(1), 500, None);
    assert_eq!(bench.findings()[0].fingerprint, "exit:1");
    let better = Finding {
        fingerprint: "ValueError at train.py:7".to_owned(),
        monotonic_ns: 450,
        ..Finding::default()
    };
    for _ in 0..3 {
        bench.exit(1, WorkerExit::Code(1), 500, Some(better.clone()));
        bench.exit(1, WorkerExit::Code(1), 500, None);
    }
    let findings = bench.findings();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].fingerprint, better.fingerprint);
    assert_eq!(bench.stops(), 1);
}

#[test]
fn all_workers_finishing_is_completion_and_one_alone_is_normal() {
    let mut bench = Bench::running();
    bench.exit(0, WorkerExit::Code(0), 500, None);
    assert_eq!(bench.member.state(), MemberState::Running(Generation(1)));
    bench.exit(1, WorkerExit::Code(0), 600, None);
    assert_eq!(bench.record().phase, MemberPhase::Completed);
    assert!(bench.record().clean);
    assert_eq!(bench.said, []);
}

#[test]
fn events_of_an_older_generation_are_ignored() {
    let mut bench = Bench::running();
    bench.exit(1, WorkerExit::Code(1), 500, None);
    bench.tell(MemberEvent::Stopped {
        generation: Generation(1),
        unkillable: vec![],
        next_port: 4_001,
    });
    bench.publish(2, PlanPhase::Run);
    bench.said.clear();
    bench.exit(0, WorkerExit::Code(9), 700, None);
    bench.tell(MemberEvent::Stopped {
        generation: Generation(1),
        unkillable: vec![],
        next_port: 4_002,
    });
    bench.tell(MemberEvent::Finding(Finding {
        kind: kinds::WORKER_EXITED.to_owned(),
        generation: 1,
        ..Finding::default()
    }));
    assert_eq!(bench.said, []);
    assert_eq!(bench.member.state(), MemberState::Starting(Generation(2)));
    assert_eq!(bench.record().next_port, 4_001);
}

#[test]
fn interrupts_stop_at_once_and_the_second_kills() {
    let mut bench = Bench::running();
    bench.tell(MemberEvent::Interrupt {
        signal: 2,
        count: 1,
    });
    let MemberEffect::Stop {
        first_signal,
        grace,
        ..
    } = &bench.said[0]
    else {
        panic!("{:?}", bench.said);
    };
    assert_eq!((*first_signal, grace.as_secs()), (2, 30));
    bench.tell(MemberEvent::Interrupt {
        signal: 15,
        count: 2,
    });
    assert_eq!(
        bench.said[1..],
        [MemberEffect::KillNow {
            generation: Generation(1)
        }]
    );
    // The first one names the signal.
    let request = bench.record().request.unwrap();
    assert!(matches!(request.kind, RequestKind::Stop { signal: 2, .. }));
}

#[test]
fn after_an_interrupt_nothing_is_started() {
    let mut bench = Bench::new();
    bench.tell(MemberEvent::Interrupt {
        signal: 15,
        count: 1,
    });
    bench.publish(1, PlanPhase::Run);
    assert!(
        matches!(
            bench.said[..],
            [MemberEffect::Stop {
                generation: Generation(1),
                ..
            }]
        ),
        "it must not be started by what an earlier agent has said either: {:?}",
        bench.said
    );
    bench.tell(MemberEvent::Stopped {
        generation: Generation(1),
        unkillable: vec![],
        next_port: 4_001,
    });
    assert!(bench.record().has_stopped(Generation(1)));
}

#[test]
fn an_operators_request_is_obeyed_once_it_is_written() {
    let mut bench = Bench::running();
    let request = MemberEvent::Operator(OperatorRequest::Restart {
        reason: "new code".to_owned(),
    });
    let now = Instant::from_nanos(bench.now);
    let effects = bench.member.handle(now, request);
    assert!(
        matches!(&effects[..], [MemberEffect::Write(_)]),
        "{effects:?}"
    );
    let MemberEffect::Write(transaction) = &effects[0] else {
        return;
    };
    let (outcome, _) = bench.store.apply(transaction);
    bench.tell(MemberEvent::WriteDone(outcome));
    assert_eq!(bench.stops(), 1);
}

#[test]
fn a_store_that_does_not_answer_keeps_no_fault_from_being_acted_upon() {
    let mut bench = Bench::running();
    let step = MemberEvent::Step {
        generation: Generation(1),
        step: 3,
    };
    let now = Instant::from_nanos(bench.now);
    let effects = bench.member.handle(now, step);
    assert!(matches!(&effects[..], [MemberEffect::Write(_)]));
    let effects = bench.member.handle(
        now,
        MemberEvent::Interrupt {
            signal: 15,
            count: 1,
        },
    );
    assert!(
        matches!(&effects[..], [MemberEffect::Stop { .. }]),
        "{effects:?}"
    );
}

#[test]
fn steps_are_written_seldom_and_exactly_at_the_end() {
    let mut bench = Bench::running();
    for step in 1..=100 {
        bench.tell(MemberEvent::Step {
            generation: Generation(1),
            step,
        });
    }
    assert_eq!(bench.record().step, Some(1));
    bench.now += 11_000_000_000;
    bench.tell(MemberEvent::Step {
        generation: Generation(1),
        step: 101,
    });
    assert_eq!(bench.record().step, Some(101));
    bench.tell(MemberEvent::Step {
        generation: Generation(1),
        step: 102,
    });
    bench.exit(1, WorkerExit::Signal(9), 500, None);
    assert_eq!(bench.record().step, Some(102));
    assert_eq!(bench.findings()[0].step, Some(102));
}

#[test]
fn a_respawned_agent_finds_running_workers_and_touches_nothing() {
    let mut bench = Bench::running();
    bench.respawn(
        vec![
            observed(0, WorkerState::Alive),
            observed(1, WorkerState::Alive),
        ],
        None,
    );
    assert_eq!(bench.said, []);
    assert_eq!(bench.member.state(), MemberState::Running(Generation(1)));
}

#[test]
fn a_respawned_agent_sees_the_fault_that_its_predecessor_missed() {
    let mut bench = Bench::running();
    let dead = exited(WorkerExit::Code(3), 700);
    bench.respawn(
        vec![observed(0, WorkerState::Alive), observed(1, dead)],
        None,
    );
    assert_eq!(bench.stops(), 1);
    assert_eq!(bench.findings().len(), 1);
}

#[test]
fn a_respawned_agent_tells_exits_before_the_stop_from_those_after() {
    let mut bench = Bench::running();
    // The predecessor died between the stop and its report.
    let before = exited(WorkerExit::Code(3), 700);
    let after = exited(WorkerExit::Signal(15), 900);
    bench.respawn(vec![observed(0, after), observed(1, before)], Some(800));
    let findings = bench.findings();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].local_rank, Some(1));
    assert_eq!(bench.stops(), 1, "the answer may have been lost: ask again");
}

#[test]
fn a_respawned_agent_starts_what_was_never_started_and_nothing_twice() {
    let mut bench = Bench::new();
    bench.publish(1, PlanPhase::Run);
    bench.respawn(vec![], None);
    assert!(matches!(&bench.said[..], [MemberEffect::Start { .. }]));
    bench.exit(1, WorkerExit::Code(3), 700, None);
    bench.tell(MemberEvent::Stopped {
        generation: Generation(1),
        unkillable: vec![],
        next_port: 4_001,
    });
    let ended = |local| observed(local, exited(WorkerExit::Code(3), 700));
    bench.respawn(vec![ended(0), ended(1)], Some(750));
    assert_eq!(bench.said, []);
    assert_eq!(bench.member.state(), MemberState::Stopped(Generation(1)));
}

#[test]
fn a_worker_that_cannot_be_killed_is_told_of_even_when_a_plan_leaves_the_node_out() {
    let mut bench = Bench::running();
    bench.exit(1, WorkerExit::Code(1), 500, None);
    bench.tell(MemberEvent::Stopped {
        generation: Generation(1),
        unkillable: vec![LocalRank(0)],
        next_port: 4_001,
    });
    let mut plan = Plan::clone(&bench.member.view().plan().unwrap().value);
    plan.generation = Generation(2);
    plan.phase = PlanPhase::Run;
    plan.members[0].node = "other".into();
    let batch = bench.put(bench.member.settings.keys.plan(), encode(&plan));
    bench.tell(MemberEvent::Changed(batch));
    assert_eq!(bench.member.state(), MemberState::Spare);
    assert_eq!(bench.record().unkillable, [LocalRank(0)]);
}

#[test]
fn a_stop_of_no_generation_means_nothing() {
    let mut bench = Bench::new();
    bench.member = Member::new(settings(), load(&bench.store));
    bench.tell(MemberEvent::Resume {
        workers: vec![],
        stopping: Some(KeeperStop {
            generation: Generation(0),
            began: Instant::from_nanos(1),
        }),
        next_port: 1,
    });
    assert_eq!(bench.member.state(), MemberState::Spare);
}

#[test]
fn a_lost_record_is_written_again() {
    let mut bench = Bench::running();
    let (_, batch) = bench.store.apply(&Transaction {
        when: vec![],
        then: vec![Operation::Delete {
            key: Keys::new("job").member(&NodeName::from("a")),
        }],
    });
    bench.tell(MemberEvent::Changed(batch.unwrap()));
    assert_eq!(bench.record().phase, MemberPhase::Running);
}

#[test]
fn another_supervisor_of_the_same_name_takes_over_and_this_one_leaves() {
    let mut bench = Bench::running();
    let mut other = bench.record();
    other.incarnation = Incarnation(2);
    let batch = bench.put(Keys::new("job").member(&other.node), encode(&other));
    let effects = bench
        .member
        .handle(Instant::from_nanos(bench.now), MemberEvent::Changed(batch));
    assert!(
        matches!(&effects[0], MemberEffect::Stop { .. }),
        "{effects:?}"
    );
    let effects = bench.member.handle(
        Instant::from_nanos(bench.now),
        MemberEvent::Stopped {
            generation: Generation(1),
            unkillable: vec![],
            next_port: 1,
        },
    );
    assert!(
        matches!(&effects[..], [MemberEffect::Finish(result)] if result.rule == EndRule::Refused),
        "{effects:?}"
    );
}

#[test]
fn a_signal_ends_a_member_whose_store_does_not_answer_once_its_workers_are_stopped() {
    let mut bench = Bench::running();
    bench.member.settings.shared = true;
    let ends_after = |bench: &mut Bench, seconds: u64, event: MemberEvent| {
        bench.now += seconds * 1_000_000_000;
        let effects = bench.member.handle(Instant::from_nanos(bench.now), event);
        let finish = effects.into_iter().find_map(|effect| match effect {
            MemberEffect::Finish(result) => Some(result),
            // Nobody carries it out, and nobody answers.
            _ => None,
        });
        finish.map(|result| (result.rule, result.exit.code()))
    };
    let interrupt = MemberEvent::Interrupt {
        signal: 15,
        count: 1,
    };
    assert_eq!(ends_after(&mut bench, 0, interrupt), None);
    assert_eq!(
        ends_after(&mut bench, 60, MemberEvent::Tick),
        None,
        "its workers still run"
    );
    let stopped = MemberEvent::Stopped {
        generation: Generation(1),
        unkillable: vec![],
        next_port: 0,
    };
    assert_eq!(ends_after(&mut bench, 0, stopped), None);
    assert_eq!(ends_after(&mut bench, 4, MemberEvent::Tick), None);
    assert_eq!(
        ends_after(&mut bench, 2, MemberEvent::Tick),
        Some((EndRule::Left, 143))
    );
}

#[test]
fn a_fence_that_comes_when_all_workers_have_done_their_work_is_no_fault() {
    let mut bench = Bench::running();
    for local_rank in 0..2 {
        bench.exit(local_rank, WorkerExit::Code(0), 2_000, None);
    }
    bench.tell(MemberEvent::Fenced {
        generation: Generation(1),
        at: Instant::from_nanos(3_000),
    });
    bench.tell(MemberEvent::Stopped {
        generation: Generation(1),
        unkillable: vec![],
        next_port: 0,
    });
    let record = bench.record();
    assert_eq!((record.phase, record.clean), (MemberPhase::Stopped, true));
    let findings = Keys::new("job").findings(Generation(1), &"a".into());
    assert!(bench.store.range(&findings).next().is_none());
}

#[test]
fn an_old_plan_that_comes_after_a_new_registration_starts_nothing() {
    let mut bench = Bench::new();
    let record = bench.record();
    let plan = crate::formation::plan(Generation(1), &[&record], String::new()).unwrap();
    let late = bench.put(Keys::new("job").plan(), encode(&plan));
    let key = Keys::new("job").member(&NodeName::from("a"));
    let (gone, _) = bench.store.apply(&Transaction {
        when: vec![],
        then: vec![Operation::Delete { key }],
    });
    // The member watches common keys only, and hears of its own record by reading it.
    let now = Instant::from_nanos(bench.now);
    let lost = MemberEvent::OwnRecord {
        record: None,
        revision: gone.revision,
    };
    let effects = bench.member.handle(now, lost);
    let [MemberEffect::Write(transaction)] = &effects[..] else {
        panic!("{effects:?}");
    };
    let (outcome, _) = bench.store.apply(transaction);
    assert!(outcome.succeeded);
    bench.member.handle(now, MemberEvent::WriteDone(outcome));
    let effects = bench.member.handle(now, MemberEvent::Changed(late));
    let starts = |effect: &MemberEffect| matches!(effect, MemberEffect::Start { .. });
    assert!(!effects.iter().any(starts), "{effects:?}");
    assert_eq!(bench.member.state(), MemberState::Draining(Generation(1)));
    assert_eq!(bench.member.findings()[0].kind, kinds::WORKER_FENCED);
}

#[test]
fn how_old_the_last_step_was_is_told_once_the_workers_are_gone() {
    let mut bench = Bench::running();
    let second = 1_000_000_000;
    // Telling takes the bench 10 ns.
    for (step, at) in [(1, 10 * second), (2, 12 * second), (3, 12 * second + 10)] {
        bench.now = at - 10;
        bench.tell(MemberEvent::Step {
            generation: Generation(1),
            step,
        });
    }
    bench.exit(0, WorkerExit::Code(1), bench.now, None);
    assert_eq!(bench.record().last_step, None, "one still runs");
    bench.now = 17 * second;
    bench.tell(MemberEvent::Stopped {
        generation: Generation(1),
        unkillable: vec![],
        next_port: 4_001,
    });
    let last = LastStep {
        age_ms: 5_000,
        one_step_ms: 4_000,
    };
    assert_eq!(bench.record().last_step, Some(last));
    // However late it is looked at: the age is that at the end.
    bench.now += 50 * second;
    bench.tell(MemberEvent::Lease(LeaseId(7)));
    assert_eq!(bench.record().last_step, Some(last));
    bench.publish(2, PlanPhase::Run);
    assert_eq!(bench.member.own_steps(), None, "of the new generation");
}

#[test]
fn spares_let_members_of_the_plan_lead() {
    let mut bench = Bench::new();
    assert_eq!(bench.member.campaign_delay(), Duration::ZERO, "no plan yet");
    bench.publish(1, PlanPhase::Run);
    assert_eq!(bench.member.campaign_delay(), Duration::ZERO);
    let other = MemberRecord::new("b".into(), Incarnation(1));
    let plan = crate::formation::plan(Generation(2), &[&other], String::new()).unwrap();
    let batch = bench.put(Keys::new("job").plan(), encode(&plan));
    bench.tell(MemberEvent::Changed(batch));
    assert_eq!(bench.member.campaign_delay(), SPARES_CAMPAIGN_AFTER);
}
