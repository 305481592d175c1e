// SPDX-License-Identifier: Apache-2.0
//! Histories with a defect planted in them, each of which the judge must find; and one without.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{History, Verdict, judge_history};
use crate::history::{End, Ending, FaultEvent, FaultNote, Run, Sample, StoreChange};
use crate::scenario::read_text;
use crate::world::life::Sign;

const LOSS: &str = "0x1.8p-1";

fn sign(event: &str, generation: u64, rank: u32, at_ms: u64, step: Option<u64>) -> Sign {
    Sign {
        event: event.to_owned(),
        rank,
        generation,
        node: format!("n{}", rank + 1),
        pid: 100 + i32::try_from(generation * 10).unwrap() + i32::try_from(rank).unwrap(),
        monotonic_ns: at_ms * 1_000_000,
        step,
        world_size: (event == "step").then_some(2),
        loss: (event == "end").then(|| LOSS.to_owned()),
        status: None,
        order: None,
    }
}

fn put(revision: i64, at_ms: u64, key: &str, value: Value) -> StoreChange {
    StoreChange {
        monotonic_ns: at_ms * 1_000_000,
        revision,
        key: format!("/steadfast/chaos/{key}"),
        value: Some(value),
    }
}

fn plan(generation: u64) -> Value {
    json!({ "generation": generation, "members": ["n1", "n2"], "world_size": 2, "restart_count": generation - 1,
            "master": { "address": "10.98.0.1", "port": 4000 + generation } })
}

fn note(what: FaultEvent, at_ms: u64) -> FaultNote {
    FaultNote {
        fault: "killed".to_owned(),
        inject: "signal".to_owned(),
        time: 1,
        monotonic_ns: at_ms * 1_000_000,
        what,
        node: Some("n2".to_owned()),
        rank: Some(1),
        pid: Some(111),
        words: "111: dead".to_owned(),
    }
}

fn ending(node: &str) -> Ending {
    Ending {
        node: node.to_owned(),
        started_ns: 0,
        ended_ns: 2_000_000_000,
        code: Some(0),
        signal: None,
        off: false,
    }
}

/// Rank 1 of generation 1 is killed at 500 ms, after the checkpoint of step 5; generation 2 finishes.
fn sound() -> History {
    let text = "description = 'x'\n[nodes]\ncount = 2\nworkers = 1\n[job]\nsteps = 8\n[[faults]]\nid = 'killed'\n\
                inject = { signal = { signal = 'KILL' } }\n[expect]\nrestarts = 1\nrecovery_within_seconds = 1.0\n\
                lost_steps_at_most = 1\ncause = { class = 'killed', rank_of = 'killed', node_of = 'killed' }\n";
    let mut signs = Vec::new();
    for rank in [0, 1] {
        signs.push(sign("born", 1, rank, 100, None));
        for step in 1..=6 {
            signs.push(sign("step", 1, rank, 100 + step * 50, Some(step)));
        }
        signs.push(sign("born", 2, rank, 700, None));
        signs.push(sign("resume", 2, rank, 710, Some(5)));
        for step in 6..=8 {
            signs.push(sign("step", 2, rank, 500 + step * 50, Some(step)));
        }
        signs.push(sign("end", 2, rank, 950, None));
    }
    signs.push(sign("save", 1, 0, 360, Some(5)));
    History {
        run: Run {
            scenario: "planted".to_owned(),
            mark: "planted".to_owned(),
            mode: "namespaces".to_owned(),
            began_ns: 0,
            command: Vec::new(),
        },
        scenario: read_text("planted", "planted", text).unwrap().scenario,
        signs,
        samples: Vec::new(),
        store: vec![
            put(2, 90, "job/plan", plan(1)),
            put(
                5,
                600,
                "job/ledger",
                json!({ "last_fault": { "class": 13, "rank": 1, "node": "n2" } }),
            ),
            put(6, 650, "job/plan", plan(2)),
            put(9, 960, "job/result", json!({ "outcome": "succeeded" })),
        ],
        faults: vec![
            note(FaultEvent::Injected, 500),
            note(FaultEvent::Landed, 501),
        ],
        statuses: Vec::new(),
        end: End {
            monotonic_ns: 2_000_000_000,
            endings: vec![ending("n1"), ending("n2")],
            timed_out: false,
            leftovers: Vec::new(),
            right_loss: Some(LOSS.to_owned()),
            steps: Some(8),
        },
        journals: BTreeMap::new(),
        said: BTreeMap::from([("n1".to_owned(), "generation 2 starts".to_owned())]),
    }
}

/// The judge must say this verdict, and give this check as the reason.
#[track_caller]
fn finds(history: &History, name: &str, verdict: Verdict) {
    let judgement = judge_history(history);
    let reasons: Vec<_> = judgement
        .checks
        .iter()
        .filter(|check| check.verdict != Verdict::Pass)
        .collect();
    assert_eq!(judgement.verdict, verdict, "{reasons:#?}");
    assert!(
        reasons.iter().any(|check| check.name == name),
        "{name}: {reasons:#?}"
    );
}

#[test]
fn a_sound_history_passes() {
    let judgement = judge_history(&sound());
    let wrong: Vec<_> = judgement
        .checks
        .iter()
        .filter(|check| check.verdict != Verdict::Pass)
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let outage = &judgement.figures.outages[0];
    assert_eq!(
        (outage.lost_steps, outage.fault.as_deref()),
        (1, Some("killed"))
    );
    assert!((outage.to_step - 0.3).abs() < 1e-9 && (outage.to_start - 0.2).abs() < 1e-9);
}

