// SPDX-License-Identifier: Apache-2.0
//! Members that are lost, leave and come: who takes part in the next generation, and from when on.

mod losses;

use super::*;
use crate::{Condition, Grow, LastStep, OwnSteps, PlanMember, WitnessMode, WitnessReport};

const SECOND: Duration = Duration::from_secs(1);

impl Bench {
    /// A job of which these nodes are there, with a spec of one's own.
    pub(super) fn with(
        min: u32,
        max: u32,
        nodes: &[&str],
        change: impl FnOnce(&mut JobSpec),
    ) -> Self {
        let mut bench = Self::new(min, max, 3);
        bench.now = Instant::from_nanos(1_000_000_000_000);
        bench.leader.settings.shared = true;
        let mut spec = JobSpec::new(min, max, 3, "digest".to_owned());
        change(&mut spec);
        bench.write(&put(keys().spec(), encode(&spec)));
        for node in nodes {
            bench.member(&idle(node));
        }
        bench
    }

    pub(super) fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.tell(LeaderEvent::Tick);
    }

    pub(super) fn lose(&mut self, node: &str) {
        self.write(&Transaction {
            when: vec![],
            then: vec![Operation::Delete {
                key: keys().member(&node.into()),
            }],
        });
    }

    fn step(&mut self, step: u64, own: bool) {
        let generation = self.plan().generation;
        self.leader.note_step(generation, step, self.now, own);
    }

    pub(super) fn nodes(&self) -> Vec<String> {
        let members = self.plan().members;
        members.into_iter().map(|place| place.node.0).collect()
    }

    /// The plan gets a witness window, as if the members had asked for it.
    fn vouch(&mut self, window: Duration) {
        let mut plan = self.plan();
        plan.witness_ms = u64::try_from(window.as_millis()).unwrap();
        self.write(&put(keys().plan(), encode(&plan)));
    }

    fn is_drained(&self) -> bool {
        !self.plan().is_run()
    }
}

fn leave(record: &mut MemberRecord) {
    record.request = Some(Request {
        generation: record.generation,
        kind: RequestKind::Leave {
            signal: 15,
            grace_ms: None,
        },
        save_ms: 0,
        reason: "signal 15 was received".to_owned(),
    });
}

fn witness(window_ms: u64, step: u64) -> impl FnOnce(&mut MemberRecord) {
    move |record| {
        record.witness = Some(WitnessReport {
            window_ms,
            step_ms: 100,
            step,
        });
    }
}

#[test]
fn without_a_witness_a_lease_that_ended_is_a_lost_node_and_a_spare_takes_its_ranks() {
    let mut bench = Bench::with(2, 2, &["a", "b", "c"], |_| {});
    assert_eq!(bench.nodes(), ["a", "b"]);
    bench.report("a", MemberPhase::Running, |_| {});
    bench.report("b", MemberPhase::Running, |_| {});
    bench.lose("a");
    assert!(bench.is_drained());
    bench.report("b", MemberPhase::Stopped, |_| {});
    assert_eq!(bench.plan().generation, Generation(2));
    assert_eq!(bench.nodes(), ["c", "b"]);
    assert_eq!(bench.plan().master.address, "c.test");
    assert!(
        bench.plan().why.contains("nothing is heard of a"),
        "{}",
        bench.plan().why
    );
}

#[test]
fn while_the_training_goes_on_a_missing_record_is_no_loss() {
    let mut bench = Bench::with(2, 2, &["a", "b"], |_| {});
    bench.report("a", MemberPhase::Running, |_| {});
    bench.report("b", MemberPhase::Running, |_| {});
    bench.vouch(2 * SECOND);
    bench.step(1, true);
    bench.lose("b");
    for step in 2..20 {
        bench.wait(SECOND);
        bench.step(step, true);
        assert!(!bench.is_drained(), "at step {step}");
    }
    assert!(
        bench.leader.reason().contains("waiting for b"),
        "{}",
        bench.leader.reason()
    );
    bench.report("b", MemberPhase::Running, |_| {});
    bench.wait(10 * SECOND);
    assert!(!bench.is_drained());
}

