// SPDX-License-Identifier: Apache-2.0
mod fitness;
mod many_nodes;
mod saving;

use std::collections::BTreeMap;

use steadfast_proto::v1::{FaultClass, Finding, Repeatability};

use super::*;
use crate::records::encode;
use crate::{
    EndRule, FindingsRecord, Incarnation, JobOutcome, JobResult, KeyValue, Keys, LeaderRecord,
    LocalRank, MemberPhase, MemberRecord, Operation, RECORD_VERSION, StoreState,
};

/// A leader and a store that answers at once; the members are played by hand.
struct Bench {
    store: StoreState,
    leader: Leader,
    now: Instant,
    said: Vec<String>,
}

/// One node has a store of its own; several share one.
fn leader_settings(max_nodes: u32) -> LeaderSettings {
    LeaderSettings {
        shared: max_nodes > 1,
        ..LeaderSettings::default()
    }
}

fn keys() -> Keys {
    Keys::new("job")
}

fn load(store: &StoreState) -> View {
    let entries: Vec<KeyValue> = store.range("").cloned().collect();
    View::load(keys(), &entries, store.revision())
}

fn put(key: String, value: impl Into<crate::Text>) -> Transaction {
    Transaction {
        when: vec![],
        then: vec![Operation::Put {
            key,
            value: value.into(),
            lease: None,
        }],
    }
}

fn idle(node: &str) -> MemberRecord {
    MemberRecord {
        address: format!("{node}.test"),
        slots: 2,
        next_port: 4_000,
        boot: format!("boot of {node}"),
        ..MemberRecord::new(node.into(), Incarnation(1))
    }
}

fn failure(fingerprint: &str) -> Finding {
    Finding {
        kind: crate::kinds::WORKER_EXITED.to_owned(),
        class: FaultClass::Program.into(),
        node: "a".to_owned(),
        rank: Some(1),
        local_rank: Some(1),
        exit_code: Some(3),
        monotonic_ns: 5,
        fingerprint: fingerprint.to_owned(),
        summary: "it broke".to_owned(),
        ..Finding::default()
    }
}

impl Bench {
    fn new(min_nodes: u32, max_nodes: u32, max_restarts: u32) -> Self {
        let mut store = StoreState::default();
        let spec = JobSpec::new(min_nodes, max_nodes, max_restarts, "digest".to_owned());
        store.apply(&put(keys().spec(), encode(&spec)));
        let record = LeaderRecord::new("a".into(), Incarnation(1));
        let epoch = store
            .apply(&put(keys().leader(), encode(&record)))
            .0
            .revision;
        let leader = Leader::new(leader_settings(max_nodes), epoch, load(&store));
        Self {
            store,
            leader,
            now: Instant::from_nanos(1_000),
            said: Vec::new(),
        }
    }

    fn tell(&mut self, event: LeaderEvent) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for effect in self.leader.handle(self.now, event) {
                match effect {
                    LeaderEffect::Say(text) => self.said.push(text),
                    LeaderEffect::Write(transaction) => {
                        let (outcome, batch) = self.store.apply(&transaction);
                        assert!(outcome.succeeded, "{transaction:?}");
                        events.extend(batch.map(|batch| LeaderEvent::Changed(vec![batch])));
                        events.push(LeaderEvent::WriteDone(outcome));
                    }
                }
            }
        }
    }

    fn write(&mut self, transaction: &Transaction) {
        if let (_, Some(batch)) = self.store.apply(transaction) {
            self.tell(LeaderEvent::Changed(vec![batch]));
        }
    }

    /// Lets time pass until the leader wants to look again.
    fn pass(&mut self) {
        self.now = self.leader.next_deadline().unwrap();
        self.tell(LeaderEvent::Tick);
    }

    fn member(&mut self, record: &MemberRecord) {
        self.write(&put(keys().member(&record.node), encode(record)));
    }

    /// A member at some phase of the generation in force.
    fn report(&mut self, node: &str, phase: MemberPhase, change: impl FnOnce(&mut MemberRecord)) {
        let mut record = idle(node);
        record.generation = self.plan().generation;
        record.phase = phase;
        record.next_port = 4_000 + u16::try_from(record.generation.0).unwrap();
        change(&mut record);
        self.member(&record);
    }

    fn find(&mut self, mut finding: Finding) {
        let generation = self.plan().generation;
        finding.generation = generation.0;
        let record = FindingsRecord {
            version: RECORD_VERSION,
            findings: vec![finding],
            request: None,
            stopped: false,
            extra: BTreeMap::new(),
        };
        self.write(&put(
            keys().findings(generation, &"a".into()),
            encode(&record),
        ));
    }

    /// One incident on node a, from the finding to the decision.
    fn fail(&mut self, finding: Finding, step: Option<u64>) {
        self.find(finding);
        self.report("a", MemberPhase::Stopped, |record| record.step = step);
    }

    fn plan(&self) -> Plan {
        Plan::clone(&load(&self.store).plan().unwrap().value)
    }

    fn result(&self) -> JobResult {
        load(&self.store).result().unwrap().clone()
    }

    fn ledger(&self) -> Ledger {
        Ledger::clone(&load(&self.store).ledger().unwrap().value)
    }

    fn one(max_restarts: u32) -> Self {
        let mut bench = Self::new(1, 1, max_restarts);
        bench.member(&idle("a"));
        assert_eq!(bench.leader.state(), LeaderState::Running(Generation(1)));
        bench
    }
}

