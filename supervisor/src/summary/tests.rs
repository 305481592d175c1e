// SPDX-License-Identifier: Apache-2.0
use insta::assert_snapshot;
use steadfast_proto::v1::FaultClass;

use super::*;

fn finding(rank: u32, monotonic_ns: u64) -> Finding {
    Finding {
        kind: "worker.exited".to_owned(),
        class: FaultClass::Program.into(),
        node: "node1".to_owned(),
        rank: Some(rank),
        local_rank: Some(rank),
        monotonic_ns,
        wall_ms: 1_796_042_610_000,
        exit_code: Some(1),
        pid: 100 + rank,
        summary: "exited with code 1: ValueError: bad batch (train.py:3 in main)".to_owned(),
        evidence: vec![
            "Traceback (most recent call last):\n  File \"train.py\", line 3, in main\nValueError: bad batch".to_owned(),
        ],
        error_file: format!("/logs/attempt_1/{rank}/error.json"),
        ..Finding::default()
    }
}

fn failed() -> Failure {
    let consequence = Finding {
        role: FaultRole::Consequence.into(),
        exit_code: None,
        signal: Some(6),
        summary: "was killed by SIGABRT: the connection to another worker was lost".to_owned(),
        evidence: vec!["Connection reset by peer".to_owned()],
        error_file: String::new(),
        ..finding(1, 9)
    };
    Failure {
        program: "train.py".to_owned(),
        reason: "all 3 restarts are used up".to_owned(),
        cause: Some(Finding {
            step: Some(120),
            ..finding(0, 5)
        }),
        others: vec![consequence],
        generation: 2,
        restarts: 1,
        step: Some(120),
        log_dir: "/logs".into(),
        has_logs: true,
        dropped: vec![
            "3.0 KiB missing from /logs/attempt_1/0/stdout.log (No space left on device)"
                .to_owned(),
        ],
        zone: TimeZone::UTC,
    }
}

#[test]
fn a_failure_names_the_cause_and_its_consequences() {
    assert_snapshot!(failure(&failed(), false), @r#"
    ============================================================
    train.py FAILED
    ------------------------------------------------------------
    Root Cause (first observed failure):
    [0]:
      time      : 2026-11-30_12:43:30
      host      : node1
      rank      : 0 (local_rank: 0)
      exitcode  : 1 (pid: 100)
      error_file: /logs/attempt_1/0/error.json
      step      : 120
      what      : exited with code 1: ValueError: bad batch (train.py:3 in main)
      traceback : Traceback (most recent call last):
          File "train.py", line 3, in main
        ValueError: bad batch
    ------------------------------------------------------------
    Other Failures:
    [1]:
      time      : 2026-11-30_12:43:30
      host      : node1
      rank      : 1 (local_rank: 1)
      exitcode  : -6 (pid: 101)
      error_file: <N/A>
      what      : was killed by SIGABRT: the connection to another worker was lost (a consequence of the root cause)
      traceback : Signal 6 (SIGABRT) received by PID 101; its last lines:
        Connection reset by peer
    ------------------------------------------------------------
    Ended: all 3 restarts are used up
      generation 2, 1 restart, last step seen: 120
      Log of the root cause: /logs/attempt_1/0
      All logs: /logs
      Output lost: 3.0 KiB missing from /logs/attempt_1/0/stdout.log (No space left on device)
    ============================================================
    "#);
}

#[test]
fn a_killed_worker_without_a_word_still_gets_a_paragraph() {
    let killed = Finding {
        exit_code: None,
        signal: Some(9),
        wall_ms: 0,
        rank: None,
        summary: "was killed by SIGKILL".to_owned(),
        evidence: Vec::new(),
        error_file: String::new(),
        ..finding(0, 1)
    };
    let bare = Failure {
        cause: Some(killed),
        others: Vec::new(),
        dropped: Vec::new(),
        step: None,
        restarts: 0,
        generation: 1,
        has_logs: false,
        ..failed()
    };
    assert_snapshot!(failure(&bare, false), @r#"
    ============================================================
    train.py FAILED
    ------------------------------------------------------------
    Root Cause (first observed failure):
    [0]:
      time      : <N/A>
      host      : node1
      rank      : ? (local_rank: 0)
      exitcode  : -9 (pid: 100)
      error_file: <N/A>
      what      : was killed by SIGKILL
      traceback : Signal 9 (SIGKILL) received by PID 100
    ------------------------------------------------------------
    Other Failures:
      <NO_OTHER_FAILURES>
    ------------------------------------------------------------
    Ended: all 3 restarts are used up
      generation 1, no restart, no training step was seen
      The workers' output went to the console only: `--tee 3` keeps it in files too
    ============================================================
    "#);
}

#[test]
fn an_error_that_must_recur_is_said_to() {
    let certain = Finding {
        repeatability: Repeatability::Certain.into(),
        ..finding(0, 1)
    };
    let text = failure(
        &Failure {
            cause: Some(certain),
            ..failed()
        },
        false,
    );
    assert!(
        text.contains("Starting again will fail the same way"),
        "{text}"
    );
}

#[test]
fn many_failures_and_long_tracebacks_are_cut() {
    let long = Finding {
        evidence: vec!["File \"x\"\n".repeat(500)],
        ..finding(0, 1)
    };
    let many = Failure {
        cause: Some(long),
        others: (1..100).map(|rank| finding(rank, 2)).collect(),
        ..failed()
    };
    let text = failure(&many, false);
    assert!(
        text.contains("... and 91 more") && text.contains("... 460 lines left out ..."),
        "{text}"
    );
    assert!(text.lines().count() < 220);
}

#[test]
fn no_worker_at_fault_is_said_plainly() {
    let text = failure(
        &Failure {
            cause: None,
            others: Vec::new(),
            ..failed()
        },
        false,
    );
    assert!(text.contains("no worker failed"));
}

#[test]
fn control_characters_of_a_worker_are_not_passed_on() {
    let nasty = Finding {
        evidence: vec!["File \"\x1b[2J\x07\"".to_owned()],
        ..finding(0, 1)
    };
    let text = failure(
        &Failure {
            cause: Some(nasty),
            ..failed()
        },
        false,
    );
    assert!(!text.contains('\x1b') && !text.contains('\x07'));
    assert!(failure(&failed(), true).contains("\x1b[1;31mtrain.py FAILED\x1b[0m"));
}

#[test]
fn success_is_short() {
    let well = Success {
        duration: Duration::from_secs(3723),
        restarts: 2,
        step: Some(5000),
        log_dir: Some("/logs".into()),
        dropped: Vec::new(),
    };
    assert_snapshot!(success(&well, false), @"steadfast: finished in 1h02m03s, last step 5000, 2 restarts, logs in /logs");
    let short = Success {
        duration: Duration::from_millis(3400),
        restarts: 0,
        step: None,
        log_dir: None,
        dropped: vec!["1 line (9 bytes) missing on the console".to_owned()],
    };
    assert_snapshot!(success(&short, false), @r"
    steadfast: finished in 3.4s, no restarts
    steadfast: output lost: 1 line (9 bytes) missing on the console
    ");
    assert_eq!(duration(Duration::from_secs(61)), "1m01s");
}