#[test]
fn a_lost_node_is_replaced_only_when_no_step_can_vouch_for_its_workers_any_more() {
    let mut bench = Bench::with(2, 2, &["a", "b", "c"], |_| {});
    bench.report("a", MemberPhase::Running, |_| {});
    bench.report("b", MemberPhase::Running, |_| {});
    bench.vouch(4 * SECOND);
    bench.step(1, true);
    bench.wait(SECOND);
    bench.step(2, true);
    let last = bench.now;
    bench.lose("b");
    bench.wait(3 * SECOND);
    assert!(!bench.is_drained());
    bench.pass();
    assert_eq!(bench.now, last + 4 * SECOND);
    assert!(bench.is_drained());
    bench.report("a", MemberPhase::Stopped, |_| {});
    assert_eq!(
        bench.plan().generation,
        Generation(1),
        "the next one would be too early"
    );
    assert!(
        bench
            .leader
            .reason()
            .contains("the workers of b can run no more")
    );
    bench.pass();
    // The window, one step more (twice the second that one took before), half a second for the kill, and for clocks that run apart.
    let margin = Duration::from_millis(500 + 60);
    assert_eq!(bench.now, last + 6 * SECOND + margin);
    assert_eq!(bench.nodes(), ["a", "c"]);
}

#[test]
fn the_death_of_a_worker_ends_the_wait_sooner() {
    let mut bench = Bench::with(2, 2, &["a", "b", "c"], |_| {});
    bench.report("a", MemberPhase::Running, |_| {});
    bench.report("b", MemberPhase::Running, |_| {});
    bench.vouch(4 * SECOND);
    bench.step(1, true);
    bench.lose("b");
    bench.wait(SECOND);
    bench.find(failure("x"));
    assert!(bench.is_drained());
    bench.report("a", MemberPhase::Stopped, |_| {});
    bench.pass();
    assert_eq!(bench.nodes(), ["a", "c"]);
}

#[test]
fn a_leader_that_sees_nothing_of_the_training_starts_no_twin() {
    let mut bench = Bench::with(1, 1, &["a", "b"], |spec| spec.wait_for_nodes_ms = 60_000);
    bench.report("a", MemberPhase::Running, |_| {});
    bench.vouch(2 * SECOND);
    bench.lose("a");
    bench.wait(30 * SECOND);
    assert_eq!(bench.plan().generation, Generation(1));
    assert!(
        bench
            .leader
            .reason()
            .contains("nobody that is left has seen")
    );
    bench.wait(60 * SECOND);
    let result = bench.result();
    assert_eq!(result.rule, EndRule::NotEnoughNodes);
    assert!(
        result.message.contains("end what still runs there"),
        "{}",
        result.message
    );
}

#[test]
fn a_stop_need_not_wait_for_what_nobody_can_know() {
    let mut bench = Bench::with(1, 1, &["a", "b"], |spec| spec.wait_for_nodes_ms = 60_000);
    bench.report("a", MemberPhase::Running, |_| {});
    bench.vouch(2 * SECOND);
    bench.lose("a");
    bench.wait(30 * SECOND);
    let mut stops = idle("b");
    stops.request = Some(request(
        RequestKind::Stop {
            signal: TERMINATE,
            grace_ms: None,
            requeue: false,
        },
        0,
    ));
    bench.member(&stops);
    assert_eq!(bench.result().rule, EndRule::Requested);
}

