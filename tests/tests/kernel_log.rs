// SPDX-License-Identifier: Apache-2.0
//! GPU errors in the kernel log, and what a job makes of them.

#![expect(clippy::unwrap_used, reason = "this is test code")]

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::json;
use steadfast_tests::{Job, Launch, Requirement, send};

const LOST: &str =
    "NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=python, GPU has fallen off the bus.";
const FAULT: &str =
    "NVRM: Xid (PCI:0000:18:00): 31, pid=1, name=python, Ch 00000003, MMU Fault: ENGINE GRAPHICS";

fn append(log: &Path, line: &str) {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .unwrap();
    // One write, as a record of the kernel is one.
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// A job that follows the file `kern.log` in its own directory, which holds these lines already.
fn following(steps: &[&str], before: &[&str]) -> (Job, std::path::PathBuf) {
    let launch = Launch::run(&["--nproc-per-node", "2"]).worker(steps);
    let log = launch.directory().join("kern.log");
    std::fs::write(&log, "").unwrap();
    for line in before {
        append(&log, line);
    }
    let job = launch
        .env("STEADFAST_KERNEL_LOG", log.to_str().unwrap())
        .start_ready(2);
    watched(&job);
    (job, log)
}

#[track_caller]
fn watched(job: &Job) {
    job.eventually("the kernel log", |job| {
        job.status()?["health"][0]
            .as_str()?
            .starts_with("the kernel log is watched")
            .then_some(())
    });
}

#[test]
fn a_lost_gpu_ends_the_generation_and_is_named() {
    let (mut job, log) = following(&["record:ready", "hang"], &[]);
    append(&log, LOST);
    // There is no other node that could take over: this one is at fault.
    job.wait()
        .ended_with(76)
        .said("XID 79 at 0000:18:00, pid 1 (python): ")
        .said("Continue the job without this node");
    let stopping = &job.journal_of("generation.stopping")[0];
    let reason = stopping["reason"].as_str().unwrap();
    assert!(reason.contains("XID 79 at 0000:18:00"), "{reason}");
    let events = job.journal_of("node.event");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["action"], "reboot-node");
    assert_eq!(events[0]["owner"], "unknown");
}

#[test]
fn an_error_of_the_program_leaves_a_healthy_generation_alone() {
    let steps = ["record:ready", "wait-file:finish"];
    let (mut job, log) = following(&steps, &[]);
    append(&log, FAULT);
    let events = job.eventually("the event", |job| {
        let events = job.journal_of("node.event");
        (!events.is_empty()).then_some(events)
    });
    assert_eq!(events[0]["code"], 31);
    job.touch("finish");
    job.wait().ended_with(0);
    assert_eq!(job.journal_of("generation.starting").len(), 1);
}

#[test]
fn what_was_there_before_the_job_is_told_and_stops_nothing() {
    let steps = ["record:ready", "wait-file:finish"];
    let (mut job, _) = following(&steps, &[LOST]);
    job.eventually("the note", |job| {
        job.stderr()
            .contains("note: before this job, the kernel log says XID 79")
            .then_some(())
    });
    let status = job.status().unwrap();
    assert!(
        status["health"][1]
            .as_str()
            .unwrap()
            .starts_with("XID 79 at 0000:18:00"),
        "{status}"
    );
    job.touch("finish");
    job.wait().ended_with(0);
    assert_eq!(job.journal_of("generation.starting").len(), 1);
}

#[test]
fn a_new_agent_reads_on_and_repeats_nothing() {
    let steps = ["record:ready", "wait-file:finish"];
    let (mut job, log) = following(&steps, &[]);
    append(&log, FAULT);
    job.eventually("the bookmark", |job| {
        let file = job.runtime_root().join("job@node/kernel-log.json");
        std::fs::read(file).ok()
    });
    let agent = job.kill_agent().unwrap();
    job.other_agent(agent);
    watched(&job);
    append(&log, &FAULT.replace("18:00", "2a:00"));
    let events = job.eventually("the other event", |job| {
        let events = job.journal_of("node.event");
        events
            .iter()
            .any(|event| event["pci"] == "0000:2a:00")
            .then_some(events)
    });
    let buses: Vec<_> = events.iter().map(|event| &event["pci"]).collect();
    assert_eq!(buses, [&json!("0000:18:00"), &json!("0000:2a:00")]);
    job.touch("finish");
    job.wait().ended_with(0);
}

