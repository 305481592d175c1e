// SPDX-License-Identifier: Apache-2.0
//! The agent dies or hangs: the workers go on, and nothing is lost, done twice or forgotten.

use std::time::Duration;

use nix::sys::signal::Signal;
use steadfast_tests::{Job, Launch, Random, is_alive, numbered_lines, pause, send};

/// Attempt 0 fails when `fail` is there, attempt 1 ends when `finish` is there. No steps: they would refill the budget.
const FAIL_ONCE: [&str; 4] = [
    "@restart=0@wait-file:fail",
    "@rank=1,restart=0@exit:3",
    "@restart=0@hang",
    "wait-file:finish",
];

/// Every worker ran once in attempt 0 and once in attempt 1, never two of a rank at a time.
#[track_caller]
fn ran_exactly_twice(job: &Job, workers: usize) {
    assert!(job.records_of("overlap").is_empty(), "{}", job.describe());
    let starts = job.records_of("start");
    for attempt in 0..2 {
        let count = starts
            .iter()
            .filter(|start| start["restart_count"] == attempt)
            .count();
        assert_eq!(
            count,
            workers,
            "workers in attempt {attempt}; {}",
            job.describe()
        );
    }
    assert_eq!(starts.len(), 2 * workers, "{}", job.describe());
}

#[test]
fn killed_while_training_it_loses_no_line_and_no_worker() {
    const LINES: u64 = 900;
    let lines = format!("lines:{LINES}:2000");
    let mut job = Launch::run(&["--nproc-per-node", "2"])
        .worker(&[&lines, "wait-file:finish"])
        .start();
    job.started(0, 2);
    let mut agent = job.other_agent(0);
    for part in 1..=3 {
        let wanted = format!("line {} of rank 0\n", part * LINES / 5);
        job.eventually(&wanted, |job| {
            job.log(0, 0, "stdout").contains(&wanted).then_some(())
        });
        assert!(send(agent, Signal::SIGKILL));
        agent = job.other_agent(agent);
    }
    let status = job.status().unwrap();
    assert_eq!(status["agent_incarnation"], 4, "{status}");
    assert_eq!(status["generation"], 1, "{status}");
    job.touch("finish");
    job.wait().ended_with(0);
    for rank in 0..2 {
        assert_eq!(
            job.log(0, rank, "stdout"),
            numbered_lines(LINES, rank),
            "every line once, in order"
        );
    }
    assert_eq!(
        job.records_of("start").len(),
        2,
        "no worker was started again"
    );
    assert_eq!(job.journal_of("agent.replaced").len(), 3);
}

#[test]
fn killed_under_heavy_output_it_loses_no_byte_and_repeats_none() {
    const LINES: u64 = 60_000;
    let mut random = Random::new(11);
    for round in 0..3 {
        let lines = format!("lines:{LINES}:0");
        let options = ["--nproc-per-node", "2", "--console=false"];
        let mut job = Launch::run(&options)
            .worker(&["wait-file:go", &lines, "wait-file:finish"])
            .start();
        job.started(0, 2);
        let mut agent = job.other_agent(0);
        job.touch("go");
        for _ in 0..3 {
            pause(random.duration_below(Duration::from_millis(200)));
            assert!(send(agent, Signal::SIGKILL));
            agent = job.other_agent(agent);
        }
        job.touch("finish");
        job.wait().ended_with(0);
        for rank in 0..2 {
            let same = job.log(0, rank, "stdout") == numbered_lines(LINES, rank);
            assert!(
                same,
                "round {round}: the log of rank {rank} is not what it wrote"
            );
        }
    }
}

#[test]
fn killed_at_any_moment_of_a_restart_it_restarts_once_and_charges_once() {
    let mut random = Random::new(1);
    for round in 0..15 {
        let mut job = Launch::run(&["--nproc-per-node", "2", "--restart-grace", "1s"])
            .worker(&FAIL_ONCE)
            .start();
        job.started(0, 2);
        job.eventually("a running job", |job| {
            job.status().filter(|status| status["state"] == "running")
        });
        let delay = random.duration_below(Duration::from_millis(100));
        job.touch("fail");
        pause(delay);
        job.kill_agent();
        job.started(1, 2);
        let status = job.eventually("a status of generation 2", |job| {
            job.status().filter(|status| status["generation"] == 2)
        });
        assert_eq!(
            status["restarts_used"], 1,
            "round {round}, killed after {delay:?}: {status}"
        );
        job.touch("finish");
        job.wait().ended_with(0);
        ran_exactly_twice(&job, 2);
    }
}

#[test]
fn killed_again_and_again_during_a_restart_it_still_restarts_once() {
    let mut random = Random::new(2);
    for _ in 0..4 {
        let mut job = Launch::run(&["--nproc-per-node", "2", "--restart-grace", "1s"])
            .worker(&FAIL_ONCE)
            .start();
        job.started(0, 2);
        job.touch("fail");
        // No more than are answered at once: a crash loop is another test.
        for _ in 0..3 {
            pause(random.duration_below(Duration::from_millis(60)));
            job.kill_agent();
        }
        job.started(1, 2);
        job.touch("finish");
        job.wait().ended_with(0);
        ran_exactly_twice(&job, 2);
    }
}

#[test]
fn killed_at_any_moment_of_the_start_it_starts_every_worker_once() {
    let mut random = Random::new(3);
    for _ in 0..8 {
        let mut job = Launch::run(&["--nproc-per-node", "2"])
            .worker(&["wait-file:finish"])
            .start();
        job.eventually("the first agent", Job::agent);
        pause(random.duration_below(Duration::from_millis(80)));
        job.kill_agent();
        job.started(0, 2);
        job.touch("finish");
        job.wait().ended_with(0);
        assert_eq!(job.records_of("start").len(), 2, "{}", job.describe());
    }
}

