// SPDX-License-Identifier: Apache-2.0
//! Stopping a job: whoever asks, and however the workers behave.

use std::time::Duration;

use nix::sys::signal::Signal;
use steadfast_tests::{
    Launch, Random, Requirement, cgroup_of, eventually, pause, process_state, send,
};

#[test]
fn workers_that_end_well_when_asked_make_it_a_success() {
    let mut job = Launch::run(&["--nproc-per-node", "2"])
        .worker(&["on-term:0", "record:ready", "hang"])
        .start_ready(2);
    job.signal(Signal::SIGTERM);
    job.wait().ended_with(0);
    assert_eq!(job.signals_seen(), ["SIGTERM", "SIGTERM"]);
}

#[test]
fn workers_that_just_die_give_128_and_the_signal_that_they_got_too() {
    for (signal, code) in [
        (Signal::SIGTERM, 143),
        (Signal::SIGINT, 130),
        (Signal::SIGHUP, 129),
    ] {
        let mut job = Launch::run(&["--nproc-per-node", "2"])
            .worker(&["record:ready", "hang"])
            .start_ready(2);
        job.signal(signal);
        job.wait().ended_with(code);
        let mut job = Launch::run(&[])
            .worker(&["on-term:1", "record:ready", "hang"])
            .start_ready(1);
        job.signal(signal);
        job.wait().ended_with(code);
        assert_eq!(job.signals_seen(), [signal.as_str()]);
    }
}

#[test]
fn a_data_loader_is_not_taken_away_from_a_worker_that_saves() {
    let steps = ["polite-child", "on-term:0:400", "record:ready", "hang"];
    let mut job = Launch::run(&[]).worker(&steps).start_ready(1);
    let worker = job.worker(0, 0);
    job.eventually("the child", |job| job.records_of("relative").pop());
    job.signal(Signal::SIGTERM);
    job.wait().ended_with(0);
    let records = job.records();
    let place = |event: &str, by_worker: bool| {
        records
            .iter()
            .position(|record| record["event"] == event && (record["pid"] == worker) == by_worker)
    };
    let (saved, child_asked) = (place("saved", true), place("signal", false));
    assert!(
        saved.is_some() && child_asked.is_some() && saved < child_asked,
        "{}",
        job.describe()
    );
}

#[test]
fn a_stop_is_no_failure_and_starts_nothing_anew() {
    let mut job = Launch::run(&["--nproc-per-node", "3"])
        .worker(&["@rank=1@on-term:7", "record:ready", "hang"])
        .start_ready(3);
    job.signal(Signal::SIGTERM);
    job.wait().ended_with(143);
    assert_eq!(job.journal_of("generation.starting").len(), 1);
}

#[test]
fn a_worker_that_ignores_it_is_killed_when_its_time_is_over() {
    let mut job = Launch::run(&["--stop-grace", "300ms"])
        .worker(&["ignore-term", "record:ready", "hang"])
        .start_ready(1);
    job.signal(Signal::SIGTERM);
    job.wait().ended_with(143);
}

#[test]
fn a_worker_that_was_stopped_is_woken_to_end_well() {
    let mut job = Launch::run(&[])
        .worker(&["on-term:0", "record:ready", "hang"])
        .start_ready(1);
    let worker = job.worker(0, 0);
    assert!(send(worker, Signal::SIGSTOP));
    job.eventually("the stopped worker", |_| {
        (process_state(worker) == Some('T')).then_some(())
    });
    job.signal(Signal::SIGTERM);
    job.wait().ended_with(0);
}

#[test]
fn workers_in_a_frozen_cgroup_are_killed_when_their_time_is_over() {
    if !Requirement::CgroupTwo.met() {
        return;
    }
    let options = ["--nproc-per-node", "2", "--stop-grace", "300ms"];
    let mut job = Launch::run(&options)
        .worker(&["daemon", "record:ready", "hang"])
        .start_ready(2);
    let token = job.started(0, 2)[0]["environment"]["STEADFAST_KEEPER"]
        .as_str()
        .map(str::to_owned);
    let cgroup = token.as_deref().and_then(cgroup_of).unwrap();
    std::fs::write(cgroup.join("cgroup.freeze"), "1").unwrap();
    eventually("the frozen state", || {
        let events = std::fs::read_to_string(cgroup.join("cgroup.events")).unwrap();
        if events.contains("frozen 1") {
            Ok(())
        } else {
            Err(events)
        }
    });
    job.signal(Signal::SIGTERM);
    job.wait().ended_with(143);
}

#[test]
fn asked_at_any_moment_of_the_start_it_stops() {
    let mut random = Random::new(6);
    for round in 0..25 {
        // Most of what can go wrong lies in the first few milliseconds.
        let longest = Duration::from_millis(if round < 15 { 12 } else { 120 });
        let mut job = Launch::run(&["--nproc-per-node", "2"])
            .worker(&["hang"])
            .start();
        pause(random.duration_below(longest));
        job.signal(Signal::SIGTERM);
        let outcome = job.wait();
        // Before it has taken the signal over it simply dies of it, with nothing started.
        let died = std::os::unix::process::ExitStatusExt::signal(&outcome.status) == Some(15);
        assert!(died || outcome.status.code() == Some(143), "{outcome}");
        assert!(!died || job.records().is_empty(), "{}", job.describe());
    }
}

#[test]
fn asked_during_a_restart_it_stops() {
    let mut random = Random::new(7);
    for _ in 0..6 {
        let steps = [
            "@rank=1,restart=0@wait-file:fail",
            "@rank=1,restart=0@exit:3",
            "record:ready",
            "hang",
        ];
        let mut job = Launch::run(&["--nproc-per-node", "2"])
            .worker(&steps)
            .start();
        job.started(0, 2);
        job.touch("fail");
        pause(random.duration_below(Duration::from_millis(150)));
        job.signal(Signal::SIGTERM);
        job.wait().ended_with(143);
    }
}
