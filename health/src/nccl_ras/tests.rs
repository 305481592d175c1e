// SPDX-License-Identifier: Apache-2.0

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};

use proptest::prelude::*;

use super::*;

const WITHIN: Duration = Duration::from_secs(20);

const JSON: &str = r#"{ "nccl_version": "2.28.9", "communicators_count": 1, "communicators": [ { "hash": "0xa", "size": 4,
  "ranks": [
    { "rank": 0, "host": "10.0.0.1", "pid": 11, "status": { "init_state": 0, "async_error": 0, "abort_flag": false },
      "collective_counts": { "AllReduce": 41, "Broadcast": 2 } },
    { "rank": 1, "host": "10.0.0.1", "pid": 12, "status": { "init_state": 0, "async_error": 6, "abort_flag": false },
      "collective_counts": { "AllReduce": 40, "Broadcast": 2 } } ],
  "missing_ranks": [
    { "rank": 2, "host": "10.0.0.2", "pid": 13, "status": { "unresponsive": true, "considered_dead": false } },
    { "rank": 3, "host": "10.0.0.2", "pid": 14, "status": { "unresponsive": true, "considered_dead": true } } ] } ],
  "ras": { "collection_time_sec": 0.1, "timeouts_count": 1 } }"#;

const TEXT: &str = "Job summary\n===========\n\nErrors\n======\n\nDEAD\n  1 job process is considered dead\n  \
    Process 14 on node 10.0.0.2 managing GPU 5\n\n#0-0 (cf26) INCOMPLETE\n  Missing communicator data from 3 ranks\n  \
    The missing ranks: 3, 5-6\n\n#1-0 (9e17) MISMATCH\n  Communicator ranks have different status\n  \
    Rank 8 -- GPU 0 managed by process 15 on node 10.0.0.3\n";

/// What NCCL would do. `is_old`: it knows no JSON. Those before `healthy` accept and say nothing.
fn server(is_old: bool, silent: usize) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = thread::spawn(move || {
        let mut hanging = Vec::new();
        for _ in 0..silent {
            hanging.push(listener.accept().unwrap());
        }
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut is_json = false;
        while let Some(Ok(line)) = lines.next() {
            let answer = match line.to_ascii_uppercase().as_str() {
                "CLIENT PROTOCOL 2" => "SERVER PROTOCOL 2\n",
                "SET FORMAT JSON" if is_old => "ERROR: unknown command\n",
                "SET FORMAT JSON" => {
                    is_json = true;
                    "OK\n"
                }
                line if line.starts_with("TIMEOUT ") => "OK\n",
                "VERBOSE STATUS" => {
                    let report = if is_json { JSON } else { TEXT };
                    stream.write_all(report.as_bytes()).unwrap();
                    return;
                }
                other => panic!("{other}"),
            };
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (address, thread)
}

fn said(report: &RasReport) -> Vec<String> {
    report.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_new_version_is_asked_for_json() {
    let (address, thread) = server(false, 0);
    let report = ask(&address, WITHIN).unwrap();
    thread.join().unwrap();
    assert_eq!(report.version.as_deref(), Some("2.28.9"));
    assert_eq!(
        said(&report),
        [
            "communicator 0xa: considered dead: rank 3 process 14 on 10.0.0.2",
            "communicator 0xa: does not answer: rank 2 process 13 on 10.0.0.2",
            "communicator 0xa: has failed: rank 1 process 12 on 10.0.0.1",
            "communicator 0xa: has begun 42 collectives, others 43: rank 1 process 12 on 10.0.0.1",
        ]
    );
}

#[test]
fn an_old_version_is_understood_as_well() {
    let (address, thread) = server(true, 0);
    let report = ask(&address, WITHIN).unwrap();
    thread.join().unwrap();
    assert_eq!(report.answer, TEXT);
    assert_eq!(
        said(&report),
        [
            "DEAD; 1 job process is considered dead: process 14 on 10.0.0.2",
            "communicator cf26: INCOMPLETE; Missing communicator data from 3 ranks: rank 3, rank 5, rank 6",
            "communicator 9e17: MISMATCH; Communicator ranks have different status: rank 8 process 15 on 10.0.0.3",
        ]
    );
}

#[test]
fn a_question_that_lands_on_a_process_that_hangs_is_asked_again() {
    let (address, thread) = server(false, 2);
    let report = ask(&address, WITHIN).unwrap();
    thread.join().unwrap();
    assert_eq!(report.communicators, Some(1));
}

#[test]
fn where_nobody_is_or_a_stranger_that_is_said() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail.test ESMTP\r\n").unwrap();
    });
    let stranger = ask(&address, WITHIN).unwrap_err();
    assert!(matches!(stranger, RasError::Stranger(_)), "{stranger}");
    thread.join().unwrap();
    let nobody = ask(&address, WITHIN).unwrap_err();
    assert!(matches!(nobody, RasError::Nobody { .. }), "{nobody}");
}

proptest! {
    #[test]
    fn whatever_is_answered_it_is_read(answer in "(#|0-0|\\(|\\)|DEAD|MISMATCH|Rank |process 1|The missing ranks: |1-9,|\n|  |\\{|\"|.){0,60}", is_json: bool) {
        let report = RasReport::read(&answer, is_json);
        prop_assert!(report.problems.len() <= 64);
    }
}