#[test]
fn a_log_that_is_not_there_is_told_and_the_job_goes_on() {
    let mut job = Launch::run(&["--kernel-log", "/nonexistent/kmsg"])
        .worker(&["record:ready", "wait-file:finish"])
        .start_ready(1);
    job.eventually("the message", |job| {
        job.stderr()
            .contains("the kernel log is not watched: cannot open /nonexistent/kmsg")
            .then_some(())
    });
    job.touch("finish");
    job.wait().ended_with(0);
}

#[test]
fn a_policy_file_decides_and_a_wrong_one_is_refused() {
    let launch = Launch::run(&[]).worker(&["record:ready", "hang"]);
    let policy = launch.directory().join("policy.toml");
    let log = launch.directory().join("kern.log");
    std::fs::write(&log, "").unwrap();
    std::fs::write(&policy, "[xid.31]\naction = 'exclude-node'\n").unwrap();
    let mut job = launch
        .env("STEADFAST_KERNEL_LOG", log.to_str().unwrap())
        .env("STEADFAST_XID_POLICY", policy.to_str().unwrap())
        .start_ready(1);
    watched(&job);
    append(&log, FAULT);
    job.wait().ended_with(76).said("XID 31 at 0000:18:00");
    let mut refused = Launch::run(&["--xid-policy", "/nonexistent"])
        .worker(&["exit:0"])
        .start();
    refused
        .wait()
        .ended_with(78)
        .said("--xid-policy /nonexistent");
}

#[test]
fn a_worker_that_the_kernel_killed_for_memory_is_said_to_be() {
    if !Requirement::FirstPidNamespace.met() {
        return;
    }
    let launch = Launch::run(&["--max-restarts", "0"]).worker(&["record:ready", "hang"]);
    let log = launch.directory().join("kern.log");
    std::fs::write(&log, "").unwrap();
    let mut job = launch
        .env("STEADFAST_KERNEL_LOG", log.to_str().unwrap())
        .start_ready(1);
    watched(&job);
    let worker = job.worker(0, 0);
    append(
        &log,
        &format!(
            "Memory cgroup out of memory: Killed process {worker} (fake-worker) total-vm:1kB, anon-rss:1kB"
        ),
    );
    job.eventually("the event", |job| job.journal_of("node.event").pop());
    send(worker, Signal::SIGKILL);
    job.wait()
        .ended_with(137)
        .said("A control group reached its memory limit");
    let ended = &job.journal_of("job.ended")[0];
    assert_eq!(
        ended["result"]["root_cause"]["fingerprint"],
        "cgroup_oom_kill"
    );
}

/// The only test that writes to the machine's own log: whoever else trusts anyone there would read it too.
#[test]
fn the_machines_own_log_is_followed_and_only_the_kernel_is_believed() {
    if !Requirement::KernelLog.met() {
        return;
    }
    let mut credulous = Launch::run(&["--kernel-log-trust", "anyone"])
        .worker(&["record:ready", "hang"])
        .named("credulous")
        .start_ready(1);
    let mut careful = Launch::run(&[])
        .worker(&["record:ready", "wait-file:finish"])
        .named("careful")
        .beside(&credulous)
        .start_ready(1);
    watched(&credulous);
    watched(&careful);
    append(Path::new("/dev/kmsg"), &format!("<3>{LOST}"));
    credulous.wait().ended_with(76).said("XID 79");
    careful.eventually("the forged line", |job| {
        let ignored = job.journal_of("kernel_log.ignored");
        (ignored.first()?["event"] == "XID 79 at 0000:18:00").then_some(())
    });
    careful.touch("finish");
    careful.wait().ended_with(0);
    assert_eq!(careful.journal_of("generation.starting").len(), 1);
}
