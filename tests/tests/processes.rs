// SPDX-License-Identifier: Apache-2.0
//! The workers as processes: what they leave behind, how they die, and what they may do.

use nix::sys::signal::Signal;
use steadfast_tests::{Launch, Requirement, is_alive, send};

/// Relatives of every kind, left by workers that are stopped, that fail, and that succeed.
#[track_caller]
fn no_relative_survives(cgroup: &str) {
    const FAMILY: [&str; 5] = ["child", "session-child", "daemon", "storm:31", "chain:20"];
    let options = [
        "--nproc-per-node",
        "2",
        "--stop-grace",
        "300ms",
        "--restart-grace",
        "300ms",
        "--cgroup",
        cgroup,
    ];
    let with = |last: &[&'static str]| [&FAMILY[..], last].concat();

    let mut job = Launch::run(&options)
        .worker(&with(&["record:ready", "hang"]))
        .start_ready(2);
    job.signal(Signal::SIGTERM);
    job.wait().ended_with(143);

    let mut job = Launch::run(&options).worker(&with(&["exit:0"])).start();
    job.wait().ended_with(0);

    let steps = with(&[
        "@rank=1,restart=0@exit:3",
        "@restart=0@hang",
        "record:ready",
        "wait-file:finish",
    ]);
    let mut job = Launch::run(&options).worker(&steps).start_ready(2);
    for record in job
        .records_of("relative")
        .iter()
        .filter(|record| record["restart_count"] == 0)
    {
        let pid = i32::try_from(record["pid"].as_i64().unwrap_or_default()).unwrap_or_default();
        assert!(!is_alive(pid), "{record} outlived its generation");
    }
    job.touch("finish");
    job.wait().ended_with(0);
}

#[test]
fn no_relative_of_a_worker_survives_it() {
    no_relative_survives("off");
}

#[test]
fn no_relative_of_a_worker_survives_it_with_a_cgroup() {
    if Requirement::CgroupTwo.met() {
        no_relative_survives("auto");
    }
}

#[test]
fn a_large_process_is_known_to_be_dying_before_it_is_gone() {
    // How long the kernel takes to free the memory depends on the machine, so it gets several chances to be seen.
    const ATTEMPTS: u64 = 5;
    let mut steps: Vec<String> = (0..ATTEMPTS)
        .map(|attempt| format!("@restart={attempt}@steps:1:{}:0", attempt + 1))
        .collect();
    steps.extend(["memory:1024", "record:ready", "hang"].map(str::to_owned));
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let mut job = Launch::run(&[]).worker(&steps).start();
    for attempt in 0..ATTEMPTS {
        let worker = job.worker(attempt, 0);
        job.eventually("the memory", |job| {
            job.records_of("ready")
                .iter()
                .find(|record| record["restart_count"] == attempt)
                .cloned()
        });
        job.eventually("a running generation", |job| {
            job.status()
                .filter(|status| status["generation"] == attempt + 1)
        });
        assert!(send(worker, Signal::SIGKILL));
        job.eventually("its end", |job| {
            job.journal_of("worker.exited")
                .get(usize::try_from(attempt).ok()?)
                .cloned()
        });
        if !job.journal_of("worker.dying").is_empty() {
            break;
        }
    }
    job.signal(Signal::SIGTERM);
    job.wait();
    let journal = job.journal();
    let place = |kind: &str| journal.iter().position(|line| line["kind"] == kind);
    let dying =
        place("worker.dying").unwrap_or_else(|| panic!("it was never seen dying: {journal:#?}"));
    let exited = journal[dying..]
        .iter()
        .find(|line| line["kind"] == "worker.exited");
    assert_eq!(
        exited.map(|line| &line["pid"]),
        Some(&journal[dying]["pid"])
    );
}

#[test]
fn core_dumps_are_off_unless_they_are_asked_for() {
    for (options, limit) in [
        (&[][..], "0"),
        (&["--core-size", "512M"], "536870912"),
        (&["--core-size", "unlimited"], "unlimited"),
    ] {
        let mut job = Launch::run(options).worker(&["exit:0"]).start();
        job.wait().ended_with(0);
        let started = job.started(0, 1);
        // A limit that the machine sets cannot be exceeded.
        let (soft, hard) = (&started[0]["core_limit"], &started[0]["core_limit_hard"]);
        assert!(
            soft == limit || soft == hard,
            "{options:?}: {soft}, at most {hard}"
        );
    }
}
