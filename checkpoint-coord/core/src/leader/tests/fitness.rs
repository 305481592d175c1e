// SPDX-License-Identifier: Apache-2.0
//! Nodes that are unfit, or were too often: who is not given ranks, and for how long.

use super::*;
use crate::{FaultScore, Fitness, Location};

const SECOND: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_mins(1);

fn looked(look: u64, faults: &[&str]) -> Fitness {
    Fitness {
        look,
        every_ms: 60_000,
        faults: faults.iter().map(|text| (*text).to_owned()).collect(),
    }
}

fn says(node: &str, look: u64, faults: &[&str]) -> MemberRecord {
    MemberRecord {
        fitness: Some(looked(look, faults)),
        ..idle(node)
    }
}

/// A job of two nodes for which `records` are there.
fn begun(records: &[MemberRecord]) -> Bench {
    let mut bench = Bench::with(2, 2, &[], |_| {});
    for record in records {
        bench.member(record);
    }
    bench
}

/// The first two members have stopped after a failure; `first` is said of the node `a` by itself.
fn restart(bench: &mut Bench, first: Fitness) {
    bench.find(failure("x"));
    bench.report("a", MemberPhase::Stopped, |record| {
        record.fitness = Some(first);
    });
    bench.report("b", MemberPhase::Stopped, |record| {
        record.fitness = Some(looked(1, &[]));
    });
}

#[test]
fn the_job_begins_on_nodes_that_are_unfit_if_there_are_no_others() {
    let bench = begun(&[says("a", 1, &["link 1 is down"]), says("b", 0, &[])]);
    assert_eq!(bench.nodes(), ["a", "b"]);
    let mut bench = Bench::with(1, 2, &[], |_| {});
    bench.member(&says("a", 1, &["link 1 is down"]));
    bench.member(&says("b", 0, &[]));
    bench.wait(31 * SECOND);
    assert_eq!(bench.nodes(), ["b"]);
}

#[test]
fn a_member_that_is_found_unfit_while_it_stops_gives_its_ranks_to_a_spare_that_is_fit() {
    let mut bench = begun(&[says("a", 1, &[]), says("b", 1, &[]), says("c", 1, &[])]);
    restart(&mut bench, looked(2, &["GPU 3 is lost"]));
    assert_eq!(bench.nodes(), ["c", "b"]);
    // It is not out for ever: it says so itself when it is well again.
    assert!(bench.ledger().excluded.is_empty());
    bench.member(&says("a", 3, &[]));
    bench.find(failure("y"));
    for node in ["b", "c"] {
        bench.report(node, MemberPhase::Stopped, |record| {
            record.fitness = Some(looked(2, &["GPU 0 is lost"]));
        });
    }
    bench.report("b", MemberPhase::Stopped, |record| {
        record.fitness = Some(looked(2, &[]));
    });
    assert_eq!(bench.nodes(), ["a", "b"]);
}

#[test]
fn a_spare_gets_ranks_only_after_a_fresh_look_that_shows_nothing() {
    for (spare, waits) in [
        (says("c", 0, &[]), true),
        (says("c", 1, &["link 1 is down"]), true),
        (says("c", 1, &[]), false),
        (idle("c"), false),
    ] {
        let mut bench = begun(&[says("a", 1, &[]), says("b", 1, &[]), spare]);
        restart(&mut bench, looked(2, &["GPU 3 is lost"]));
        assert_eq!(bench.plan().generation == Generation(1), waits);
        if waits {
            assert!(
                bench
                    .leader
                    .reason()
                    .contains("a is not used: GPU 3 is lost"),
                "{}",
                bench.leader.reason()
            );
            bench.member(&says("c", 2, &[]));
        }
        assert_eq!(bench.nodes(), ["c", "b"]);
    }
}

#[test]
fn a_look_that_is_too_old_says_nothing_until_there_is_another() {
    let mut bench = begun(&[says("a", 1, &[]), says("b", 1, &[]), says("c", 1, &[])]);
    bench.wait(EVERY * 3 + SECOND);
    restart(&mut bench, looked(2, &["GPU 3 is lost"]));
    assert_eq!(bench.plan().generation, Generation(1));
    bench.member(&says("c", 2, &[]));
    assert_eq!(bench.nodes(), ["c", "b"]);
}

#[test]
fn a_job_that_nobody_else_can_take_over_ends_with_the_node_at_fault() {
    let mut bench = Bench::one(3);
    bench.find(failure("x"));
    bench.report("a", MemberPhase::Stopped, |record| {
        record.fitness = Some(looked(2, &["GPU 3 is lost"]));
    });
    let result = bench.result();
    assert_eq!(result.rule, EndRule::NodeAtFault);
    assert!(
        result.message.contains("GPU 3 is lost"),
        "{}",
        result.message
    );
}

#[test]
fn a_job_that_waits_in_vain_for_a_fit_node_says_why() {
    let mut bench = begun(&[says("a", 1, &[]), says("b", 1, &[])]);
    restart(&mut bench, looked(2, &["GPU 3 is lost"]));
    bench.wait(Duration::from_mins(16));
    let result = bench.result();
    assert_eq!(result.rule, EndRule::NotEnoughNodes);
    assert!(
        result.message.contains("a is not used: GPU 3 is lost"),
        "{}",
        result.message
    );
}

