// SPDX-License-Identifier: Apache-2.0
//! Trainings that hang: the rank that holds up the others is named, and the job goes on without a person.

#![expect(clippy::unwrap_used, reason = "this is test code")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use steadfast_tests::{Job, Launch, Requirement, python, send};

/// Steps before anything is disturbed: enough to have learned how long they take.
const LEARNED: u64 = 15;

/// The toy job with four ranks, in which a rank hangs when a file says so.
fn toy(options: &[&str], steps: &str) -> Launch {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let wrapper = root.join("../chaos/src/bench/hangs/hanging.py");
    let script = root.join("../examples/train_toy.py");
    let options: Vec<&str> = ["--nproc-per-node", "4", "--restart-grace", "100ms"]
        .iter()
        .chain(options)
        .copied()
        .collect();
    Launch::run(&options).command(&[
        "--",
        python(),
        wrapper.to_str().unwrap(),
        script.to_str().unwrap(),
        "--steps",
        steps,
        "--step-time",
        "0.1",
    ])
}

fn reached(job: &Job, generation: u64, step: u64) -> Value {
    job.eventually(&format!("step {step} of generation {generation}"), |job| {
        let status = job.status()?;
        let is_there = status["generation"] == generation && status["step"].as_u64()? >= step;
        is_there.then_some(status)
    })
}

/// Waits until this rank is blamed and the job goes on, and ends it. Returns what was said of the stall at last.
#[track_caller]
fn recovers_from(mut job: Job, rank: u64, class: &str) -> Value {
    job.eventually("a status", Job::status);
    let judged = job.eventually("a verdict that is acted on", |job| {
        let judged = job.journal_of("stall.judged");
        judged.into_iter().find(|line| line["restarts"] == true)
    });
    let story = format!("{judged:#}");
    assert_eq!(judged["culprit"]["rank"], rank, "{story}");
    assert_eq!(judged["culprit"]["node"], "node", "{story}");
    assert_eq!(judged["class"], class, "{story}");
    job.eventually("another generation", |job| {
        (job.journal_of("generation.started").len() == 2).then_some(())
    });
    reached(&job, 2, 1);
    let starts = job.journal_of("generation.starting");
    let why = starts[1]["why"].as_str().unwrap();
    assert!(
        why.contains(&format!("rank {rank} on node holds up the others")),
        "{why}"
    );
    job.eventually("the evidence", |_| {
        let path = Path::new(judged["evidence"].as_str()?).join("index.json");
        let index: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        (index["ranks"].as_array()?.len() == 4).then_some(())
    });
    agrees_afterwards(&judged);
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    assert!(outcome.stderr.contains("holds up the others"), "{outcome}");
    judged
}

/// What was kept of the stall comes to the same, whoever looks at it later.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "tests create processes")]
fn agrees_afterwards(judged: &Value) {
    let output = Command::new(steadfast_tests::steadfast())
        .args(["diagnose", judged["evidence"].as_str().unwrap(), "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let later: Value = serde_json::from_slice(&output.stdout).unwrap();
    for field in [
        "class",
        "culprit",
        "others",
        "confidence",
        "signs",
        "advice",
    ] {
        assert_eq!(later["verdict"][field], judged[field], "{later:#}");
    }
}

#[test]
fn a_rank_that_is_stopped_is_named_and_the_job_restarted() {
    if !Requirement::Python.met() {
        return;
    }
    let job = toy(&[], "1000000").start();
    let status = reached(&job, 1, LEARNED);
    let workers = status["workers"].as_array().unwrap();
    let worker = workers.iter().find(|worker| worker["rank"] == 2).unwrap();
    let pid = i32::try_from(worker["pid"].as_i64().unwrap()).unwrap();
    assert!(send(pid, Signal::SIGSTOP));
    let judged = recovers_from(job, 2, "hang");
    assert_eq!(judged["confidence"], "strong", "{judged:#}");
}

/// Answers one question as NCCL does, and returns the address.
fn nccl() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for line in lines.map_while(Result::ok) {
            let answer: &[u8] = match line.as_str() {
                "CLIENT PROTOCOL 2" => b"SERVER PROTOCOL 2\n",
                "SET FORMAT json" => b"ERROR: unknown format\n",
                "VERBOSE STATUS" => {
                    b"#0-0 (cf26) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: 2\n"
                }
                _ => b"OK\n",
            };
            stream.write_all(answer).unwrap();
            if line == "VERBOSE STATUS" {
                return;
            }
        }
    });
    address
}

