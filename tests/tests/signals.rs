// SPDX-License-Identifier: Apache-2.0
//! Signals to the supervisor that mean more than "stop".

use std::time::Duration;

use nix::sys::signal::Signal;
use steadfast_tests::{Found, Launch, pause, process_state};

#[test]
fn a_second_ctrl_c_kills_at_once() {
    let mut job = Launch::run(&["--stop-grace", "1h"])
        .worker(&["ignore-term", "record:ready", "hang"])
        .start_ready(1);
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
fn ctrl_c_ends_a_shell_that_waits_for_its_command() {
    // Such a shell goes on if its command does not die of the signal, too.
    let script = "while true; do sleep 1000; done";
    let launch = Launch::run(&["--stop-grace", "1h"]);
    let mut job = launch.command(&["--", "/bin/bash", "-c", script]).start();
    job.eventually("the command of the shell", |job| {
        let sleeping = |process: &Found| process.arguments.join(" ").trim() == "sleep 1000";
        job.processes().iter().any(sleeping).then_some(())
    });
    job.signal(Signal::SIGINT);
    job.wait().ended_with(130);
}

#[test]
fn an_echo_of_ctrl_c_is_no_second_one() {
    let mut job = Launch::run(&[])
        .worker(&["on-term:0", "record:ready", "hang"])
        .start_ready(1);
    job.signal(Signal::SIGINT);
    job.signal(Signal::SIGINT);
    job.wait().ended_with(0);
}

#[test]
fn sigusr1_and_sigusr2_reach_the_workers_and_end_nothing() {
    let steps = ["note-signals", "record:ready", "wait-file:finish"];
    let mut job = Launch::run(&["--nproc-per-node", "2"])
        .worker(&steps)
        .start_ready(2);
    job.signal(Signal::SIGUSR1);
    job.signal(Signal::SIGUSR2);
    job.eventually("both signals at both workers", |job| {
        let mut seen = job.signals_seen();
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
    let mut job = Launch::run(&options)
        .worker(&["child", "record:ready", "wait-file:finish"])
        .start_ready(2);
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
