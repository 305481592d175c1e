// SPDX-License-Identifier: Apache-2.0
//! `steadfast status`, `stop` and `restart`, from outside the job.

use serde_json::Value;
use steadfast_tests::{Job, Launch};

/// A job whose workers wait for `finish`.
#[track_caller]
fn waiting(name: &str, beside: Option<&Job>) -> Job {
    let launch = Launch::run(&["--nproc-per-node", "2"])
        .worker(&["steps:1:7:0", "record:ready", "wait-file:finish"])
        .named(name);
    let job = match beside {
        Some(other) => launch.beside(other),
        None => launch,
    }
    .start();
    job.eventually("the workers", |job| {
        (job.records_of("ready").len() == 2).then_some(())
    });
    job.eventually("step 7", |job| (job.status()?["step"] == 7).then_some(()));
    job
}

#[track_caller]
fn finish(mut job: Job) {
    job.touch("finish");
    job.wait().ended_with(0);
}

#[test]
fn status_tells_a_person_and_a_script() {
    let job = waiting("job", None);
    let text = job.ask("status", &[]);
    text.ended_with(0);
    let shown = text.stdout_text();
    let workers = [job.worker(0, 0), job.worker(0, 1)];
    for word in [
        "job on node",
        "running",
        "generation 1",
        "step 7",
        "0 of 3 restarts used",
    ] {
        assert!(shown.contains(word), "{word} in {shown}");
    }
    assert!(
        workers.iter().all(|pid| shown.contains(&pid.to_string())),
        "{shown}"
    );
    let status = job.status().unwrap();
    for (field, value) in [
        ("job", Value::from("job")),
        ("node", Value::from("node")),
        ("generation", Value::from(1)),
        ("world_size", Value::from(2)),
        ("restarts_used", Value::from(0)),
        ("restarts_allowed", Value::from(3)),
        ("step", Value::from(7)),
        ("keeper_pid", Value::from(job.pid())),
        ("agent_pid", Value::from(job.agent().unwrap())),
        ("agent_incarnation", Value::from(1)),
        ("log_dir", Value::from(job.run_dir().to_str().unwrap())),
    ] {
        assert_eq!(status[field], value, "{field} in {status}");
    }
    for (rank, pid) in workers.into_iter().enumerate() {
        assert_eq!(status["workers"][rank]["pid"], pid, "{status}");
        assert_eq!(status["workers"][rank]["state"], "running", "{status}");
    }
    finish(job);
}

#[test]
fn status_shows_the_last_fault() {
    let steps = [
        "@rank=1,restart=0@err:ValueError - the batch is bad",
        "@rank=1,restart=0@exit:3",
        "wait-file:finish",
    ];
    let job = Launch::run(&["--nproc-per-node", "2"])
        .worker(&steps)
        .start();
    job.started(1, 2);
    let fault = job.eventually("the last fault", |job| {
        let status = job.status()?;
        (status["generation"] == 2 && status["last_fault"].is_object())
            .then(|| status["last_fault"].clone())
    });
    assert_eq!(
        (&fault["generation"], &fault["rank"], &fault["exit_code"]),
        (&1.into(), &1.into(), &3.into()),
        "{fault}"
    );
    finish(job);
}

#[test]
fn stop_ends_the_job_in_good_order_and_says_what_happens() {
    let mut job = Launch::run(&["--nproc-per-node", "2"])
        .worker(&["on-term:0", "record:ready", "hang"])
        .start();
    job.eventually("the workers", |job| {
        (job.records_of("ready").len() == 2).then_some(())
    });
    job.eventually("the agent", Job::status);
    let stop = job.ask("stop", &["--job", "job"]);
    stop.ended_with(0);
    assert!(stop.stdout_text().contains("SIGTERM"), "{stop}");
    job.wait().ended_with(0);
    assert_eq!(job.records_of("signal").len(), 2);

    let mut job = waiting("job", None);
    job.ask("stop", &[]).ended_with(0);
    job.wait().ended_with(143);
    assert_eq!(job.journal_of("generation.starting").len(), 1);
}

