// SPDX-License-Identifier: Apache-2.0

use super::*;

/// Two nodes with two ranks each.
fn plan() -> Plan {
    let member = |node: u32| {
        serde_json::json!({
            "node": format!("n{node}"), "incarnation": 1, "slots": 2, "base_rank": node * 2,
        })
    };
    serde_json::from_value(serde_json::json!({
        "version": 1, "generation": 1, "phase": "run", "members": [member(0), member(1)],
        "world_size": 4, "master": { "address": "n0", "port": 1 }, "restart_count": 0, "why": "",
    }))
    .unwrap()
}

fn exited(rank: u32, wall_ms: i64, lines: &[&str]) -> Finding {
    Finding {
        kind: kinds::WORKER_EXITED.to_owned(),
        node: format!("n{}", rank / 2),
        rank: Some(rank),
        local_rank: Some(rank % 2),
        exit_code: Some(1),
        pid: 100 + rank,
        wall_ms: 1_760_000_000_000 + wall_ms,
        evidence: vec![lines.join("\n")],
        ..Finding::default()
    }
}

fn said(rank: u32, lines: &[&str]) -> Option<Finding> {
    let heard = Heard {
        generation: 1,
        rank,
        local_rank: rank % 2,
        pid: 100 + rank,
        wall_ms: 1_760_000_001_000,
        tail: LastLines {
            stdout: vec!["step 7 loss 0.5".to_owned()],
            stderr: lines.iter().map(|&line| line.to_owned()).collect(),
        },
    };
    let finding = WordsJury::new(None).said(&heard)?;
    Some(Finding {
        node: format!("n{}", rank / 2),
        ..finding
    })
}

fn judge(findings: &[Finding]) -> Option<Opinion> {
    WordsJury::new(None).judge(&plan(), findings, &ClocksAhead::new())
}

const STORE_LOST: &str = "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.";
const TIMED_OUT: &str = "[rank0]:[E1009 10:00:00.000000000 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective \
                         operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 milliseconds before timing out.";

#[test]
fn the_first_to_time_out_is_not_to_blame_but_who_had_said_what_was_wrong() {
    let ecc = "RuntimeError: CUDA error: uncorrectable ECC error encountered";
    let words = said(3, &[ecc]).unwrap();
    assert!(words.summary.contains("ECC"), "{}", words.summary);
    let opinion = judge(&[exited(0, 0, &[TIMED_OUT]), words]).unwrap();
    assert_eq!(
        (opinion.rank, opinion.class),
        (Some(Rank(3)), FaultClass::GpuHardware)
    );
    assert!(!opinion.is_thin());
}

#[test]
fn a_full_disk_on_one_rank_is_the_storage_s_fault_whoever_died_first() {
    let full = "OSError: [Errno 28] No space left on device";
    let opinion = judge(&[
        exited(2, 0, &[STORE_LOST]),
        exited(1, 400, &["Traceback (most recent call last):", full]),
    ])
    .unwrap();
    assert_eq!(
        (opinion.rank, opinion.class),
        (Some(Rank(1)), FaultClass::Storage)
    );
    assert!(opinion.advice.contains("room"), "{}", opinion.advice);
}

#[test]
fn of_two_that_say_the_same_the_first_is_to_blame_by_clocks_that_are_right() {
    let lines = [
        "Traceback (most recent call last):",
        "ValueError: bad sample",
    ];
    let findings = [
        exited(0, 5_000, &lines),
        exited(1, 5_500, &[STORE_LOST]),
        exited(2, 4_500, &[STORE_LOST]),
        exited(3, 4_000, &lines),
    ];
    let jury = WordsJury::new(None);
    let first = |clocks: &ClocksAhead| jury.judge(&plan(), &findings, clocks).unwrap().rank;
    assert_eq!(first(&ClocksAhead::new()), Some(Rank(3)));
    let ahead = ClocksAhead::from([(NodeName("n0".to_owned()), 3_000)]);
    assert_eq!(first(&ahead), Some(Rank(0)));
}

#[test]
fn nobody_is_blamed_for_consequences_and_harmless_words_are_not_gathered() {
    let opinion = judge(&[exited(0, 0, &[STORE_LOST]), exited(1, 10, &[STORE_LOST])]);
    assert!(opinion.as_ref().is_none_or(Opinion::is_thin), "{opinion:?}");
    assert_eq!(judge(&[]), None);
    assert_eq!(
        said(
            1,
            &["UserWarning: lr_scheduler.step() before optimizer.step()"]
        ),
        None
    );
    assert_eq!(said(1, &[STORE_LOST]), None);
}

#[test]
fn the_user_s_rules_go_first() {
    let own = RulesFile {
        file: "own.toml".into(),
        text: "[[rule]]\nid = 'site.x'\nclass = 'storage'\nrole = 'cause'\nstrength = 95\nmatch = ['frobnicator jammed']\n\
               meaning = 'the frobnicator jammed'\n"
            .to_owned(),
    };
    let jury = WordsJury::new(Some(own));
    let findings = [
        exited(1, 0, &["frobnicator jammed"]),
        exited(0, 1, &[STORE_LOST]),
    ];
    let opinion = jury.judge(&plan(), &findings, &ClocksAhead::new()).unwrap();
    assert_eq!(
        (opinion.rank, opinion.class, opinion.summary.as_str()),
        (Some(Rank(1)), FaultClass::Storage, "the frobnicator jammed")
    );
}
