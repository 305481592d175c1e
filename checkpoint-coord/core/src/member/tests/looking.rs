// SPDX-License-Identifier: Apache-2.0
//! Looks at the member's own node.

use super::*;
use crate::Fitness;

fn watchful() -> MemberSettings {
    MemberSettings {
        looks_every: Some(Duration::from_mins(1)),
        ..settings()
    }
}

/// A member whose workers run, whose node nobody has looked at yet.
fn running() -> Bench {
    let mut bench = Bench::new();
    bench.member = Member::new(watchful(), load(&bench.store));
    bench.tell(MemberEvent::Resume {
        workers: vec![],
        stopping: None,
        next_port: 4_000,
    });
    bench.publish(1, PlanPhase::Run);
    bench.tell(MemberEvent::Started {
        generation: Generation(1),
        failures: vec![],
    });
    bench.said.clear();
    bench
}

fn lost() -> Finding {
    Finding {
        class: FaultClass::GpuHardware.into(),
        summary: "GPU 3 is lost".to_owned(),
        ..Finding::default()
    }
}

fn fitness(bench: &Bench) -> Fitness {
    bench.record().fitness.unwrap()
}

fn fail(bench: &mut Bench) {
    bench.exit(0, WorkerExit::Code(1), 2_000, None);
    bench.exit(1, WorkerExit::Signal(15), 2_000, None);
}

fn stopped(bench: &mut Bench) {
    bench.tell(MemberEvent::Stopped {
        generation: Generation(1),
        unkillable: vec![],
        next_port: 4_001,
    });
}

#[test]
fn what_is_found_while_workers_are_stopped_goes_out_with_the_report_that_they_are() {
    let mut bench = running();
    bench.tell(MemberEvent::Looked(vec![]));
    fail(&mut bench);
    bench.tell(MemberEvent::Looked(vec![lost()]));
    stopped(&mut bench);
    assert_eq!(fitness(&bench).faults, ["GPU 3 is lost"]);
    assert_eq!(fitness(&bench).look, 2);
    let findings = bench.findings();
    let found = findings.last().unwrap();
    assert_eq!(found.kind, kinds::NODE_CHECK_FAILED);
    assert_eq!((found.node.as_str(), found.generation), ("a", 1));
    // The exit does not explain itself, so the node is the cause.
    let verdict =
        crate::verdict::find_root_cause(findings, &crate::ClocksAhead::new(), |_| None).unwrap();
    assert_eq!(verdict.root.kind, kinds::NODE_CHECK_FAILED);
    assert_eq!(verdict.others[0].role(), FaultRole::Consequence);
}

#[test]
fn the_node_is_looked_at_when_workers_are_stopped_that_may_be_started_again() {
    let looks = |bench: &Bench| bench.said.contains(&MemberEffect::Look);
    let mut bench = running();
    fail(&mut bench);
    assert!(looks(&bench));
    let mut bench = running();
    bench.tell(MemberEvent::Operator(OperatorRequest::Stop {
        grace: None,
        reason: "enough".to_owned(),
    }));
    assert_eq!(bench.stops(), 1);
    assert!(!looks(&bench));
    let mut bench = Bench::running();
    fail(&mut bench);
    assert!(!looks(&bench), "where nobody looks");
}

#[test]
fn what_is_found_too_late_ends_the_generation_that_has_begun_meanwhile() {
    let mut bench = running();
    bench.tell(MemberEvent::Looked(vec![]));
    fail(&mut bench);
    stopped(&mut bench);
    bench.publish(2, PlanPhase::Run);
    bench.said.clear();
    bench.tell(MemberEvent::Looked(vec![lost()]));
    assert_eq!(bench.stops(), 1);
    assert_eq!(fitness(&bench).faults, ["GPU 3 is lost"]);
    assert_eq!(bench.member.fault().unwrap().generation, 2);
}

#[test]
fn a_fault_that_the_leader_cannot_have_heard_of_is_not_forgotten_when_it_gives_ranks_again() {
    let mut bench = running();
    bench.tell(MemberEvent::Looked(vec![]));
    fail(&mut bench);
    stopped(&mut bench);
    bench.tell(MemberEvent::Looked(vec![lost()]));
    bench.said.clear();
    bench.publish(2, PlanPhase::Run);
    assert_eq!(bench.stops(), 1);
    assert_eq!(fitness(&bench).faults, ["GPU 3 is lost"]);
}

#[test]
fn what_was_so_when_the_job_began_ends_no_generation() {
    let mut bench = running();
    bench.tell(MemberEvent::Looked(vec![lost()]));
    fail(&mut bench);
    bench.tell(MemberEvent::Looked(vec![lost()]));
    stopped(&mut bench);
    assert!(fitness(&bench).faults.is_empty());
    let kinds: Vec<String> = bench
        .findings()
        .into_iter()
        .map(|found| found.kind)
        .collect();
    assert_eq!(kinds, [kinds::WORKER_EXITED]);
}

#[test]
fn another_agent_goes_on_with_what_the_record_says() {
    let mut bench = running();
    bench.tell(MemberEvent::Looked(vec![]));
    fail(&mut bench);
    bench.tell(MemberEvent::Looked(vec![lost()]));
    stopped(&mut bench);
    bench.member = Member::new(watchful(), load(&bench.store));
    bench.tell(MemberEvent::Resume {
        workers: vec![],
        stopping: None,
        next_port: 5_000,
    });
    assert_eq!(fitness(&bench).faults, ["GPU 3 is lost"]);
    assert_eq!(fitness(&bench).look, 2);
}

#[test]
fn what_earlier_faults_weigh_stands_in_the_record() {
    let mut bench = Bench::new();
    bench.tell(MemberEvent::PastFaults(1_700));
    assert_eq!(bench.record().past_faults, 1_700);
    assert_eq!(bench.record().fitness, None);
}
