// SPDX-License-Identifier: Apache-2.0
//! The workers' output: nothing that happens to it holds a worker up, and what can be kept is kept.

#![expect(clippy::panic, reason = "this is test code")]

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use steadfast_tests::{Console, Job, Launch, Requirement, long_tests, numbered_lines};

const MEBIBYTE: u64 = 1024 * 1024;

/// Path of a worker's standard output.
fn log_path(job: &Job, local_rank: u32) -> PathBuf {
    job.run_dir()
        .join(format!("attempt_0/{local_rank}/stdout.log"))
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// The most memory that a process has used so far, in MiB.
fn peak_memory(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.unwrap_or_else(|| panic!("no VmHWM in {status}")) / 1024
}

#[test]
fn a_console_that_nobody_reads_holds_up_no_worker_and_no_end() {
    let options = ["--nproc-per-node", "2"];
    let mut job = Launch::run(&options)
        .worker(&["flood:5000000"])
        .console(Console::Stalled)
        .start();
    // It ends although the console is still not read.
    job.wait().ended_with(0).said("output lost");
    assert_eq!(job.records_of("end").len(), 2);
    for rank in 0..2 {
        assert_eq!(
            length(&log_path(&job, rank)),
            5_000_000,
            "the log files are complete"
        );
    }
}

#[test]
fn a_console_that_was_stalled_goes_on_when_it_is_read_again() {
    let steps = [
        "flood:5000000",
        "record:flooded",
        "wait-file:go",
        "lines:1000000:5000",
    ];
    let mut job = Launch::run(&[])
        .worker(&steps)
        .console(Console::Stalled)
        .start();
    job.eventually("the worker to get its output off", |job| {
        (job.records_of("flooded").len() == 1).then_some(())
    });
    job.unstall();
    job.touch("go");
    // The first ones may still find no room.
    job.eventually("what is said after the stall", |job| {
        job.stdout().contains("of rank 0\n").then_some(())
    });
    job.signal(Signal::SIGTERM);
    job.wait().ended_with(143);
}

#[test]
fn a_console_that_cannot_be_written_ends_nothing() {
    let mut job = Launch::run(&["--nproc-per-node", "2"])
        .worker(&["lines:1000:0"])
        .console(Console::Full)
        .start();
    job.wait().ended_with(0);
    for rank in 0..2 {
        assert_eq!(job.log(0, rank, "stdout"), numbered_lines(1000, rank));
    }
}

#[test]
fn a_full_log_disk_holds_up_no_worker_and_is_reported() {
    if !Requirement::Root.met() {
        return;
    }
    let launch =
        Launch::run(&["--nproc-per-node", "2", "--console=false"]).worker(&["flood:5000000"]);
    let logs = launch.directory().join("logs");
    std::fs::create_dir(&logs).unwrap();
    // In a mount namespace of its own, which goes with the job.
    let mount = format!(
        "mount -t tmpfs -o size=1m tmpfs {} && exec \"$@\"",
        logs.display()
    );
    let mut job = launch
        .inside(&["unshare", "--mount", "sh", "-c", &mount, "sh"])
        .start();
    job.wait()
        .ended_with(0)
        .said("No space left on device")
        .said("output lost");
    assert_eq!(job.records_of("end").len(), 2);
}

#[test]
fn an_endless_line_is_kept_and_takes_no_memory() {
    const BYTES: u64 = 100_000_000;
    let line = format!("long-line:{BYTES}");
    let steps = [&line, "record:written", "wait-file:finish"];
    for options in [
        &["--nproc-per-node", "1"][..],
        &["--nproc-per-node", "2", "--local-ranks-filter", "0"],
    ] {
        let mut job = Launch::run(options).worker(&steps).start();
        job.started(0, 1);
        job.eventually("the whole line in the file", |job| {
            (length(&log_path(job, 0)) == BYTES + 1).then_some(())
        });
        let agent = job.eventually("the agent", Job::agent);
        let peak = peak_memory(agent);
        assert!(peak < 200, "{options:?}: the agent took {peak} MiB");
        job.touch("finish");
        job.wait().ended_with(0);
    }
}

#[test]
fn bytes_that_are_no_text_arrive_as_they_are() {
    let bytes = 3 * MEBIBYTE + 77;
    let mut job = Launch::run(&[])
        .worker(&[&format!("binary:{bytes}")])
        .start();
    let outcome = job.wait();
    outcome.ended_with(0);
    let expected: Vec<u8> = (0..bytes)
        .map(|index| u8::try_from(index % 256).unwrap())
        .collect();
    assert!(
        std::fs::read(log_path(&job, 0)).unwrap() == expected,
        "the file differs"
    );
    assert!(
        outcome.stdout == expected,
        "the console of a single worker differs: {} bytes",
        outcome.stdout.len()
    );
}

#[test]
fn a_burst_is_written_completely() {
    let options = ["--nproc-per-node", "2", "--console=false"];
    // A debug build looks at every byte many times slower than a release build does.
    let bytes = if cfg!(debug_assertions) && !long_tests() {
        10_000_000
    } else {
        100_000_000
    };
    let mut job = Launch::run(&options)
        .worker(&[&format!("flood:{bytes}")])
        .start();
    job.wait().ended_with(0).did_not_say("output lost");
    for rank in 0..2 {
        assert_eq!(length(&log_path(&job, rank)), bytes);
    }
}

#[test]
fn a_last_line_without_an_end_is_not_lost() {
    let mut job = Launch::run(&["--nproc-per-node", "2"])
        .worker(&["@rank=1@partial:no end"])
        .start();
    let outcome = job.wait();
    outcome.ended_with(0);
    assert_eq!(job.log(0, 1, "stdout"), "no end");
    assert!(outcome.stdout_text().contains("[1] no end"), "{outcome}");
}

#[test]
fn a_worker_that_closes_its_output_goes_on() {
    let script =
        "echo last; exec >&- 2>&-; touch closed; while [ ! -e go ]; do sleep 0.02; done; exit 5";
    let mut job = Launch::run(&["--max-restarts", "0"])
        .command(&["--", "/bin/sh", "-c", script])
        .start();
    job.eventually("the closed output", |job| {
        job.work().join("closed").exists().then_some(())
    });
    let status = job.eventually("a status", Job::status);
    assert_eq!(status["workers"][0]["state"], "running", "{status}");
    job.touch("go");
    job.wait().ended_with(5);
    assert_eq!(job.log(0, 0, "stdout"), "last\n");
}

#[test]
fn the_last_words_of_a_killed_worker_are_not_lost() {
    let lines = ["lines:5000:0", "raise:9"];
    let mut job = Launch::run(&["--max-restarts", "0", "--console=false"])
        .worker(&lines)
        .start();
    job.wait().ended_with(137);
    assert_eq!(job.log(0, 0, "stdout"), numbered_lines(5000, 0));
}

#[test]
fn a_relative_that_holds_the_output_open_holds_up_no_end() {
    let mut job = Launch::run(&["--nproc-per-node", "2"])
        .worker(&["daemon", "session-child", "out:done"])
        .start();
    job.wait().ended_with(0);
    assert_eq!(job.log(0, 0, "stdout"), "done\n");
}

#[test]
fn the_summary_names_the_cause_and_not_its_victims() {
    let peers_error = "err:RuntimeError - Connection closed by peer [127.0.0.1]";
    let steps = [
        "steps:1:4:0",
        "@rank=2@err:Traceback (most recent call last)",
        "@rank=2@err:ValueError - the batch is bad",
        "@rank=2@touch:failed",
        "@rank=2@exit:1",
        "wait-file:failed",
        peers_error,
        "exit:1",
    ];
    let options = ["--nproc-per-node", "4", "--max-restarts", "0"];
    let mut job = Launch::run(&options).worker(&steps).start();
    let outcome = job.wait();
    outcome
        .ended_with(1)
        .said("the batch is bad")
        .said("in training, at step 4");
    let (_, cause) = outcome
        .stderr
        .split_once("Root Cause (first observed failure)")
        .unwrap_or(("", ""));
    assert!(cause.contains("rank      : 2 (local_rank: 2)"), "{outcome}");
}

#[test]
fn the_reason_of_a_stop_is_in_the_journal_and_every_line_of_it_can_be_read() {
    let mut job = Launch::run(&["--nproc-per-node", "2"])
        .worker(&["record:ready", "hang"])
        .start();
    job.eventually("the workers", |job| {
        (job.records_of("ready").len() == 2).then_some(())
    });
    job.eventually("the agent", Job::status);
    job.signal(Signal::SIGTERM);
    job.wait().ended_with(143);
    let journal = job.journal();
    for line in &journal {
        for field in ["ts", "mono_ns", "job", "node", "generation", "kind"] {
            assert!(!line[field].is_null(), "{field} in {line}");
        }
    }
    let kinds: Vec<&str> = journal
        .iter()
        .filter_map(|line| line["kind"].as_str())
        .collect();
    let mut rest = kinds.iter();
    for kind in [
        "job.started",
        "generation.starting",
        "generation.started",
        "job.interrupted",
        "generation.stopping",
        "worker.exited",
        "generation.stopped",
        "job.ended",
    ] {
        assert!(
            rest.any(|found| *found == kind),
            "{kind}, in this order, in {kinds:?}"
        );
    }
}
