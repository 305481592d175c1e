// SPDX-License-Identifier: Apache-2.0
//! The keeper dies: everything of the job dies with it. And the keeper as process 1 of a container.

use std::time::Duration;

use nix::sys::signal::Signal;
use steadfast_tests::{
    Job, Launch, Random, Requirement, children, fake_worker, is_alive, pause, send, steadfast,
};

/// Workers with relatives of every kind.
const FAMILY: [&str; 6] = [
    "child",
    "session-child",
    "daemon",
    "storm:7",
    "record:ready",
    "hang",
];
/// How many relatives each worker has.
const RELATIVES: usize = 10;

#[track_caller]
fn with_family(cgroup: &str) -> Job {
    let job = Launch::run(&["--nproc-per-node", "2", "--cgroup", cgroup])
        .worker(&FAMILY)
        .start();
    job.eventually("all relatives", |job| {
        (job.records_of("relative").len() == 2 * RELATIVES).then_some(())
    });
    job.eventually("the agent", Job::status);
    job
}

#[track_caller]
fn kill_and_look_for_survivors(cgroup: &str) {
    let mut job = with_family(cgroup);
    job.signal(Signal::SIGKILL);
    let outcome = job.wait_leaving_traces();
    assert_eq!(outcome.status.code(), None, "{outcome}");
    job.eventually("the end of everything", |job| {
        job.left_behind().is_empty().then_some(())
    });
}

#[test]
fn killed_it_takes_every_process_of_the_job_along() {
    kill_and_look_for_survivors("off");
}

#[test]
fn killed_it_takes_every_process_of_the_job_along_with_a_cgroup() {
    if !Requirement::CgroupTwo.met() {
        return;
    }
    kill_and_look_for_survivors("auto");
}

#[test]
fn killed_at_any_moment_of_a_restart_it_leaves_nothing() {
    let mut random = Random::new(10);
    for _ in 0..8 {
        let steps = [
            "@rank=1,restart=0@wait-file:fail",
            "@rank=1,restart=0@exit:3",
            "@restart=0@hang",
            "session-child",
            "daemon",
            "hang",
        ];
        let mut job = Launch::run(&["--nproc-per-node", "2"])
            .worker(&steps)
            .start();
        job.started(0, 2);
        job.touch("fail");
        pause(random.duration_below(Duration::from_millis(100)));
        job.signal(Signal::SIGKILL);
        job.wait_leaving_traces();
        job.eventually("the end of everything", |job| {
            job.left_behind().is_empty().then_some(())
        });
    }
}

#[test]
fn killed_at_any_moment_of_the_start_it_leaves_no_process_and_blocks_no_later_job() {
    let mut random = Random::new(12);
    for _ in 0..8 {
        let mut job = Launch::run(&["--nproc-per-node", "2"])
            .worker(&["session-child", "daemon", "hang"])
            .start();
        pause(random.duration_below(Duration::from_millis(60)));
        job.signal(Signal::SIGKILL);
        job.wait_leaving_traces();
        job.eventually("the end of all processes", |job| {
            job.processes().is_empty().then_some(())
        });
        let mut again = Launch::run(&[]).beside(&job).worker(&["exit:0"]).start();
        again.wait().ended_with(0);
    }
}

#[test]
fn killed_it_takes_a_job_inside_the_job_along() {
    let launch = Launch::run(&["--nproc-per-node", "2"]).named("outer");
    // A name of its own for each inner job.
    let script = format!(
        "exec {} run --job inner-$RANK --nproc-per-node 2 -- {} session-child hang",
        steadfast().display(),
        fake_worker().display()
    );
    let mut job = launch.command(&["--", "/bin/sh", "-c", &script]).start();
    job.eventually("the innermost processes", |job| {
        (job.records_of("relative").len() == 4).then_some(())
    });
    job.eventually("the agents", |job| {
        (job.processes()
            .iter()
            .filter(|process| process.is_agent())
            .count()
            == 3)
            .then_some(())
    });
    job.signal(Signal::SIGKILL);
    job.wait_leaving_traces();
    job.eventually("the end of everything", |job| {
        job.left_behind().is_empty().then_some(())
    });
}

#[test]
fn killed_together_with_the_agent_it_still_takes_the_workers_along_and_blocks_no_later_job() {
    let mut job = Launch::run(&["--nproc-per-node", "2"])
        .worker(&["hang"])
        .start();
    let workers = [job.worker(0, 0), job.worker(0, 1)];
    let agent = job.eventually("the agent", Job::agent);
    // Stopped first, so that it does not get to see the keeper's end.
    assert!(send(agent, Signal::SIGSTOP) && send(agent, Signal::SIGKILL));
    job.signal(Signal::SIGKILL);
    job.wait_leaving_traces();
    job.eventually("the end of the workers", |_| {
        (!workers.iter().any(|&worker| is_alive(worker))).then_some(())
    });
    let mut again = Launch::run(&[]).beside(&job).worker(&["exit:0"]).start();
    again.wait().ended_with(0);
}

/// `steadfast` as process 1 of its own process namespace.
#[track_caller]
fn as_process_one(options: &[&str], command: &[&str]) -> (Job, i32) {
    let job = Launch::run(options)
        .inside(&["unshare", "--pid", "--fork", "--mount-proc"])
        .command(command)
        .start();
    let keeper = job.eventually("the keeper", |job| {
        let found = children(job.pid()).first().map(|child| child.pid)?;
        job.processes()
            .iter()
            .any(|process| process.pid == found && !process.is_agent())
            .then_some(found)
    });
    (job, keeper)
}

#[test]
fn as_process_1_it_reaps_strangers_and_passes_the_code_on() {
    if !Requirement::Root.met() {
        return;
    }
    // Each subshell leaves a process behind that ends a moment later, as a child of process 1.
    let script = "for i in 1 2 3 4 5 6 7 8; do (sleep 0.05 &); done; touch done; while [ ! -e go ]; do sleep 0.02; done; exit 5";
    let (mut job, keeper) =
        as_process_one(&["--max-restarts", "0"], &["--", "/bin/sh", "-c", script]);
    job.eventually("the orphans", |job| {
        job.work().join("done").exists().then_some(())
    });
    job.eventually(
        "agent and worker as the only children, and no zombie",
        |job| {
            let found = children(keeper);
            let quiet = found.len() == 2 && found.iter().all(|child| child.state != 'Z');
            (quiet && job.agent().is_some()).then_some(())
        },
    );
    job.touch("go");
    job.wait().ended_with(5);
}

#[test]
fn as_process_1_it_passes_signals_on() {
    if !Requirement::Root.met() {
        return;
    }
    let worker = fake_worker().to_str().unwrap();
    let command = [
        "--",
        worker,
        "note-signals",
        "on-term:0",
        "record:ready",
        "hang",
    ];
    let (mut job, keeper) = as_process_one(&[], &command);
    job.eventually("the worker", |job| {
        (job.records_of("ready").len() == 1).then_some(())
    });
    assert!(send(keeper, Signal::SIGUSR1));
    job.eventually("SIGUSR1", |job| {
        job.records_of("signal")
            .iter()
            .find(|record| record["signal"] == "SIGUSR1")
            .cloned()
    });
    assert!(send(keeper, Signal::SIGTERM));
    job.wait().ended_with(0);
}