#[test]
fn twins_are_found() {
    let mut history = sound();
    let mut twin = sign("beat", 2, 1, 720, None);
    twin.pid = 999;
    history.signs.push(twin);
    finds(&history, "J-1", Verdict::Fail);
}

#[test]
fn a_worker_that_outlives_its_generation_is_found_by_its_own_words() {
    let mut history = sound();
    history.signs.push(sign("beat", 1, 0, 701, None));
    finds(&history, "J-2", Verdict::Fail);
}

#[test]
fn a_paused_node_may_wake_with_workers_for_the_moment_that_is_allowed() {
    let mut history = sound();
    for at_ms in [900, 910, 920] {
        history.signs.push(sign("beat", 1, 0, at_ms, None));
    }
    finds(&history, "J-2", Verdict::Fail);
    history.scenario.expect.overlap_at_most_ms = 20;
    assert_eq!(judge_history(&history).verdict, Verdict::Pass);
    history.scenario.expect.overlap_at_most_ms = 19;
    finds(&history, "J-2", Verdict::Fail);
}

#[test]
fn a_process_that_outlives_its_generation_is_found_from_outside() {
    let mut history = sound();
    history.samples.push(Sample {
        pid: 4000,
        name: "sleep".to_owned(),
        rank: 0,
        generation: 1,
        node: "n1".to_owned(),
        first_ns: 200_000_000,
        last_ns: 900_000_000,
    });
    finds(&history, "J-2", Verdict::Fail);
    // Not even where a whole node was paused: it is no worker that woke up.
    history.scenario.expect.overlap_at_most_ms = 250;
    finds(&history, "J-2", Verdict::Fail);
}

#[test]
fn generations_that_go_back_or_jump_are_found() {
    let mut history = sound();
    history.store.push(put(7, 670, "job/plan", plan(1)));
    finds(&history, "J-3", Verdict::Fail);
    let mut history = sound();
    history.store.push(put(7, 670, "job/plan", plan(4)));
    finds(&history, "J-3", Verdict::Fail);
}

#[test]
fn a_second_plan_for_a_generation_is_found() {
    let mut history = sound();
    let mut other = plan(2);
    other["members"] = json!(["n2", "n1"]);
    history.store.push(put(7, 670, "job/plan", other));
    finds(&history, "J-3", Verdict::Fail);
}

#[test]
fn a_store_that_was_not_watched_makes_the_verdict_unknown() {
    let mut history = sound();
    history.store.push(StoreChange {
        monotonic_ns: 0,
        revision: 0,
        key: "witness".to_owned(),
        value: Some("ended: no".into()),
    });
    finds(&history, "J-3", Verdict::Unknown);
}

#[test]
fn workers_that_disagree_on_their_number_are_found() {
    let mut history = sound();
    let mut other = sign("step", 2, 1, 910, Some(8));
    other.world_size = Some(3);
    history.signs.push(other);
    finds(&history, "J-4", Verdict::Fail);
}

#[test]
fn a_resume_from_what_nobody_saved_is_found() {
    let mut history = sound();
    history.signs.retain(|sign| sign.event != "save");
    finds(&history, "J-5", Verdict::Fail);
}

#[test]
fn a_checkpoint_that_is_forgotten_is_found() {
    let mut history = sound();
    history.signs.push(sign("save", 1, 0, 410, Some(6)));
    finds(&history, "J-6", Verdict::Fail);
}

#[test]
fn a_result_that_changes_and_a_start_after_it_are_found() {
    let mut history = sound();
    history
        .store
        .push(put(10, 970, "job/result", json!({ "outcome": "failed" })));
    finds(&history, "J-7", Verdict::Fail);
    let mut history = sound();
    history.signs.push(sign("born", 3, 0, 980, None));
    finds(&history, "J-7", Verdict::Fail);
}

#[test]
fn leftovers_are_found() {
    let mut history = sound();
    history
        .end
        .leftovers
        .push("n1: process 7 (sleep)".to_owned());
    finds(&history, "J-8", Verdict::Fail);
}

#[test]
fn a_fault_without_evidence_makes_the_run_invalid() {
    let mut history = sound();
    history.faults.pop();
    finds(&history, "J-9", Verdict::Invalid);
    let mut history = sound();
    history.faults = vec![note(FaultEvent::NeverDue, 900)];
    history.scenario.expect.cause = None;
    finds(&history, "J-9", Verdict::Invalid);
}

#[test]
fn what_the_scenario_expects_is_held_against_the_history() {
    let mut history = sound();
    history.end.endings[1].code = Some(75);
    finds(&history, "exit code", Verdict::Fail);
    let mut history = sound();
    history.end.right_loss = Some("0x0p+0".to_owned());
    finds(&history, "finished", Verdict::Fail);
    let mut history = sound();
    history.scenario.expect.restarts = Some(0);
    finds(&history, "restarts", Verdict::Fail);
    let mut history = sound();
    history.scenario.expect.recovery_within_seconds = Some(0.2);
    finds(&history, "recovery", Verdict::Fail);
    let mut history = sound();
    history.scenario.expect.lost_steps_at_most = Some(0);
    finds(&history, "lost steps", Verdict::Fail);
    let mut history = sound();
    history.end.timed_out = true;
    finds(&history, "end", Verdict::Fail);
}

#[test]
fn a_wrong_cause_is_found() {
    for field in ["class", "rank", "node"] {
        let mut history = sound();
        let ledger = history.store[1].value.as_mut().unwrap();
        ledger["last_fault"][field] = json!(0);
        finds(&history, "cause", Verdict::Fail);
    }
}