#[test]
fn a_plan_is_not_published_past_a_member_that_came_back_meanwhile() {
    let mut bench = Bench::with(2, 2, &["a", "b", "c"], |_| {});
    bench.report("a", MemberPhase::Running, |_| {});
    bench.lose("b");
    let mut stopped = idle("a");
    stopped.generation = Generation(1);
    stopped.phase = MemberPhase::Stopped;
    let batch = bench
        .store
        .apply(&put(keys().member(&"a".into()), encode(&stopped)))
        .1;
    let effects = bench
        .leader
        .handle(bench.now, LeaderEvent::Changed(batch.into_iter().collect()));
    let [LeaderEffect::Write(transaction)] = effects.as_slice() else {
        panic!("{effects:?}");
    };
    assert!(
        transaction
            .when
            .contains(&Condition::absent(keys().member(&"b".into())))
    );
    // b is back before the plan is.
    bench
        .store
        .apply(&put(keys().member(&"b".into()), encode(&idle("b"))));
    assert!(!bench.store.apply(transaction).0.succeeded);
}

#[test]
fn a_node_that_comes_in_time_prevents_the_shrinking() {
    let mut bench = Bench::with(1, 3, &["a", "b", "c"], |_| {});
    for node in ["a", "b", "c"] {
        bench.report(node, MemberPhase::Running, |_| {});
    }
    bench.lose("c");
    bench.report("a", MemberPhase::Stopped, |_| {});
    bench.report("b", MemberPhase::Stopped, |_| {});
    assert!(
        bench.leader.reason().contains("before going on with 2"),
        "{}",
        bench.leader.reason()
    );
    bench.wait(20 * SECOND);
    bench.member(&idle("d"));
    assert_eq!(bench.nodes(), ["a", "b", "d"]);
}

#[test]
fn a_job_shrinks_to_a_size_that_is_allowed_and_ends_below_the_smallest() {
    let mut bench = Bench::with(2, 4, &["a", "b", "c", "d"], |spec| {
        spec.node_multiple = 2;
        spec.shrink_after_ms = 5_000;
    });
    for node in ["a", "b", "c", "d"] {
        bench.report(node, MemberPhase::Running, |_| {});
    }
    bench.lose("b");
    for node in ["a", "c", "d"] {
        bench.report(node, MemberPhase::Stopped, |_| {});
    }
    bench.wait(5 * SECOND);
    assert_eq!(bench.nodes(), ["a", "c"]);
    bench.lose("d");
    bench.lose("c");
    bench.report("a", MemberPhase::Stopped, |_| {});
    bench.wait(Duration::from_mins(15));
    let result = bench.result();
    assert_eq!(
        (result.rule, result.exit_code()),
        (EndRule::NotEnoughNodes, 75)
    );
}

#[test]
fn a_node_that_leaves_hands_its_ranks_over_and_costs_nothing() {
    let mut bench = Bench::with(2, 2, &["a", "b", "c"], |_| {});
    bench.report("a", MemberPhase::Running, |_| {});
    bench.report("b", MemberPhase::Running, |_| {});
    bench.report("b", MemberPhase::Draining, leave);
    assert!(bench.is_drained());
    bench.report("b", MemberPhase::Stopped, leave);
    // It does not wait to be missed.
    bench.lose("b");
    bench.report("a", MemberPhase::Stopped, |_| {});
    assert_eq!(bench.nodes(), ["a", "c"]);
    assert_eq!(bench.ledger().restarts_charged, 0);
    assert!(bench.ledger().losses.is_empty());
    assert!(
        bench.plan().why.contains("signal 15 was received"),
        "{}",
        bench.plan().why
    );
}

