// SPDX-License-Identifier: Apache-2.0
//! Faults that the driver's library reports, or that it has itself.

use std::io::Write;

use nix::sys::signal::Signal;
use serde_json::json;
use steadfast_tests::{Gpus, Job, Launch, is_alive, send};

/// Two workers, on a machine with three GPUs, of which the job sees two.
fn watched(steps: &[&str]) -> (Job, Gpus) {
    let launch = Launch::run(&["--nproc-per-node", "2"])
        .worker(steps)
        .env("CUDA_VISIBLE_DEVICES", "0,1");
    let gpus = Gpus::new(launch.directory(), 3);
    let job = gpus.shown_to(launch).start_ready(2);
    has_health(&job, "NVML is watched (driver 570.86.15, 3 GPUs)");
    (job, gpus)
}

#[track_caller]
fn has_health(job: &Job, line: &str) {
    job.eventually(line, |job| {
        let status = job.status()?;
        let mut health = status["health"].as_array()?.iter();
        health
            .any(|shown| shown.as_str().is_some_and(|shown| shown.contains(line)))
            .then_some(())
    });
}

fn probe(job: &Job) -> Option<i32> {
    let processes = job.processes();
    let mut probes = processes.iter().filter(|process| process.is_probe());
    probes.next().map(|probe| probe.pid)
}

const HANG: [&str; 2] = ["record:ready", "hang"];
const WAIT: [&str; 2] = ["record:ready", "wait-file:finish"];

#[track_caller]
fn undisturbed(mut job: Job) {
    job.touch("finish");
    job.wait().ended_with(0);
    assert_eq!(job.journal_of("generation.starting").len(), 1);
}

#[test]
fn an_xid_that_the_library_delivers_ends_the_generation_of_its_worker() {
    let (mut job, gpus) = watched(&HANG);
    gpus.xid(1, 79);
    // There is no other node that could take over: this one is at fault.
    job.wait()
        .ended_with(76)
        .said("XID 79 at 0000:19:00")
        .said("(local rank 1)");
    let event = &job.journal_of("node.event")[0];
    assert_eq!(
        (&event["local_rank"], &event["code"]),
        (&json!(1), &json!(79))
    );
}

#[test]
fn a_gpu_that_the_job_does_not_use_is_none_of_its_business() {
    let (job, gpus) = watched(&WAIT);
    gpus.xid(2, 79);
    gpus.set(2, "remap_failed", json!(true));
    let event = job.eventually("the event", |job| job.journal_of("node.event").pop());
    assert_eq!(event["owner"], "other");
    assert!(!job.stderr().contains("XID 79"), "{}", job.stderr());
    undisturbed(job);
}

#[test]
fn a_gpu_that_is_lost_and_one_that_needs_a_reset_end_the_generation() {
    for (field, value, said) in [
        ("lost", json!(true), "gpu_lost at 0000:18:00"),
        ("recovery", json!(1), "XID 154 at 0000:18:00"),
    ] {
        let (mut job, gpus) = watched(&HANG);
        gpus.set(0, field, value);
        job.wait().ended_with(76).said(said);
    }
}

#[test]
fn what_is_wrong_but_not_fatal_is_told_and_shown_until_it_is_mended() {
    let (job, gpus) = watched(&WAIT);
    gpus.set(0, "links_down", json!([3]));
    has_health(&job, "GPU 0000:18:00: NVLink 3 is down");
    job.eventually("the message", |job| {
        job.stderr().contains("NVLink 3 is down").then_some(())
    });
    gpus.set(0, "links_down", json!([]));
    job.eventually("the end of it", |job| {
        (!job.status()?.to_string().contains("NVLink 3")).then_some(())
    });
    undisturbed(job);
}