#[test]
fn restart_starts_a_generation_and_is_not_charged() {
    let job = waiting("job", None);
    for attempt in 1..=5 {
        let restart = job.ask("restart", &["--json"]);
        restart.ended_with(0);
        let reply: Value = serde_json::from_slice(&restart.stdout).unwrap();
        assert_eq!(reply["job"], "job");
        job.started(attempt, 2);
        let status = job.eventually("the new generation", |job| {
            job.status().filter(|status| {
                status["generation"] == attempt + 1 && status["state"] == "running"
            })
        });
        assert_eq!(status["restarts_used"], 0, "{status}");
    }
    assert!(job.records_of("overlap").is_empty());
    finish(job);
}

#[test]
fn restart_asked_for_again_and_again_at_once_does_no_harm() {
    let job = waiting("job", None);
    for _ in 0..8 {
        job.ask("restart", &[]).ended_with(0);
    }
    let generation = job.eventually("a generation that runs", |job| {
        let status = job.status()?;
        (status["state"] == "running" && status["generation"] != 1)
            .then(|| status["generation"].clone())
    });
    let attempt = generation.as_u64().unwrap() - 1;
    job.started(attempt, 2);
    assert!(job.records_of("overlap").is_empty());
    finish(job);
}

#[test]
fn stop_asked_for_during_a_restart_ends_the_job() {
    let mut job = waiting("job", None);
    job.ask("restart", &[]).ended_with(0);
    job.ask("stop", &[]).ended_with(0);
    job.wait().ended_with(143);
    assert!(job.records_of("overlap").is_empty());
}

#[test]
fn several_jobs_are_told_apart_by_name() {
    let alpha = waiting("alpha", None);
    let beta = waiting("beta", Some(&alpha));
    let both = alpha.ask("status", &["--json"]);
    let reply: Value = serde_json::from_slice(&both.ended_with(0).stdout).unwrap();
    let names: Vec<&Value> = reply["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| &job["job"])
        .collect();
    assert_eq!(names, ["alpha", "beta"]);
    let one: Value =
        serde_json::from_slice(&alpha.ask("status", &["--json", "--job", "beta"]).stdout).unwrap();
    assert_eq!(one["jobs"].as_array().map(Vec::len), Some(1));
    assert_eq!(one["jobs"][0]["job"], "beta");
    for command in ["stop", "restart"] {
        let unclear = alpha.ask(command, &[]);
        assert_ne!(unclear.status.code(), Some(0), "{unclear}");
        unclear.said("alpha").said("beta").said("--job");
    }
    let mut beta = beta;
    alpha.ask("stop", &["--job", "beta"]).ended_with(0);
    beta.wait().ended_with(143);
    let status = alpha.status().unwrap();
    assert_eq!(
        (&status["job"], &status["state"]),
        (&"alpha".into(), &"running".into())
    );
    finish(alpha);
}

#[test]
fn a_second_job_of_the_same_name_is_refused_and_disturbs_nothing() {
    let job = waiting("job", None);
    let mut second = Launch::run(&[]).worker(&["exit:0"]).beside(&job).start();
    let refused = second.wait_leaving_traces();
    refused
        .ended_with(78)
        .said("already running")
        .said("steadfast stop --job job");
    assert!(second.records().is_empty(), "nothing was started");
    assert_eq!(job.status().unwrap()["state"], "running");
    finish(job);
}

#[test]
fn without_a_job_there_is_an_answer() {
    let mut job = Launch::run(&[]).worker(&[]).start();
    job.wait().ended_with(0);
    let status = job.ask("status", &["--json"]);
    let reply: Value = serde_json::from_slice(&status.ended_with(0).stdout).unwrap();
    assert_eq!(reply["jobs"], Value::Array(Vec::new()));
    job.ask("status", &[]).ended_with(0);
    for command in ["stop", "restart"] {
        let nothing = job.ask(command, &[]);
        assert_ne!(nothing.status.code(), Some(0), "{nothing}");
        nothing.said("no job");
    }
    let unknown = job.ask("status", &["--job", "another"]);
    assert_ne!(unknown.status.code(), Some(0), "{unknown}");
    unknown.said("another");
}

#[test]
fn the_control_socket_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let job = waiting("job", None);
    for path in [
        job.runtime_root().to_owned(),
        job.runtime_root().join("job@node"),
    ] {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}", path.display());
    }
    finish(job);
}
