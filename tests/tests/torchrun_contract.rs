// SPDX-License-Identifier: Apache-2.0
//! What a script that was written for torchrun relies on: its environment, its restarts, its signals.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use serde_json::Value;
use steadfast_tests::{Job, Launch};

/// A variable of each worker that was started, ordered by rank.
fn variable(starts: &[Value], name: &str) -> Vec<String> {
    let mut found: Vec<(u64, String)> = starts
        .iter()
        .map(|start| {
            let value = start["environment"][name].as_str().unwrap_or("<unset>");
            (start["rank"].as_u64().unwrap_or(u64::MAX), value.to_owned())
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, value)| value).collect()
}

/// A variable that all workers have alike.
#[track_caller]
fn common(starts: &[Value], name: &str) -> String {
    let values: BTreeSet<String> = variable(starts, name).into_iter().collect();
    assert_eq!(
        values.len(),
        1,
        "{name} is not the same everywhere: {values:?}"
    );
    values.into_iter().next().unwrap_or_default()
}

#[test]
fn every_worker_gets_the_environment_that_torchrun_gives() {
    let mut job = Launch::torchrun(&[
        "--nproc-per-node",
        "4",
        "--max-restarts",
        "2",
        "--rdzv-id",
        "run-7",
        "--role",
        "trainer",
    ])
    .worker(&["meet"])
    .start();
    job.wait().ended_with(0);
    let starts = job.started(0, 4);
    let ranks = ["0", "1", "2", "3"];
    for name in ["RANK", "LOCAL_RANK", "ROLE_RANK"] {
        assert_eq!(variable(&starts, name), ranks, "{name}");
    }
    for (name, value) in [
        ("WORLD_SIZE", "4"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("ROLE_WORLD_SIZE", "4"),
        ("GROUP_RANK", "0"),
        ("GROUP_WORLD_SIZE", "1"),
        ("ROLE_NAME", "trainer"),
        ("TORCHELASTIC_RESTART_COUNT", "0"),
        ("TORCHELASTIC_MAX_RESTARTS", "2"),
        ("TORCHELASTIC_RUN_ID", "run-7"),
        ("TORCHELASTIC_USE_AGENT_STORE", "False"),
        (
            "TORCHELASTIC_SIGNALS_TO_HANDLE",
            "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        ),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        ("OMP_NUM_THREADS", "1"),
        ("STEADFAST_GENERATION", "1"),
        ("STEADFAST_NODE", "node"),
        ("STEADFAST_JOB_ID", "job"),
    ] {
        assert_eq!(common(&starts, name), value, "{name}");
    }
    let run_dir = job.run_dir();
    let error_files: Vec<String> = (0..4)
        .map(|rank| {
            run_dir
                .join(format!("attempt_0/{rank}/error.json"))
                .display()
                .to_string()
        })
        .collect();
    assert_eq!(variable(&starts, "TORCHELASTIC_ERROR_FILE"), error_files);
    let met = &job.records_of("met")[0];
    assert_eq!(met["ranks"], serde_json::json!([1, 2, 3]));
    assert_eq!(met["port"].to_string(), common(&starts, "MASTER_PORT"));
    assert!(!common(&starts, "MASTER_ADDR").is_empty());
}

#[test]
fn what_the_user_has_set_is_not_overruled() {
    let mut job = Launch::torchrun(&["--nproc-per-node", "2"])
        .worker(&[])
        .env("OMP_NUM_THREADS", "5")
        .env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
        .env("MY_OWN", "value")
        .start();
    job.wait().ended_with(0);
    let starts = job.started(0, 2);
    assert_eq!(common(&starts, "OMP_NUM_THREADS"), "5");
    assert_eq!(common(&starts, "TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
    assert_eq!(common(&starts, "MY_OWN"), "value");
}

#[test]
fn every_attempt_has_one_number_and_a_port_of_its_own() {
    let options = ["--nproc-per-node", "3", "--max-restarts", "2"];
    let steps = [
        "meet",
        "@rank=1,restart=0@exit:3",
        "@rank=2,restart=1@exit:4",
        "@restart<2@hang",
    ];
    let mut job = Launch::torchrun(&options).worker(&steps).start();
    job.wait().ended_with(0);
    let mut ports = BTreeSet::new();
    for attempt in 0..3 {
        let starts = job.started(attempt, 3);
        assert_eq!(
            common(&starts, "TORCHELASTIC_RESTART_COUNT"),
            attempt.to_string()
        );
        assert_eq!(
            common(&starts, "STEADFAST_GENERATION"),
            (attempt + 1).to_string()
        );
        ports.insert(common(&starts, "MASTER_PORT"));
    }
    assert_eq!(ports.len(), 3, "{ports:?}");
    assert_eq!(
        job.records_of("met").len(),
        3,
        "rank 0 could bind the port each time"
    );
}

#[test]
fn max_restarts_is_0_unless_given_and_failures_end_with_1() {
    let mut job = Launch::torchrun(&["--nproc-per-node", "2"])
        .worker(&["@rank=1@exit:42", "hang"])
        .start();
    job.wait()
        .ended_with(1)
        .said("Root Cause (first observed failure)")
        .said("exitcode  : 42");
    assert_eq!(job.journal_of("generation.starting").len(), 1);
    let mut job = Launch::torchrun(&[]).worker(&["raise:11"]).start();
    job.wait()
        .ended_with(1)
        .said("Signal 11 (SIGSEGV) received by PID");
    let mut job = Launch::torchrun(&["--exit-code", "program=pass"])
        .worker(&["exit:42"])
        .start();
    job.wait().ended_with(42);
}

#[test]
fn a_handled_signal_reaches_the_workers_and_ends_with_1() {
    let mut job = Launch::torchrun(&["--nproc-per-node", "2"])
        .worker(&["on-term:1", "record:ready", "hang"])
        .start();
    job.eventually("the workers", |job| {
        (job.records_of("ready").len() == 2).then_some(())
    });
    job.signal(Signal::SIGTERM);
    job.wait().ended_with(1);
    let seen = job.records_of("signal");
    assert_eq!(
        seen.iter()
            .filter(|record| record["signal"] == "SIGTERM")
            .count(),
        2,
        "{seen:?}"
    );
}

#[test]
fn other_signals_can_be_named() {
    let mut job = Launch::torchrun(&["--signals-to-handle", "SIGTERM,SIGUSR2"])
        .worker(&["record:ready", "hang"])
        .start();
    job.eventually("the worker", |job| {
        (job.records_of("ready").len() == 1).then_some(())
    });
    job.eventually("the agent", Job::status);
    job.signal(Signal::SIGUSR2);
    job.wait().ended_with(1);
}

#[test]
fn workers_die_with_the_launcher() {
    let mut job = Launch::torchrun(&["--nproc-per-node", "3"])
        .worker(&["session-child", "hang"])
        .start();
    job.started(0, 3);
    job.eventually("their children", |job| {
        (job.records_of("relative").len() == 3).then_some(())
    });
    job.signal(Signal::SIGKILL);
    job.wait_leaving_traces();
    job.eventually("the end of everything", |job| {
        job.left_behind().is_empty().then_some(())
    });
}

#[test]
fn standalone_and_one_node_need_nothing_else() {
    for options in [
        &["--standalone"][..],
        &["--nnodes", "1:1"],
        &[
            "--nnodes=1",
            "--rdzv-backend=c10d",
            "--rdzv_endpoint=localhost:0",
        ],
    ] {
        let mut job = Launch::torchrun(&[options, &["--nproc_per_node=2"]].concat())
            .worker(&["meet"])
            .start();
        job.wait().ended_with(0);
        assert_eq!(job.records_of("met").len(), 1, "{options:?}");
    }
    let mut job = Launch::torchrun(&["--nnodes", "2"]).worker(&[]).start();
    job.wait().ended_with(78).said("--nnodes");
}

#[test]
fn two_jobs_with_standalone_do_not_meet() {
    let mut first = Launch::torchrun(&["--standalone", "--nproc-per-node", "2"])
        .worker(&["meet", "wait-file:finish"])
        .start();
    let mut second = Launch::torchrun(&["--standalone", "--nproc-per-node", "2"])
        .worker(&["meet", "wait-file:finish"])
        .named("other")
        .beside(&first)
        .start();
    let ids = [
        common(&first.started(0, 2), "TORCHELASTIC_RUN_ID"),
        common(&second.started(0, 2), "TORCHELASTIC_RUN_ID"),
    ];
    assert_ne!(ids[0], ids[1]);
    for job in [&mut first, &mut second] {
        job.touch("finish");
        job.wait().ended_with(0);
        assert_eq!(job.records_of("met").len(), 1);
    }
}

#[test]
fn pet_variables_stand_for_flags() {
    let mut job = Launch::torchrun(&["--max-restarts", "1"])
        .worker(&["@restart=0@exit:1"])
        .env("PET_NPROC_PER_NODE", "3")
        .env("PET_MAX_RESTARTS", "0")
        .env("PET_RDZV_ID", "from-the-environment")
        .start();
    job.wait().ended_with(0);
    let starts = job.started(1, 3);
    assert_eq!(common(&starts, "WORLD_SIZE"), "3");
    assert_eq!(
        common(&starts, "TORCHELASTIC_MAX_RESTARTS"),
        "1",
        "a flag goes before its variable"
    );
    assert_eq!(
        common(&starts, "TORCHELASTIC_RUN_ID"),
        "from-the-environment"
    );
}

#[test]
fn a_fixed_address_is_taken_literally() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .unwrap()
        .port()
        .to_string();
    let endpoint = format!("127.0.0.1:{port}");
    let by_parts = [
        "--nproc-per-node",
        "2",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        &port,
    ];
    let by_endpoint = ["--nproc-per-node", "2", "--rdzv-endpoint", &endpoint];
    for options in [&by_parts[..], &by_endpoint] {
        let mut job = Launch::torchrun(&[options, &["--max-restarts", "1"]].concat())
            .worker(&["meet", "@restart=0@exit:1"])
            .start();
        job.wait().ended_with(0);
        for attempt in 0..2 {
            let starts = job.started(attempt, 2);
            assert_eq!(
                (
                    common(&starts, "MASTER_ADDR"),
                    common(&starts, "MASTER_PORT")
                ),
                ("127.0.0.1".to_owned(), port.clone())
            );
        }
    }
}