#[test]
fn a_new_leader_knows_who_has_left_in_good_order() {
    let mut bench = Bench::with(2, 2, &["a", "b", "c", "d"], |_| {});
    bench.report("a", MemberPhase::Running, |_| {});
    bench.report("b", MemberPhase::Running, |_| {});
    bench.vouch(2 * SECOND);
    let mut left = idle("b");
    leave(&mut left);
    let record = FindingsRecord {
        version: RECORD_VERSION,
        request: left.request,
        stopped: true,
        ..FindingsRecord::default()
    };
    let key = keys().findings(Generation(1), &"b".into());
    bench.store.apply(&put(key, encode(&record)));
    // b has gone, and a is lost, before the leader that comes now has seen anything of either.
    for node in ["a", "b"] {
        bench.store.apply(&Transaction {
            when: vec![],
            then: vec![Operation::Delete {
                key: keys().member(&node.into()),
            }],
        });
    }
    let epoch = bench.leader.epoch;
    bench.leader = Leader::new(leader_settings(2), epoch, load(&bench.store));
    bench.tell(LeaderEvent::Tick);
    bench.wait(30 * SECOND);
    assert_eq!(bench.nodes(), ["c", "d"]);
}

#[test]
fn the_job_is_stopped_when_everybody_leaves() {
    let mut bench = Bench::with(2, 2, &["a", "b"], |_| {});
    for node in ["a", "b"] {
        bench.report(node, MemberPhase::Draining, leave);
        bench.report(node, MemberPhase::Stopped, leave);
    }
    let result = bench.result();
    assert_eq!(
        (result.outcome, result.exit_code()),
        (JobOutcome::Stopped, 143)
    );
}

#[test]
fn a_node_that_is_lost_again_and_again_waits_before_it_gets_ranks_unless_it_is_needed() {
    let mut bench = Bench::with(1, 2, &["a", "b"], |spec| {
        spec.shrink_after_ms = 0;
        spec.grow = Grow::Immediately;
    });
    for losses in 1..=3 {
        assert_eq!(bench.nodes(), ["a", "b"], "before loss {losses}");
        bench.lose("b");
        bench.report("a", MemberPhase::Stopped, |_| {});
        assert_eq!(bench.nodes(), ["a"]);
        bench.report("a", MemberPhase::Running, |record| {
            record.step = Some(losses);
        });
        let back = bench.now;
        bench.member(&idle("b"));
        while !bench.is_drained() {
            bench.pass();
        }
        let quarantine = [0, 60, 120][usize::try_from(losses - 1).unwrap()];
        assert_eq!(bench.now - back, Duration::from_secs(quarantine));
        bench.report("a", MemberPhase::Stopped, |record| {
            record.step = Some(losses);
        });
    }
    // Alone, it is better than nobody.
    bench.lose("a");
    bench.lose("b");
    bench.member(&idle("b"));
    assert_eq!(bench.nodes(), ["b"]);
}

#[test]
fn a_job_grows_when_it_is_told_to() {
    let grown = |grow: Grow| {
        let mut bench = Bench::with(1, 2, &["a"], |spec| spec.grow = grow);
        bench.wait(30 * SECOND);
        bench.report("a", MemberPhase::Running, |record| {
            record.checkpoint = Some(5);
        });
        bench.member(&idle("b"));
        let at_once = bench.is_drained();
        bench.report("a", MemberPhase::Running, |record| {
            record.checkpoint = Some(6);
        });
        (at_once, bench.is_drained(), bench)
    };
    let (at_once, later, mut bench) = grown(Grow::AtCheckpoint);
    assert_eq!((at_once, later), (false, true));
    bench.report("a", MemberPhase::Stopped, |_| {});
    assert_eq!(bench.nodes(), ["a", "b"]);
    assert_eq!(bench.ledger().restarts_charged, 0);
    let (at_once, later, _) = grown(Grow::Immediately);
    assert_eq!((at_once, later), (true, true));
    let (at_once, later, mut bench) = grown(Grow::Never);
    assert_eq!((at_once, later), (false, false));
    bench.fail(failure("x"), None);
    assert_eq!(bench.nodes(), ["a"]);
}

