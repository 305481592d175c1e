// SPDX-License-Identifier: Apache-2.0
//! The keeper as a dead man's switch: workers live while the lease holds or their steps are young, whatever the agent does.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use steadfast_tests::{DEADLINE, Job, Launch, Seen, is_alive, pause, process_state, send};

const LONG: Duration = Duration::from_mins(10);
/// Short enough to wait for, long enough for what a test does meanwhile.
const SHORT: Duration = Duration::from_secs(2);
/// Many times as long as the gap between two steps.
const WINDOW: Duration = Duration::from_secs(4);
const LEASE_ALONE: Duration = Duration::ZERO;

/// Steps for three times as long as the short lease, a word, and no more steps.
const STEPS_AND_THEN_NONE: [&str; 4] = [
    "wait-file:go",
    "steps:1:120:50",
    "record:made-all-steps",
    "hang",
];

/// Two workers, and an agent that may be silent for as long as it likes.
#[track_caller]
fn two_workers(steps: &[&str]) -> (Job, [i32; 2]) {
    let options = ["--nproc-per-node", "2", "--agent-watchdog", "10m"];
    let job = Launch::run(&options).worker(steps).start();
    job.eventually("the agent", Job::status);
    let workers = [job.worker(0, 0), job.worker(0, 1)];
    (job, workers)
}

#[track_caller]
fn wait_for_the_end_of(job: &Job, workers: [i32; 2]) {
    job.eventually("the end of the workers", |_| {
        (!workers.iter().any(|&worker| is_alive(worker))).then_some(())
    });
}

#[track_caller]
fn wait_for_both(job: &Job, event: &str) {
    job.eventually(event, |job| {
        (job.records_of(event).len() == 2).then_some(())
    });
}

#[track_caller]
fn wait_for_word_of_the_fence(job: &Job) {
    job.eventually("the word that the fence has passed", |job| {
        let told = job.journal_of("generation.fenced");
        told.iter()
            .any(|line| line["generation"] == 1)
            .then_some(())
    });
}

/// Ends what the job would do next, and checks that nothing was started where no lease holds.
#[track_caller]
fn nothing_was_started_again(mut job: Job) {
    let _has_ended = send(job.pid(), Signal::SIGTERM);
    job.wait();
    assert_eq!(job.records_of("start").len(), 2, "{}", job.describe());
}

#[test]
fn a_lease_that_nobody_renews_ends_every_process_and_without_one_nothing_is_started() {
    let (job, workers) = two_workers(&["session-child", "daemon", "record:ready", "hang"]);
    wait_for_both(&job, "ready");
    job.voice()
        .fence(Duration::from_millis(100), LEASE_ALONE, None);
    wait_for_the_end_of(&job, workers);
    wait_for_word_of_the_fence(&job);
    job.eventually("the end of what the workers had started", |job| {
        let of_the_job = job.processes();
        let relatives = job.records_of("relative");
        let lives = |record: &serde_json::Value| {
            of_the_job
                .iter()
                .any(|process| record["pid"] == process.pid)
        };
        (!relatives.iter().any(lives)).then_some(())
    });
    nothing_was_started_again(job);
}

#[test]
fn a_lease_that_is_renewed_in_time_ends_nobody() {
    let (mut job, _) = two_workers(&["wait-file:go", "exit:0"]);
    let voice = job.voice();
    voice.fence(SHORT, LEASE_ALONE, None);
    voice.fence(LONG, LEASE_ALONE, None);
    pause(SHORT);
    job.touch("go");
    job.wait().ended_with(0);
    assert!(job.journal_of("generation.fenced").is_empty());
}

#[test]
fn a_step_that_the_agent_tells_of_carries_the_workers_past_the_lease_until_it_is_too_old() {
    let (job, workers) = two_workers(&["wait-file:go", "sleep:2500", "record:lived-on", "hang"]);
    let seen = Seen {
        generation: 1,
        ago: Duration::ZERO,
        step: 5,
        local_ranks: &[0, 1],
    };
    job.voice().fence(SHORT, WINDOW, Some(seen));
    job.touch("go");
    wait_for_both(&job, "lived-on");
    wait_for_the_end_of(&job, workers);
    nothing_was_started_again(job);
}