fn request(kind: RequestKind, generation: u64) -> Request {
    Request {
        generation: Generation(generation),
        kind,
        save_ms: 0,
        reason: "somebody asked".to_owned(),
    }
}

#[test]
fn one_member_is_given_a_plan_at_once_and_without_any_timer() {
    let bench = Bench::one(3);
    let plan = bench.plan();
    assert_eq!((plan.world_size, plan.restart_count), (2, 0));
    assert_eq!(
        (plan.master.address.as_str(), plan.master.port),
        ("a.test", 4_000)
    );
    assert_eq!(bench.leader.next_deadline(), None);
}

#[test]
fn a_fault_drains_then_restarts_with_a_new_port_and_is_charged_with_the_plan() {
    let mut bench = Bench::one(3);
    bench.find(failure("x"));
    assert!(!bench.plan().is_run());
    assert_eq!(bench.leader.state(), LeaderState::Draining(Generation(1)));
    assert!(bench.leader.reason().contains('a'));
    bench.report("a", MemberPhase::Stopped, |_| {});
    let plan = bench.plan();
    assert_eq!(
        (plan.generation, plan.restart_count, plan.is_run()),
        (Generation(2), 1, true)
    );
    assert_eq!(plan.master.port, 4_001);
    assert_eq!(bench.ledger().restarts_used, 1);
    assert!(bench.said[0].contains("restart 1 of 3"), "{:?}", bench.said);
    assert!(bench.said[0].contains("rank 1 on a"), "{:?}", bench.said);
    assert_eq!(bench.leader.next_deadline(), None);
}

#[test]
fn success_needs_all_members() {
    let mut bench = Bench::new(2, 2, 3);
    bench.member(&idle("a"));
    bench.member(&idle("b"));
    bench.report("a", MemberPhase::Completed, |record| record.clean = true);
    assert_eq!(bench.leader.state(), LeaderState::Running(Generation(1)));
    bench.report("b", MemberPhase::Completed, |record| record.clean = true);
    let result = bench.result();
    assert_eq!(
        (result.outcome, result.exit_code()),
        (JobOutcome::Succeeded, 0)
    );
    assert_eq!(bench.leader.state(), LeaderState::Finished);
}

#[test]
fn the_three_rules_that_end_a_job_say_which_they_are() {
    let mut bench = Bench::one(9);
    for _ in 0..3 {
        bench.fail(failure("x"), None);
    }
    let result = bench.result();
    assert_eq!(
        (result.rule, result.exit_code()),
        (EndRule::RepeatedFailure, 3)
    );
    assert!(
        result.message.contains("happened 3 times"),
        "{}",
        result.message
    );
    assert!(
        result.message.contains("before training started"),
        "{}",
        result.message
    );
    assert_eq!(result.restarts, 2);

    let mut bench = Bench::one(1);
    bench.fail(failure("x"), Some(5));
    bench.fail(failure("y"), Some(5));
    let result = bench.result();
    assert_eq!(result.rule, EndRule::BudgetExhausted);
    assert!(result.message.contains("at step 5"), "{}", result.message);

    let mut bench = Bench::one(9);
    let mut certain = failure("x");
    certain.repeatability = Repeatability::Certain.into();
    bench.fail(certain, None);
    assert_eq!(bench.result().rule, EndRule::CertainFailure);
    assert_eq!(bench.plan().generation, Generation(1));
}

#[test]
fn progress_refills_the_budget() {
    let mut bench = Bench::one(1);
    for step in 1..20 {
        bench.fail(failure("x"), Some(step));
    }
    let ledger = bench.ledger();
    assert_eq!((ledger.restarts_used, ledger.restarts_charged), (1, 19));
    assert_eq!(bench.plan().generation, Generation(20));
}