#[test]
fn one_event_in_the_kernel_log_and_in_the_library_is_one_event() {
    let launch = Launch::run(&[]).worker(&WAIT);
    let log = launch.directory().join("kern.log");
    std::fs::write(&log, "").unwrap();
    let gpus = Gpus::new(launch.directory(), 1);
    let job = gpus
        .shown_to(launch)
        .env("STEADFAST_KERNEL_LOG", log.to_str().unwrap())
        .start_ready(1);
    has_health(&job, "NVML is watched");
    has_health(&job, "the kernel log is watched");
    let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
    let mut line = |code: u32| {
        let text = format!("NVRM: Xid (PCI:0000:18:00): {code}, pid=1, name=python, Ch 3\n");
        file.write_all(text.as_bytes()).unwrap();
    };
    line(31);
    gpus.xid(0, 31);
    // A second one, which only the log has, comes after both.
    job.eventually("the first event", |job| job.journal_of("node.event").pop());
    steadfast_tests::pause(std::time::Duration::from_millis(1500));
    line(13);
    job.eventually("the other event", |job| {
        let events = job.journal_of("node.event");
        events.iter().any(|event| event["code"] == 13).then_some(())
    });
    let events = job.journal_of("node.event");
    let codes: Vec<_> = events.iter().map(|event| &event["code"]).collect();
    assert_eq!(codes, [&json!(31), &json!(13)]);
    undisturbed(job);
}

/// The training makes steps that it had not made before this was called.
#[track_caller]
fn trains_on(job: &Job) {
    let step = |job: &Job| job.status()?["step"].as_u64();
    let before = job.eventually("a step", step);
    job.eventually("later steps", |job| {
        step(job).filter(|step| *step > before + 5)
    });
}

#[test]
fn a_library_that_hangs_holds_up_neither_training_nor_status_nor_restart_nor_stop() {
    let (mut job, gpus) = watched(&["record:ready", "steps:1:1000000:20"]);
    gpus.change(|state| {
        state["hang"] = json!([{ "call": "nvmlDeviceGetTemperature", "gpu": 0, "seconds": 600 }]);
    });
    has_health(
        &job,
        "NVML does not answer about GPU 0000:18:00: `nvmlDeviceGetTemperature` hangs",
    );
    trains_on(&job);
    // The other GPU's thread goes on.
    gpus.set(1, "remap_pending", json!(true));
    has_health(&job, "GPU 0000:19:00: A bad row");
    job.ask("restart", &[]).ended_with(0);
    job.started(1, 2);
    has_health(&job, "NVML does not answer about GPU 0000:18:00");
    trains_on(&job);
    job.ask("stop", &[]).ended_with(0);
    job.wait();
}

#[test]
fn a_library_that_hangs_in_its_first_call_holds_up_nothing() {
    let launch = Launch::run(&[]).worker(&WAIT);
    let gpus = Gpus::new(launch.directory(), 1);
    gpus.change(|state| {
        state["hang"] = json!([{ "call": "nvmlInit_v2", "gpu": null, "seconds": 600 }]);
    });
    let job = gpus.shown_to(launch).start_ready(1);
    has_health(&job, "NVML does not answer: `nvmlInit_v2` hangs");
    gpus.change(|state| state["hang"] = json!([]));
    has_health(&job, "NVML is watched (driver 570.86.15, 1 GPUs)");
    undisturbed(job);
}

#[test]
fn a_driver_that_is_not_loaded_or_goes_away_is_said_and_looked_for_again() {
    let launch = Launch::run(&[]).worker(&WAIT);
    let gpus = Gpus::new(launch.directory(), 1);
    gpus.change(|state| state["fail"] = json!({ "nvmlInit_v2": 9 }));
    let job = gpus.shown_to(launch).start_ready(1);
    has_health(&job, "NVML is not used: NVIDIA driver is not loaded");
    gpus.change(|state| state["fail"] = json!({}));
    has_health(&job, "NVML is watched");
    let first = probe(&job).unwrap();
    // As after an update of the driver: the library in memory belongs to the old one.
    gpus.change(|state| state["fail"] = json!({ "nvmlDeviceGetFieldValues": 18 }));
    job.eventually("the end of the probe", |_| (!is_alive(first)).then_some(()));
    gpus.change(|state| state["fail"] = json!({}));
    has_health(&job, "NVML is watched");
    assert!(job.journal_of("nvml.absent").len() >= 2);
    undisturbed(job);
}

