// SPDX-License-Identifier: Apache-2.0
//! No agent can live: the training goes on, the user is told, and the keeper ends the job by itself.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use steadfast_tests::{DEADLINE, Job, Launch, is_alive, numbered_lines, pause};

#[test]
fn one_that_cannot_live_stops_no_training_and_the_user_is_told() {
    let steps = [
        "@rank=0@lines:300:5000",
        "@rank=0@record:printed",
        "wait-file:finish",
        "@rank=1@exit:9",
        "hang",
    ];
    let mut job = Launch::run(&["--nproc-per-node", "2", "--max-restarts", "0"])
        .worker(&steps)
        .start();
    job.started(0, 2);
    // One that was killed is there until its keeper has seen it end, and must not count twice.
    let mut killed = BTreeSet::new();
    while killed.len() < 7 {
        job.eventually("another agent", |job| {
            job.agent().filter(|agent| !killed.contains(agent))
        });
        killed.extend(job.kill_agent());
    }
    job.eventually("a word to the user", |job| {
        job.stderr().contains("The training goes on").then_some(())
    });
    assert_eq!(
        job.records_of("start").len(),
        2,
        "no worker was started again"
    );
    job.eventually("all lines", |job| job.records_of("printed").pop());
    job.touch("finish");
    job.wait().ended_with(9);
    assert_eq!(
        job.log(0, 0, "stdout"),
        numbered_lines(300, 0),
        "every line once, in order"
    );
}

/// Kills every agent as soon as it is there, until the job is over. `after` is called once five of them have died, when
/// no agent has the time any more to see to anything.
#[track_caller]
fn no_agent_can_live(job: &Job, mut after: impl FnMut(&Job)) {
    let deadline = Instant::now() + DEADLINE;
    let mut killed = BTreeSet::new();
    while is_alive(job.pid()) {
        assert!(Instant::now() < deadline, "{}", job.describe());
        if job.kill_agent().is_some_and(|agent| killed.insert(agent)) && killed.len() == 5 {
            after(job);
        }
        pause(Duration::from_millis(1));
    }
}

#[test]
fn without_any_agent_the_keeper_ends_the_job_with_the_workers_code() {
    let steps = ["wait-file:finish", "@rank=1@exit:9"];
    let mut job = Launch::run(&["--nproc-per-node", "2"])
        .worker(&steps)
        .start();
    job.started(0, 2);
    no_agent_can_live(&job, |job| job.touch("finish"));
    job.wait().ended_with(9).said("without an agent");
    assert_eq!(
        job.records_of("start").len(),
        2,
        "no worker was started again"
    );
}

#[test]
fn without_any_agent_a_failure_that_one_had_heard_of_is_not_forgotten() {
    let steps = [
        "@rank=0@ignore-term",
        "@rank=1@wait-file:fail",
        "@rank=1@exit:9",
        "hang",
    ];
    let options = [
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "0",
        "--restart-grace",
        "1s",
        "--stop-grace",
        "1s",
    ];
    let mut job = Launch::run(&options).worker(&steps).start();
    job.started(0, 2);
    job.touch("fail");
    job.eventually("an agent that has heard of it", |job| {
        job.journal_of("generation.stopping").pop()
    });
    no_agent_can_live(&job, |_| ());
    job.wait().ended_with(9).said("without an agent");
}