#[test]
fn a_stop_ends_the_job_with_success_only_if_every_worker_ended_well() {
    for (clean, requeue, code) in [
        (true, false, 0),
        (false, false, 130),
        (true, true, 75),
        (false, true, 75),
    ] {
        let mut bench = Bench::one(3);
        let stop = RequestKind::Stop {
            signal: 2,
            grace_ms: Some(7),
            requeue,
        };
        bench.report("a", MemberPhase::Draining, |record| {
            record.request = Some(request(stop, 1));
        });
        let plan = bench.plan();
        let PlanPhase::Drain {
            signal,
            request: asked_for,
            ..
        } = plan.phase
        else {
            panic!("{plan:?}");
        };
        assert_eq!((signal, asked_for), (2, Some(request(stop, 1))));
        bench.report("a", MemberPhase::Stopped, |record| {
            record.request = Some(request(stop, 1));
            record.clean = clean;
        });
        let result = bench.result();
        assert_eq!(
            (result.outcome, result.exit_code()),
            (JobOutcome::Stopped, code)
        );
    }
}

#[test]
fn a_stop_outlives_the_record_of_the_member_that_was_asked() {
    let mut bench = Bench::one(3);
    let stop = RequestKind::Stop {
        signal: 15,
        grace_ms: None,
        requeue: false,
    };
    bench.report("a", MemberPhase::Draining, |record| {
        record.request = Some(request(stop, 1));
    });
    // Registered anew after its lease ran out, it knows nothing of the wish any more.
    bench.report("a", MemberPhase::Stopped, |record| record.request = None);
    assert_eq!(bench.result().outcome, JobOutcome::Stopped);
}

#[test]
fn a_stop_that_no_leader_has_seen_in_time_is_found_among_the_findings() {
    let mut bench = Bench::one(3);
    let stop = RequestKind::Stop {
        signal: 15,
        grace_ms: None,
        requeue: false,
    };
    let record = FindingsRecord {
        version: RECORD_VERSION,
        request: Some(request(stop, 1)),
        ..FindingsRecord::default()
    };
    let key = keys().findings(Generation(1), &"a".into());
    bench.write(&put(key, encode(&record)));
    bench.report("a", MemberPhase::Stopped, |_| {});
    assert_eq!(bench.result().outcome, JobOutcome::Stopped);
}

#[test]
fn a_stop_before_anything_runs_ends_the_job() {
    let mut bench = Bench::new(2, 2, 3);
    let mut record = idle("a");
    let stop = RequestKind::Stop {
        signal: 15,
        grace_ms: None,
        requeue: false,
    };
    record.request = Some(request(stop, 0));
    bench.member(&record);
    assert_eq!(bench.result().exit_code(), 143);
}

#[test]
fn an_operators_restart_is_free_and_counts_for_its_generation_only() {
    let mut bench = Bench::one(0);
    let asked = |record: &mut MemberRecord| record.request = Some(request(RequestKind::Restart, 1));
    bench.report("a", MemberPhase::Draining, asked);
    bench.report("a", MemberPhase::Stopped, asked);
    assert_eq!(bench.plan().generation, Generation(2));
    assert_eq!(bench.ledger().restarts_charged, 0);
    bench.report("a", MemberPhase::Running, asked);
    assert_eq!(bench.leader.state(), LeaderState::Running(Generation(2)));
}

#[test]
fn an_unkillable_worker_ends_the_job_on_one_node_and_costs_the_node_its_ranks_on_two() {
    let mut bench = Bench::one(3);
    bench.find(failure("x"));
    bench.report("a", MemberPhase::Stopped, |record| {
        record.unkillable = vec![LocalRank(1)];
    });
    let result = bench.result();
    assert_eq!(
        (result.rule, result.exit_code()),
        (EndRule::NodeAtFault, 76)
    );
    assert!(
        result.message.contains("local rank 1 could not be killed"),
        "{}",
        result.message
    );

    let mut bench = Bench::new(1, 2, 3);
    bench.member(&idle("a"));
    bench.member(&idle("b"));
    bench.find(failure("x"));
    bench.report("a", MemberPhase::Stopped, |record| {
        record.unkillable = vec![LocalRank(1)];
    });
    bench.report("b", MemberPhase::Stopped, |_| {});
    assert!(
        bench.leader.reason().contains("before going on with 1"),
        "{}",
        bench.leader.reason()
    );
    bench.pass();
    let plan = bench.plan();
    assert_eq!(plan.generation, Generation(2));
    assert_eq!(plan.members.len(), 1);
    assert_eq!(plan.members[0].node, NodeName::from("b"));
}