#[test]
fn a_job_that_would_grow_after_a_checkpoint_shows_it_and_says_once_that_none_comes() {
    let mut bench = Bench::with(1, 2, &["a"], |spec| spec.grow = Grow::AtCheckpoint);
    bench.wait(30 * SECOND);
    bench.report("a", MemberPhase::Running, |_| {});
    assert!(!bench.leader.reason().contains("checkpoint"));
    bench.member(&idle("b"));
    let reason = bench.leader.reason();
    assert!(
        reason.contains("2 nodes after the next checkpoint"),
        "{reason}"
    );
    let came = bench.now;
    bench.said.clear();
    bench.pass();
    assert_eq!(bench.now - came, 120 * SECOND);
    assert!(bench.said[0].contains("none was seen"), "{:?}", bench.said);
    for _ in 0..5 {
        bench.wait(60 * SECOND);
    }
    assert_eq!(bench.said.len(), 1, "{:?}", bench.said);
    assert!(!bench.is_drained(), "no step is given up for it");
    bench.lose("b");
    assert!(!bench.leader.reason().contains("checkpoint"));
}

#[test]
fn the_window_of_the_witness_is_agreed_and_never_shrinks() {
    let mut bench = Bench::with(2, 2, &["a", "b"], |_| {});
    bench.report("a", MemberPhase::Running, witness(4_000, 8));
    assert_eq!(bench.plan().witness_ms, 0, "b has not said anything");
    bench.report("b", MemberPhase::Running, witness(2_000, 9));
    assert_eq!(bench.plan().witness_ms, 4_000);
    bench.report("a", MemberPhase::Running, witness(2_000, 20));
    assert_eq!(bench.plan().witness_ms, 4_000);
    bench.report("b", MemberPhase::Running, witness(8_000, 21));
    assert_eq!(bench.plan().witness_ms, 8_000);
    bench.fail(failure("x"), None);
    bench.report("b", MemberPhase::Stopped, |_| {});
    assert_eq!(bench.plan().generation, Generation(2));
    assert_eq!(bench.plan().witness_ms, 8_000, "the program is the same");
}

#[test]
fn nodes_that_are_not_in_step_are_no_witnesses_unless_somebody_says_so() {
    let window = |mode: WitnessMode| {
        let mut bench = Bench::with(2, 2, &["a", "b"], |spec| spec.witness = mode);
        bench.report("a", MemberPhase::Running, witness(2_000, 100));
        bench.report("b", MemberPhase::Running, witness(2_000, 900));
        bench.plan().witness_ms
    };
    assert_eq!(window(WitnessMode::Auto), 0);
    assert_eq!(window(WitnessMode::Off), 0);
    assert_eq!(window(WitnessMode::On), 2_000);
}

#[test]
fn a_silent_agent_matters_only_when_the_training_has_stopped() {
    let mut bench = Bench::with(2, 2, &["a", "b", "c"], |_| {});
    bench.report("a", MemberPhase::Running, |_| {});
    bench.report("b", MemberPhase::Running, |_| {});
    bench.leader.note_silence(&"b".into(), true);
    bench.wait(10 * SECOND);
    assert!(!bench.is_drained(), "nothing is known of the training");
    bench.vouch(2 * SECOND);
    bench.step(1, true);
    bench.wait(SECOND);
    assert!(!bench.is_drained());
    bench.pass();
    assert!(bench.is_drained());
    bench.report("a", MemberPhase::Stopped, |_| {});
    assert_eq!(
        bench.plan().generation,
        Generation(1),
        "its lease has not ended"
    );
    bench.lose("b");
    bench.wait(5 * SECOND);
    assert_eq!(bench.nodes(), ["a", "c"]);
}

#[test]
fn a_generation_that_the_leader_ended_by_itself_is_followed_by_one_that_says_why() {
    let mut bench = Bench::with(2, 2, &["a", "b"], |_| {});
    bench.report("a", MemberPhase::Running, |_| {});
    bench.report("b", MemberPhase::Running, |_| {});
    bench.leader.note_silence(&"b".into(), true);
    bench.vouch(2 * SECOND);
    bench.step(1, true);
    bench.wait(3 * SECOND);
    assert!(bench.is_drained());
    bench.report("a", MemberPhase::Stopped, |_| {});
    bench.report("b", MemberPhase::Stopped, |_| {});
    let why = bench.plan().why;
    assert!(
        why.starts_with("the training has stopped, and nothing is heard of b (before training"),
        "{why}"
    );
}

