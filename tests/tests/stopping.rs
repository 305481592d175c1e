// SPDX-License-Identifier: Apache-2.0
//! Stopping a job: whoever asks, however the workers behave, and whatever they leave behind.

use std::time::Duration;

use nix::sys::signal::Signal;
use steadfast_tests::{
    Job, Launch, Random, Requirement, cgroup_of, eventually, is_alive, pause, process_state, send,
};

/// A job whose workers have come to the step `record:ready`.
#[track_caller]
fn ready(options: &[&str], steps: &[&str], workers: usize) -> Job {
    let job = Launch::run(options).worker(steps).start();
    job.eventually("all workers", |job| {
        (job.records_of("ready").len() == workers).then_some(())
    });
    // A signal that no agent has heard of is the subject of other tests.
    job.eventually("the agent", Job::status);
    job
}

fn signals_seen(job: &Job) -> Vec<String> {
    job.records_of("signal")
        .iter()
        .filter_map(|record| Some(record["signal"].as_str()?.to_owned()))
        .collect()
}

#[test]
fn workers_that_end_well_when_asked_make_it_a_success() {
    let mut job = ready(
        &["--nproc-per-node", "2"],
        &["on-term:0", "record:ready", "hang"],
        2,
    );
    job.signal(Signal::SIGTERM);
    job.wait().ended_with(0);
    assert_eq!(signals_seen(&job), ["SIGTERM", "SIGTERM"]);
}

#[test]
fn workers_that_just_die_give_128_and_the_signal_that_they_got_too() {
    for (signal, code) in [
        (Signal::SIGTERM, 143),
        (Signal::SIGINT, 130),
        (Signal::SIGHUP, 129),
    ] {
        let mut job = ready(&["--nproc-per-node", "2"], &["record:ready", "hang"], 2);
        job.signal(signal);
        job.wait().ended_with(code);
        let mut job = ready(&[], &["on-term:1", "record:ready", "hang"], 1);
        job.signal(signal);
        job.wait().ended_with(code);
        assert_eq!(signals_seen(&job), [signal.as_str()]);
    }
}

#[test]
fn a_stop_is_no_failure_and_starts_nothing_anew() {
    let mut job = ready(
        &["--nproc-per-node", "3"],
        &["@rank=1@on-term:7", "record:ready", "hang"],
        3,
    );
    job.signal(Signal::SIGTERM);
    job.wait().ended_with(143);
    assert_eq!(job.journal_of("generation.starting").len(), 1);
}

#[test]
fn a_worker_that_ignores_it_is_killed_when_its_time_is_over() {
    let mut job = ready(
        &["--stop-grace", "300ms"],
        &["ignore-term", "record:ready", "hang"],
        1,
    );
    job.signal(Signal::SIGTERM);
    job.wait().ended_with(143);
}

#[test]
fn a_worker_that_was_stopped_is_woken_to_end_well() {
    let mut job = ready(&[], &["on-term:0", "record:ready", "hang"], 1);
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
    let mut job = ready(&options, &["daemon", "record:ready", "hang"], 2);
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
fn a_second_ctrl_c_kills_at_once() {
    let mut job = ready(
        &["--stop-grace", "1h"],
        &["ignore-term", "record:ready", "hang"],
        1,
    );
    job.signal(Signal::SIGINT);
    job.eventually("the first one", |job| {
        job.stderr().contains("SIGINT").then_some(())
    });
    // One that follows the first at once is taken for its echo.
    pause(Duration::from_millis(500));
    job.signal(Signal::SIGINT);
    job.wait().ended_with(130);
}

#[test]
fn an_echo_of_ctrl_c_is_no_second_one() {
    let mut job = ready(&[], &["on-term:0", "record:ready", "hang"], 1);
    job.signal(Signal::SIGINT);
    job.signal(Signal::SIGINT);
    job.wait().ended_with(0);
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

#[test]
fn sigusr1_and_sigusr2_reach_the_workers_and_end_nothing() {
    let steps = ["note-signals", "record:ready", "wait-file:finish"];
    let mut job = ready(&["--nproc-per-node", "2"], &steps, 2);
    job.signal(Signal::SIGUSR1);
    job.signal(Signal::SIGUSR2);
    job.eventually("both signals at both workers", |job| {
        let mut seen = signals_seen(job);
        seen.sort_unstable();
        (seen == ["SIGUSR1", "SIGUSR1", "SIGUSR2", "SIGUSR2"]).then_some(())
    });
    job.touch("finish");
    job.wait().ended_with(0);
}

#[test]
fn ctrl_z_stops_everything_and_it_goes_on_as_if_nothing_had_been() {
    let options = [
        "--nproc-per-node",
        "2",
        "--agent-heartbeat",
        "100ms",
        "--agent-watchdog",
        "1s",
    ];
    let mut job = ready(&options, &["child", "record:ready", "wait-file:finish"], 2);
    let workers = [job.worker(0, 0), job.worker(0, 1)];
    job.signal(Signal::SIGTSTP);
    job.eventually("everything to be stopped", |job| {
        let stopped = |&pid: &i32| process_state(pid) == Some('T');
        (stopped(&job.pid()) && workers.iter().all(stopped)).then_some(())
    });
    // Longer than the watchdog allows: this silence must not count.
    pause(Duration::from_millis(2500));
    job.signal(Signal::SIGCONT);
    job.touch("finish");
    job.wait().ended_with(0);
    assert!(
        job.journal_of("agent.replaced").is_empty(),
        "{:#?}",
        job.journal()
    );
    assert_eq!(job.records_of("start").len(), 2);
}

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

    let mut job = ready(&options, &with(&["record:ready", "hang"]), 2);
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
    let mut job = ready(&options, &steps, 2);
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