#[test]
fn what_nccl_says_of_the_job_is_kept() {
    if !Requirement::Python.met() {
        return;
    }
    let job = toy(&["--stall", "report"], "1000000")
        .env("NCCL_RAS_ADDR", &nccl())
        .start();
    reached(&job, 1, LEARNED);
    job.touch("data-2");
    let about = job.eventually("the evidence", |job| {
        let judged = job.journal_of("stall.judged").into_iter().next()?;
        let directory = Path::new(judged["evidence"].as_str()?).to_owned();
        // The index is written last.
        directory.join("index.json").exists().then_some(directory)
    });
    let node: Value =
        serde_json::from_slice(&std::fs::read(about.join("node-node.json")).unwrap()).unwrap();
    let said = node["nccl"][0].as_str().unwrap();
    assert!(
        said.contains("cf26: INCOMPLETE") && said.ends_with("rank 2"),
        "{said}"
    );
    assert!(about.join("node-node.nccl.txt").is_file());
}

#[test]
fn a_rank_that_waits_for_its_data_is_named() {
    if !Requirement::Python.met() {
        return;
    }
    let job = toy(&[], "1000000").start();
    reached(&job, 1, LEARNED);
    job.touch("data-0");
    let judged = recovers_from(job, 0, "hang");
    assert!(
        judged["advice"].as_str().unwrap().contains("data loader"),
        "{judged:#}"
    );
}

#[test]
fn a_rank_that_spins_with_the_interpreters_lock_is_named() {
    if !Requirement::Python.met() {
        return;
    }
    let job = toy(&[], "1000000").start();
    reached(&job, 1, LEARNED);
    job.touch("spin-3");
    recovers_from(job, 3, "hang");
}

#[test]
fn a_rank_in_which_another_thread_keeps_the_interpreters_lock_is_named() {
    if !Requirement::Python.met() {
        return;
    }
    let job = toy(&[], "1000000").start();
    reached(&job, 1, LEARNED);
    job.touch("lock-1");
    let judged = recovers_from(job, 1, "hang");
    let sign = judged["signs"][0].as_str().unwrap();
    assert!(
        sign.contains("waits for the interpreter's lock"),
        "{judged:#}"
    );
}

#[test]
fn a_rank_that_never_begins_is_named() {
    if !Requirement::Python.met() {
        return;
    }
    let job = toy(&["--stall-after", "init=4s"], "1000000")
        .env("HANG_BEFORE_FIRST_STEP", "1")
        .start();
    recovers_from(job, 1, "hang");
}

#[test]
fn a_stall_is_reported_only_where_that_is_wanted() {
    if !Requirement::Python.met() {
        return;
    }
    let mut job = toy(&["--stall", "report"], "1000000").start();
    reached(&job, 1, LEARNED);
    job.touch("data-2");
    job.eventually("a status that says so", |job| {
        let status = job.status()?;
        let health = status["health"].to_string();
        health
            .contains("rank 2 on node holds up the others")
            .then_some(())
    });
    job.signal(Signal::SIGTERM);
    job.wait();
    assert!(
        job.journal_of("stall.judged")
            .iter()
            .all(|line| line["restarts"] == false)
    );
    assert_eq!(job.journal_of("generation.starting").len(), 1);
}

#[test]
fn a_slow_rank_and_a_short_stall_are_left_alone() {
    if !Requirement::Python.met() {
        return;
    }
    let mut job = toy(&[], "60").start();
    reached(&job, 1, LEARNED);
    job.touch("pause-1");
    job.touch("slow-2");
    let outcome = job.wait();
    outcome.ended_with(0);
    assert_eq!(job.journal_of("generation.starting").len(), 1, "{outcome}");
}

#[test]
fn a_program_that_shows_nothing_is_not_judged_and_status_says_so() {
    let mut job = Launch::run(&["--stall-after", "train=1s"])
        .worker(&["wait-file:end"])
        .start();
    job.eventually("a status that says so", |job| {
        let health = job.status()?["health"].to_string();
        health.contains("no signal of progress").then_some(())
    });
    job.touch("end");
    job.wait().ended_with(0);
    assert!(job.journal_of("stall.judged").is_empty());
}