#[test]
fn a_probe_that_is_killed_is_replaced_and_one_that_is_stopped_is_said() {
    let (job, gpus) = watched(&WAIT);
    let first = probe(&job).unwrap();
    send(first, Signal::SIGKILL);
    let second = job.eventually("another probe", |job| {
        probe(job).filter(|pid| *pid != first)
    });
    has_health(&job, "NVML is watched");
    send(second, Signal::SIGSTOP);
    has_health(&job, "the NVML probe's process does not run");
    send(second, Signal::SIGCONT);
    // It is heard again.
    gpus.set(0, "remap_pending", json!(true));
    has_health(&job, "GPU 0000:18:00: A bad row");
    undisturbed(job);
}

#[test]
fn a_probe_dies_with_its_agent_and_the_next_agent_has_its_own() {
    let (job, gpus) = watched(&WAIT);
    let first = probe(&job).unwrap();
    let agent = job.kill_agent().unwrap();
    job.other_agent(agent);
    job.eventually("the end of the old probe", |_| {
        (!is_alive(first)).then_some(())
    });
    has_health(&job, "NVML is watched");
    gpus.set(0, "remap_pending", json!(true));
    has_health(&job, "GPU 0000:18:00: A bad row");
    undisturbed(job);
}

/// A job of one worker that fails once when it is told to, on a machine with two GPUs of which it uses the first.
fn failing_once() -> (Launch, Gpus) {
    let launch = Launch::run(&["--nproc-per-node", "1", "--self-check-wait", "60s"])
        .worker(&[
            "record:ready",
            "@restart=0@wait-file:fail",
            "@restart=0@exit:3",
            "wait-file:finish",
        ])
        .env("CUDA_VISIBLE_DEVICES", "0");
    let gpus = Gpus::new(launch.directory(), 2);
    (launch, gpus)
}

/// The number of times that the node was looked at.
fn looks(job: &Job) -> usize {
    job.journal_of("node.looked_at").len()
}

#[test]
fn a_node_that_is_found_unfit_while_its_workers_are_stopped_gets_no_ranks_again() {
    let (launch, gpus) = failing_once();
    let mut job = gpus.shown_to(launch).start_ready(1);
    job.eventually("the first look", |job| (looks(job) == 1).then_some(()));
    has_health(&job, "self-check");
    // The library does not say this by itself.
    gpus.set(0, "remap_failed", json!(true));
    job.touch("fail");
    job.wait().ended_with(76).said("gpu-remap: ");
    assert_eq!(job.journal_of("generation.starting").len(), 1);
    assert!(looks(&job) >= 2);
}

#[test]
fn what_was_wrong_already_and_what_is_wrong_with_others_keeps_nobody_from_ranks() {
    let (launch, gpus) = failing_once();
    gpus.set(0, "remap_failed", json!(true));
    let mut job = gpus.shown_to(launch).start_ready(1);
    job.eventually("the first look", |job| (looks(job) == 1).then_some(()));
    gpus.set(1, "remap_failed", json!(true));
    job.touch("fail");
    job.started(1, 1);
    job.touch("finish");
    job.wait().ended_with(0);
    assert!(looks(&job) >= 2);
}

#[test]
fn what_was_wrong_before_the_job_is_a_note() {
    let launch = Launch::run(&[]).worker(&WAIT);
    let gpus = Gpus::new(launch.directory(), 1);
    gpus.set(0, "recovery", json!(2));
    let job = gpus.shown_to(launch).start_ready(1);
    job.eventually("the note", |job| {
        job.stderr()
            .contains("note: GPU 0000:18:00: ")
            .then_some(())
    });
    undisturbed(job);
}