#[test]
fn killed_at_any_moment_of_the_end_it_gives_the_right_code() {
    let mut random = Random::new(4);
    for round in 0..8 {
        let code = if round % 2 == 0 { 0 } else { 6 };
        let exit = format!("exit:{code}");
        let options = ["--nproc-per-node", "2", "--max-restarts", "0"];
        let mut job = Launch::run(&options)
            .worker(&["wait-file:finish", &exit])
            .start();
        job.started(0, 2);
        job.touch("finish");
        pause(random.duration_below(Duration::from_millis(80)));
        job.kill_agent();
        job.wait().ended_with(code);
        assert_eq!(job.records_of("start").len(), 2, "{}", job.describe());
    }
}

#[test]
fn killed_while_the_job_is_being_stopped_it_ends_the_job_as_it_would_have() {
    let mut random = Random::new(5);
    for _ in 0..5 {
        let options = ["--nproc-per-node", "2", "--stop-grace", "300ms"];
        let mut job = Launch::run(&options)
            .worker(&["@rank=0@ignore-term", "record:ready", "hang"])
            .start();
        job.eventually("both workers", |job| {
            (job.records_of("ready").len() == 2).then_some(())
        });
        job.signal(Signal::SIGTERM);
        pause(random.duration_below(Duration::from_millis(200)));
        job.kill_agent();
        job.wait().ended_with(143);
        assert_eq!(job.records_of("start").len(), 2, "{}", job.describe());
    }
}

#[test]
fn an_exit_that_happens_while_it_is_stopped_is_not_lost() {
    let mut job = Launch::run(&["--nproc-per-node", "2"])
        .worker(&FAIL_ONCE)
        .start();
    let worker = job.worker(0, 1);
    let agent = job.other_agent(0);
    assert!(send(agent, Signal::SIGSTOP));
    job.touch("fail");
    job.eventually("the end of rank 1", |_| (!is_alive(worker)).then_some(()));
    assert!(send(agent, Signal::SIGKILL));
    job.started(1, 2);
    job.touch("finish");
    job.wait().ended_with(0);
    ran_exactly_twice(&job, 2);
    let exits = job.journal_of("worker.exited");
    let failed = exits
        .iter()
        .filter(|exit| exit["local_rank"] == 1 && exit["generation"] == 1)
        .count();
    assert_eq!(failed, 1, "{exits:#?}");
}

#[test]
fn one_that_hangs_is_replaced_and_the_workers_go_on() {
    let options = [
        "--nproc-per-node",
        "2",
        "--agent-heartbeat",
        "100ms",
        "--agent-watchdog",
        "1s",
    ];
    let mut job = Launch::run(&options).worker(&["wait-file:finish"]).start();
    job.started(0, 2);
    let agent = job.other_agent(0);
    assert!(send(agent, Signal::SIGSTOP));
    job.other_agent(agent);
    assert!(job.stderr().contains("silent"), "{}", job.stderr());
    job.touch("finish");
    job.wait().ended_with(0);
    assert_eq!(
        job.records_of("start").len(),
        2,
        "no worker was started again"
    );
}

#[test]
fn killed_between_a_failure_and_its_explanation_it_is_still_explained() {
    // Rank 0 takes its time to end, so that the agent can be killed in between.
    let script = "trap 'sleep 1; exit 1' TERM; if [ $RANK = 1 ]; then \
        echo 'Traceback (most recent call last):' >&2; \
        echo '  File \"train.py\", line 7, in step' >&2; \
        echo 'ValueError: bad batch 17' >&2; exit 1; fi; \
        while true; do sleep 0.05; done";
    let options = ["--nproc-per-node", "2", "--max-restarts", "0"];
    let mut job = Launch::run(&options)
        .command(&["--", "/bin/sh", "-c", script])
        .start();
    job.eventually("the news of the failure", |job| {
        job.stderr().contains("exited with code 1").then_some(())
    });
    let agent = job.eventually("the agent", Job::agent);
    assert!(send(agent, Signal::SIGKILL));
    let outcome = job.wait();
    outcome.ended_with(1);
    assert!(
        outcome.stderr.contains("ValueError: bad batch"),
        "{outcome}"
    );
}

#[test]
fn killed_when_the_keeper_has_stopped_the_workers_it_loses_none_of_their_last_lines() {
    // Few enough to fit into the worker's pipe while there is nobody to read it.
    const LINES: u64 = 3000;
    let lines = format!("lines:{LINES}:0");
    let options = [
        "--nproc-per-node",
        "2",
        "--console=false",
        "--stop-grace",
        "5s",
    ];
    let mut job = Launch::run(&options)
        .worker(&["wait-file:go", &lines, "record:written", "hang"])
        .start();
    job.started(0, 2);
    let agent = job.eventually("an agent in charge", |job| {
        job.status().and_then(|_| job.agent())
    });
    assert!(send(agent, Signal::SIGSTOP));
    job.touch("go");
    job.eventually("all lines in the pipes", |job| {
        (job.records_of("written").len() == 2).then_some(())
    });
    let workers = [job.worker(0, 0), job.worker(0, 1)];
    // No agent answers, so the keeper stops the workers by itself.
    job.signal(Signal::SIGTERM);
    job.eventually("the end of the workers", |_| {
        (!workers.iter().any(|&worker| is_alive(worker))).then_some(())
    });
    assert!(send(agent, Signal::SIGKILL));
    job.wait().ended_with(143);
    for rank in 0..2 {
        let same = job.log(0, rank, "stdout") == numbered_lines(LINES, rank);
        assert!(same, "the log of rank {rank} is not what it wrote");
    }
}