#[test]
fn an_agent_that_hangs_is_not_needed_for_steps_to_be_seen_nor_for_their_absence() {
    let (job, workers) = two_workers(&STEPS_AND_THEN_NONE);
    let agent = job.eventually("the agent", Job::agent);
    job.voice().fence(SHORT, WINDOW, None);
    assert!(send(agent, Signal::SIGSTOP));
    job.touch("go");
    wait_for_both(&job, "made-all-steps");
    wait_for_the_end_of(&job, workers);
    assert_eq!(process_state(agent), Some('T'), "it had no part in it");
    assert!(send(agent, Signal::SIGCONT));
    wait_for_word_of_the_fence(&job);
    nothing_was_started_again(job);
}

#[test]
fn steps_of_one_rank_are_no_witness_when_another_that_told_steps_makes_none() {
    let steps = ["wait-file:go", "@rank=0@steps:6:100000:50", "hang"];
    let (job, workers) = two_workers(&steps);
    let agent = job.eventually("the agent", Job::agent);
    let seen = Seen {
        generation: 1,
        ago: Duration::ZERO,
        step: 5,
        local_ranks: &[0, 1],
    };
    job.voice().fence(SHORT, WINDOW, Some(seen));
    assert!(send(agent, Signal::SIGSTOP));
    job.touch("go");
    wait_for_the_end_of(&job, workers);
    assert!(send(agent, Signal::SIGCONT));
    nothing_was_started_again(job);
}

#[test]
fn agents_that_crash_again_and_again_neither_end_training_nor_leave_it_behind() {
    let (mut job, workers) = two_workers(&STEPS_AND_THEN_NONE);
    job.voice().fence(SHORT, WINDOW, None);
    job.touch("go");
    let deadline = Instant::now() + DEADLINE;
    while is_alive(job.pid()) {
        assert!(Instant::now() < deadline, "{}", job.describe());
        job.kill_agent();
        pause(Duration::from_millis(1));
    }
    job.wait().ended_with(75).said("lease");
    assert_eq!(job.records_of("made-all-steps").len(), 2);
    assert!(!workers.iter().any(|&worker| is_alive(worker)));
    assert_eq!(job.records_of("start").len(), 2);
}

/// Stops the keeper until the lease has run out that it knows of.
#[track_caller]
fn away_for_too_long(job: &Job, meanwhile: impl FnOnce()) {
    job.voice().fence(SHORT, LEASE_ALONE, None);
    job.signal(Signal::SIGSTOP);
    job.eventually("the keeper to stand still", |job| {
        (process_state(job.pid()) == Some('T')).then_some(())
    });
    meanwhile();
    pause(SHORT + Duration::from_millis(100));
    job.signal(Signal::SIGCONT);
}

#[test]
fn a_keeper_that_was_away_finds_the_renewal_that_still_holds() {
    let (mut job, _) = two_workers(&["wait-file:go", "exit:0"]);
    let voice = job.voice();
    away_for_too_long(&job, || voice.fence(LONG, LEASE_ALONE, None));
    job.touch("go");
    job.wait().ended_with(0);
    assert!(job.journal_of("generation.fenced").is_empty());
}

#[test]
fn a_keeper_that_was_away_is_not_taken_in_by_a_renewal_that_is_out_of_date() {
    let (job, workers) = two_workers(&["hang"]);
    let voice = job.voice();
    away_for_too_long(&job, || {
        voice.fence(Duration::from_millis(100), LEASE_ALONE, None);
    });
    wait_for_the_end_of(&job, workers);
    wait_for_word_of_the_fence(&job);
    nothing_was_started_again(job);
}
