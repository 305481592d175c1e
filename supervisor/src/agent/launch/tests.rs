// SPDX-License-Identifier: Apache-2.0
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use steadfast_core::{Endpoint, Generation, Incarnation, PlanPhase, Rank};

use super::*;
use crate::cli::{Invocation, parse};
use crate::config::Host;

/// The settings that a command line gives on a machine where `python3` exists.
fn settings(arguments: &[&str]) -> Settings {
    let root = tempfile::tempdir().unwrap();
    let bin = root.path().join("bin");
    fs::create_dir(&bin).unwrap();
    for program in ["python3", "train", "torchrun", "ft_launcher"] {
        fs::write(bin.join(program), "#!/bin/sh\n").unwrap();
        fs::set_permissions(bin.join(program), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(root.path().join("train.py"), "").unwrap();
    let arguments: Vec<OsString> = std::iter::once("steadfast")
        .chain(arguments.iter().copied())
        .map(OsString::from)
        .collect();
    match parse(&Host::for_test(root.path()), &arguments).unwrap() {
        Invocation::Run(settings) => *settings,
        other => panic!("{other:?}"),
    }
}

fn plan(generation: u64, slots: u32) -> Plan {
    let member = |node: &str, base_rank| PlanMember {
        node: node.into(),
        incarnation: Incarnation(1),
        slots,
        base_rank: Rank(base_rank),
        boot: String::new(),
        machine: String::new(),
        location: steadfast_core::Location::default(),
        clears: false,
    };
    Plan {
        version: 1,
        generation: Generation(generation),
        phase: PlanPhase::Run,
        members: vec![member("first", 0), member("host7", slots)],
        world_size: 2 * slots,
        master: Endpoint {
            address: "first.example".to_owned(),
            port: 4242,
        },
        restart_count: generation - 1,
        witness_ms: 0,
        resume: None,
        save: None,
        last_save: None,
        committed: None,
        why: String::new(),
        extra: BTreeMap::new(),
    }
}

fn start(settings: &Settings, plan: &Plan, inherited: Inherited<'_>) -> Vec<WorkerRequest> {
    let place = place(plan, &settings.node).unwrap();
    workers(
        settings,
        plan,
        place,
        &Places {
            control_socket: "/run/control.sock".into(),
            hook: Some(Hook::new("/run/job".as_ref())),
            resume: ResumePoint::default(),
        },
        inherited,
    )
}

fn variable(worker: &WorkerRequest, name: &str) -> Option<String> {
    let found = worker
        .environment
        .iter()
        .filter(|(each, _)| each == name)
        .collect::<Vec<_>>();
    assert!(found.len() <= 1, "{name} is set twice");
    found
        .first()
        .map(|(_, value)| value.to_string_lossy().into_owned())
}

#[test]
fn a_worker_finds_what_torchrun_would_tell_it() {
    let settings = settings(&[
        "torchrun",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "4",
        "--rdzv-id",
        "id7",
        "--role",
        "trainer",
        "--log-dir",
        "/logs",
        "train.py",
    ]);
    let started = start(&settings, &plan(3, 2), &|_| None);
    let mut text = String::new();
    for (name, value) in &started[1].environment {
        writeln!(text, "{name}={}", value.to_string_lossy()).unwrap();
    }
    let mut filters = insta::Settings::clone_current();
    filters.add_filter("id7_[A-Za-z0-9_]{8}", "id7_RANDOM");
    filters.add_filter("JOB_ID=id7-[a-z0-9]{6}", "JOB_ID=id7-RANDOM");
    filters.bind(|| {
        insta::assert_snapshot!(text, @r"
    RANK=3
    LOCAL_RANK=1
    GROUP_RANK=1
    ROLE_RANK=3
    LOCAL_WORLD_SIZE=2
    WORLD_SIZE=4
    GROUP_WORLD_SIZE=2
    ROLE_WORLD_SIZE=4
    MASTER_PORT=4242
    TORCHELASTIC_RESTART_COUNT=2
    TORCHELASTIC_MAX_RESTARTS=4
    STEADFAST_GENERATION=3
    ROLE_NAME=trainer
    MASTER_ADDR=first.example
    TORCHELASTIC_RUN_ID=id7
    TORCHELASTIC_USE_AGENT_STORE=False
    TORCHELASTIC_ERROR_FILE=/logs/id7_RANDOM/attempt_2/1/error.json
    TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT
    STEADFAST_JOB_ID=id7-RANDOM
    STEADFAST_NODE=host7
    STEADFAST_CONTROL=/run/control.sock
    STEADFAST_PAGES=/run/job/pages/3/1
    PYTHONPATH=/run/job/python/site:/run/job/python/lib
    TORCH_NCCL_ASYNC_ERROR_HANDLING=1
    PYTHONUNBUFFERED=1
    OMP_NUM_THREADS=1
    ");
    });
}

#[test]
fn what_the_user_has_set_is_left_alone() {
    let settings = settings(&["run", "--nproc-per-node", "2", "--", "train"]);
    let given = |name: &str| {
        let own = [
            "OMP_NUM_THREADS",
            "PYTHONUNBUFFERED",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        ];
        own.contains(&name).then(|| OsString::from("mine"))
    };
    let started = start(&settings, &plan(1, 2), &given);
    for name in [
        "OMP_NUM_THREADS",
        "PYTHONUNBUFFERED",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    ] {
        assert_eq!(
            variable(&started[0], name),
            None,
            "{name} comes from the keeper as it is"
        );
    }
    assert!(!limits_threads(&settings, &given));
}

#[test]
fn a_launcher_inside_the_command_does_not_restart_by_itself() {
    let settings = settings(&["run", "--", "train"]);
    let started = start(&settings, &plan(1, 1), &|_| None);
    assert_eq!(
        variable(&started[0], "PET_MAX_RESTARTS").as_deref(),
        Some("0")
    );
}

#[test]
fn a_launcher_inside_the_command_meets_where_the_generation_does() {
    let on_two = |command: &str| {
        let line = format!("run --nnodes 2 --job j --coord etcd://127.0.0.1 -- {command} train.py");
        let settings = settings(&line.split(' ').collect::<Vec<_>>());
        let started = start(&settings, &plan(3, 1), &|_| None);
        let variables = started[0].environment.iter();
        let inner: Vec<String> = variables
            .filter(|(name, _)| name.starts_with("PET_"))
            .map(|(name, value)| format!("{name}={}", value.to_string_lossy()))
            .collect();
        inner.join("\n")
    };
    let torchrun = on_two("torchrun --nproc-per-node 8");
    insta::assert_snapshot!(torchrun, @"
    PET_MAX_RESTARTS=0
    PET_NNODES=2
    PET_NODE_RANK=1
    PET_MASTER_ADDR=first.example
    PET_MASTER_PORT=4242
    PET_STANDALONE=0
    PET_RDZV_BACKEND=static
    PET_RDZV_ENDPOINT=
    ");
    assert_eq!(torchrun, on_two("train"), "a script may start torchrun");
    insta::assert_snapshot!(on_two("ft_launcher"), @"
    PET_MAX_RESTARTS=0
    PET_NNODES=2
    PET_NODE_RANK=1
    PET_MASTER_ADDR=first.example
    PET_MASTER_PORT=4242
    PET_STANDALONE=0
    PET_RDZV_BACKEND=c10d
    PET_RDZV_ENDPOINT=first.example:4242
    PET_RDZV_ID=j
    PET_RDZV_CONF=is_host=0
    ");
}

#[test]
fn a_virtual_local_rank_sees_its_own_gpu_as_the_only_one() {
    let settings = settings(&[
        "torchrun",
        "--nproc-per-node",
        "2",
        "--virtual-local-rank",
        "train.py",
    ]);
    let given =
        |name: &str| (name == "CUDA_VISIBLE_DEVICES").then(|| OsString::from("GPU-a, GPU-b"));
    let started = start(&settings, &plan(1, 2), &given);
    for (worker, device) in started.iter().zip(["GPU-a", "GPU-b"]) {
        assert_eq!(variable(worker, "LOCAL_RANK").as_deref(), Some("0"));
        assert_eq!(
            variable(worker, "CUDA_VISIBLE_DEVICES").as_deref(),
            Some(device)
        );
    }
    let started = start(&settings, &plan(1, 2), &|_| None);
    assert_eq!(
        variable(&started[1], "CUDA_VISIBLE_DEVICES").as_deref(),
        Some("1")
    );
}

#[test]
fn a_plan_without_this_node_gives_it_no_place() {
    assert!(place(&plan(1, 1), "elsewhere").is_none());
}

#[test]
fn without_the_hook_python_is_left_alone_but_pages_have_a_place() {
    let path = |name: &str| (name == "PYTHONPATH").then(|| OsString::from("/mine"));
    let with = start(&settings(&["run", "--", "train"]), &plan(1, 1), &path);
    assert_eq!(
        variable(&with[0], "PYTHONPATH").unwrap(),
        "/run/job/python/site:/run/job/python/lib:/mine"
    );
    assert_eq!(variable(&with[0], "STEADFAST_HOOK"), None);
    for arguments in [
        &["run", "--no-hook", "--", "train"][..],
        &["run", "--hook=false", "--", "train"],
        &["run", "--hook", "--no-hook", "--", "train"],
        &["torchrun", "--no-hook", "train.py"],
    ] {
        let without = start(&settings(arguments), &plan(1, 1), &path);
        assert_eq!(variable(&without[0], "PYTHONPATH"), None, "{arguments:?}");
        assert_eq!(variable(&without[0], "STEADFAST_HOOK").unwrap(), "0");
        assert!(variable(&without[0], "STEADFAST_PAGES").is_some());
    }
    let again = ["run", "--no-hook", "--hook", "--", "train"];
    let again = start(&settings(&again), &plan(1, 1), &path);
    assert!(variable(&again[0], "PYTHONPATH").is_some());
}