#[test]
fn too_few_members_are_waited_for_and_then_given_up() {
    let mut bench = Bench::new(2, 3, 3);
    bench.member(&idle("a"));
    assert_eq!(bench.leader.state(), LeaderState::Gathering);
    assert!(
        bench.leader.reason().starts_with("1 of at least 2"),
        "{}",
        bench.leader.reason()
    );
    bench.member(&idle("b"));
    assert!(
        bench.leader.reason().contains("2 of 3"),
        "{}",
        bench.leader.reason()
    );
    bench.pass();
    assert_eq!(bench.leader.state(), LeaderState::Running(Generation(1)));

    let mut bench = Bench::new(2, 2, 3);
    bench.member(&idle("a"));
    bench.pass();
    let result = bench.result();
    assert_eq!(
        (result.rule, result.exit_code()),
        (EndRule::NotEnoughNodes, 75)
    );
}

#[test]
fn an_incident_is_charged_once_even_if_members_are_missing_for_the_next_generation() {
    let mut bench = Bench::new(2, 2, 3);
    bench.member(&idle("a"));
    bench.member(&idle("b"));
    bench.find(failure("x"));
    bench.report("a", MemberPhase::Stopped, |_| {});
    // b was started anew meanwhile, and then went away.
    let mut reborn = idle("b");
    reborn.incarnation = Incarnation(2);
    reborn.phase = MemberPhase::Running;
    bench.member(&reborn);
    assert_eq!(bench.leader.state(), LeaderState::Gathering);
    assert_eq!(bench.ledger().restarts_charged, 1);
    // Another leader takes over in between.
    let epoch = bench.leader.epoch;
    bench.leader = Leader::new(leader_settings(2), epoch, load(&bench.store));
    bench.tell(LeaderEvent::Tick);
    reborn.phase = MemberPhase::Idle;
    bench.member(&reborn);
    assert_eq!(bench.plan().generation, Generation(2));
    assert_eq!(bench.ledger().restarts_charged, 1);
    assert!(
        bench
            .plan()
            .why
            .contains("the supervisor of b was started anew")
    );
}

#[test]
fn a_missing_member_is_waited_for_before_it_counts_as_lost() {
    let mut bench = Bench::one(3);
    bench.write(&Transaction {
        when: vec![],
        then: vec![Operation::Delete {
            key: keys().member(&"a".into()),
        }],
    });
    assert_eq!(bench.leader.state(), LeaderState::Running(Generation(1)));
    assert!(
        bench.leader.reason().contains("waiting for a"),
        "{}",
        bench.leader.reason()
    );
    bench.report("a", MemberPhase::Running, |_| {});
    assert_eq!(bench.leader.next_deadline(), None);
}

#[test]
fn a_deposed_leader_writes_nothing_more() {
    let mut bench = Bench::one(3);
    let key = keys().leader();
    bench.write(&Transaction {
        when: vec![],
        then: vec![Operation::Delete { key }],
    });
    assert_eq!(bench.leader.state(), LeaderState::Deposed);
    bench.fail(failure("x"), None);
    assert_eq!(bench.plan().generation, Generation(1));
}

#[test]
fn an_unreadable_plan_stops_all_decisions_and_is_named() {
    let mut bench = Bench::one(3);
    bench.write(&put(keys().plan(), r#"{"version":9}"#.to_owned()));
    assert!(
        bench.leader.reason().contains("version is 9"),
        "{}",
        bench.leader.reason()
    );
}

#[test]
fn storage_that_fails_again_is_waited_for_by_whoever_leads() {
    let mut bench = Bench::one(1);
    let full = Finding {
        class: FaultClass::Storage.into(),
        ..failure("OSError")
    };
    bench.fail(full.clone(), Some(5));
    assert_eq!(bench.plan().generation, Generation(2));
    bench.fail(full, Some(5));
    // The next leader knows of it, too.
    let epoch = bench.leader.epoch();
    bench.leader = Leader::new(leader_settings(1), epoch, load(&bench.store));
    bench.tell(LeaderEvent::Tick);
    assert_eq!(bench.leader.state(), LeaderState::Gathering);
    assert_eq!(bench.plan().generation, Generation(2));
    assert!(bench.leader.reason().contains("before the next attempt"));
    assert_eq!(bench.ledger().pause_s, 5);
    bench.pass();
    assert_eq!(bench.plan().generation, Generation(3));
    let ledger = bench.ledger();
    assert_eq!((ledger.pause_s, ledger.restarts_charged), (0, 1));
}