#[test]
fn a_node_that_is_unfit_gets_no_ranks_any_more() {
    let mut bench = Bench::with(1, 1, &["a", "b"], |_| {});
    let mut unfit = failure("gpu");
    unfit.kind = crate::kinds::NODE_UNFIT.to_owned();
    bench.fail(unfit, Some(3));
    assert_eq!(bench.nodes(), ["b"]);
    assert!(bench.ledger().excluded.contains_key(&NodeName::from("a")));
}

#[test]
fn a_node_whose_worker_cannot_be_killed_gets_no_ranks_even_if_it_was_away_at_the_verdict() {
    let mut bench = Bench::with(1, 2, &["a", "b"], |_| {});
    bench.report("b", MemberPhase::Running, |_| {});
    bench.lose("a");
    bench.report("b", MemberPhase::Stopped, |_| {});
    let mut back = idle("a");
    back.generation = Generation(1);
    back.phase = MemberPhase::Stopped;
    back.unkillable = vec![LocalRank(0)];
    bench.member(&back);
    bench.pass();
    assert_eq!(bench.plan().generation, Generation(2));
    assert_eq!(bench.nodes(), ["b"]);
}

#[test]
fn a_node_that_is_lost_when_its_workers_have_finished_holds_up_nobody() {
    let mut bench = Bench::with(1, 2, &["a", "b"], |_| {});
    bench.report("a", MemberPhase::Completed, |record| record.clean = true);
    bench.report("b", MemberPhase::Running, |_| {});
    bench.lose("a");
    bench.find(Finding {
        node: "b".to_owned(),
        ..failure("x")
    });
    assert!(bench.is_drained());
    bench.report("b", MemberPhase::Stopped, |_| {});
    bench.pass();
    assert_eq!(bench.plan().generation, Generation(2));
    assert_eq!(bench.nodes(), ["b"]);
}

#[test]
fn ranks_stay_where_they_are_over_restarts() {
    let mut bench = Bench::with(3, 3, &["c", "a", "b"], |_| {});
    let before: Vec<PlanMember> = bench.plan().members;
    bench.find(failure("x"));
    for node in ["a", "b", "c"] {
        bench.report(node, MemberPhase::Stopped, |_| {});
    }
    assert_eq!(bench.plan().generation, Generation(2));
    assert_eq!(bench.plan().members, before);
}

#[test]
fn a_verdict_on_another_nodes_rank_ends_the_generation_and_outlives_the_leader() {
    let mut bench = Bench::with(2, 2, &["a", "b"], |_| {});
    let hung = Finding {
        kind: crate::kinds::WORKER_HUNG.to_owned(),
        class: FaultClass::Hang.into(),
        generation: 1,
        node: "b".to_owned(),
        rank: Some(3),
        local_rank: Some(1),
        summary: "holds up the others".to_owned(),
        ..Finding::default()
    };
    bench.leader.note_verdict(Finding {
        generation: 7,
        ..hung.clone()
    });
    bench.tell(LeaderEvent::Tick);
    assert!(!bench.is_drained(), "of another generation");
    bench.leader.note_verdict(hung);
    bench.tell(LeaderEvent::Tick);
    assert!(bench.is_drained());
    // Another leader has only what the store says.
    bench.leader.verdict = None;
    for node in ["a", "b"] {
        bench.report(node, MemberPhase::Stopped, |record| {
            record.generation = Generation(1);
        });
    }
    assert_eq!(bench.plan().generation, Generation(2));
    let why = bench.plan().why;
    assert!(why.contains("rank 3 on b holds up the others"), "{why}");
    assert_eq!(bench.ledger().restarts_charged, 1);
}