fn at(node: &str, domain: &str) -> MemberRecord {
    MemberRecord {
        location: Location {
            place: None,
            topology: vec![
                ("nvlink".to_owned(), domain.to_owned()),
                ("slot".to_owned(), node.to_owned()),
            ],
        },
        ..idle(node)
    }
}

#[test]
fn a_fault_of_nvlink_switches_takes_out_all_nodes_that_hang_on_them() {
    let mut bench = begun(&[
        at("a", "one"),
        at("c", "one"),
        at("b", "two"),
        at("d", "two"),
    ]);
    assert_eq!(bench.nodes(), ["a", "c"]);
    let mut fault = failure("sxid");
    fault.kind = crate::kinds::SWITCH_FAULT.to_owned();
    fault.class = FaultClass::Link.into();
    bench.find(fault);
    for (node, domain) in [("a", "one"), ("c", "one")] {
        bench.report(node, MemberPhase::Stopped, |record| {
            record.location = at(node, domain).location;
        });
    }
    assert_eq!(bench.nodes(), ["b", "d"]);
    let ledger = bench.ledger();
    let domains: Vec<_> = ledger.excluded_domains.keys().collect();
    assert_eq!(domains, ["nvlink=one"]);
    // One that comes later hangs on the same switches.
    bench.member(&at("e", "one"));
    bench.lose("b");
    bench.report("d", MemberPhase::Stopped, |_| {});
    assert!(
        bench
            .leader
            .reason()
            .contains("e is not used: it shares NVLink switches"),
        "{}",
        bench.leader.reason()
    );
    bench.member(&at("f", "three"));
    assert_eq!(bench.nodes(), ["f", "d"]);
}

#[test]
fn without_a_level_for_nvlink_a_fault_of_switches_takes_out_its_own_node() {
    let mut bench = begun(&[idle("a"), idle("b"), idle("c")]);
    let mut fault = failure("sxid");
    fault.kind = crate::kinds::SWITCH_FAULT.to_owned();
    bench.find(fault);
    for node in ["a", "b"] {
        bench.report(node, MemberPhase::Stopped, |_| {});
    }
    assert_eq!(bench.nodes(), ["c", "b"]);
}

/// A failure of a worker that an error of its GPU explains, and that does not condemn the GPU by itself.
fn contained(day: i64) -> Finding {
    Finding {
        class: FaultClass::GpuMemory.into(),
        device: "GPU-1".to_owned(),
        wall_ms: day * 24 * 3_600_000,
        ..failure("xid:94")
    }
}

/// The generation fails on `a` that day; says who is in the next one.
fn fails(bench: &mut Bench, day: i64) -> Vec<String> {
    bench.find(contained(day));
    for place in bench.plan().members {
        let node = place.node.0;
        bench.report(&node, MemberPhase::Stopped, |record| record.step = Some(1));
    }
    bench.nodes()
}

#[test]
fn a_gpu_that_fails_twice_in_a_week_is_avoided_where_another_node_can_take_over() {
    let mut bench = begun(&[idle("a"), idle("b"), idle("c")]);
    assert_eq!(fails(&mut bench, 100), ["a", "b"]);
    assert_eq!(fails(&mut bench, 106), ["c", "b"]);
    let score = &bench.ledger().faults["GPU-1"];
    assert_eq!(score.node, "a");
    assert!(FaultScore::is_repeated(score.weight));
}

#[test]
fn faults_of_a_gpu_that_are_far_apart_are_forgotten() {
    let mut bench = begun(&[idle("a"), idle("b"), idle("c")]);
    assert_eq!(fails(&mut bench, 100), ["a", "b"]);
    assert_eq!(fails(&mut bench, 130), ["a", "b"]);
}

#[test]
fn a_node_with_a_bad_past_is_used_rather_than_none() {
    let mut bench = begun(&[idle("a"), idle("b")]);
    assert_eq!(fails(&mut bench, 100), ["a", "b"]);
    assert_eq!(fails(&mut bench, 101), ["a", "b"]);
}

#[test]
fn what_earlier_jobs_have_seen_of_a_node_counts_as_well() {
    let bad = |node: &str| MemberRecord {
        past_faults: 1_900,
        ..idle(node)
    };
    let mut bench = begun(&[idle("a"), idle("b"), bad("c"), idle("d")]);
    bench.lose("a");
    bench.report("b", MemberPhase::Stopped, |_| {});
    assert_eq!(bench.nodes(), ["d", "b"]);
    bench.lose("d");
    bench.report("b", MemberPhase::Stopped, |_| {});
    assert_eq!(bench.nodes(), ["c", "b"]);
}

#[test]
fn a_programs_fault_is_charged_to_no_gpu() {
    let mut bench = begun(&[idle("a"), idle("b"), idle("c")]);
    let mut finding = contained(100);
    finding.class = FaultClass::Program.into();
    bench.find(finding);
    for node in ["a", "b"] {
        bench.report(node, MemberPhase::Stopped, |_| {});
    }
    assert!(bench.ledger().faults.is_empty());
}
