// SPDX-License-Identifier: Apache-2.0
//! What the keeper does about the process beside the workers. It ends whatever is below its own process, so these tests
//! need one to themselves, as cargo-nextest gives them.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use steadfast_process::tree::Process;

use super::*;
use crate::cli::{Invocation, parse};
use crate::config::Host;
use crate::keeper::protocol::{StartRequest, StopRequest, WorkerRequest};

struct Scene {
    keeper: Keeper,
    directory: tempfile::TempDir,
}

/// A keeper without an agent; `None`, and said, where the process has other tests in it.
fn scene() -> Option<Scene> {
    if std::env::var_os("NEXTEST_EXECUTION_MODE").is_none_or(|mode| mode != "process-per-test") {
        eprintln!("SKIPPED: this test wants a process of its own: run it with cargo nextest");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let bin = directory.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let mut program = File::create(bin.join("train")).unwrap();
    program.write_all(b"#!/bin/sh\n").unwrap();
    let executable = std::fs::Permissions::from_mode(0o755);
    program.set_permissions(executable).unwrap();
    let arguments = ["steadfast", "run", "--cgroup", "auto", "--", "train"].map(OsString::from);
    let host = Host::for_test(directory.path());
    let Ok(Invocation::Run(settings)) = parse(&host, &arguments) else {
        panic!("the command line is good");
    };
    nix::sys::prctl::set_child_subreaper(true).unwrap();
    let root = directory.path().join("runtime");
    let runtime_dir = RuntimeDir::create(&root, "job", "node").unwrap();
    let settings_file = memory_file::create("settings").unwrap();
    let keeper = Keeper::new(&settings, runtime_dir, settings_file).unwrap();
    Some(Scene { keeper, directory })
}

impl Scene {
    fn start_companion(&mut self, launch: u64, script: &str) -> Option<i32> {
        let request = CompanionRequest {
            launch,
            program: "/bin/sh".into(),
            arguments: ["sh", "-c", script].map(OsString::from).to_vec(),
            environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
            directory: self.directory.path().to_owned(),
        };
        let path = self.directory.path().join("output");
        let output = File::options().append(true).create(true).open(path);
        self.keeper
            .start_companion(&request, Some(&output.unwrap().into()));
        self.companion()
    }

    fn companion(&self) -> Option<i32> {
        self.keeper.companion.pid().map(Pid::as_raw)
    }

    fn start_workers(&mut self, generation: u64) {
        // With a child in a session of its own: what is looked for among all descendants.
        let script = "setsid sleep 300 & sleep 300";
        let worker = WorkerRequest {
            rank: 0,
            local_rank: 0,
            program: "/bin/sh".into(),
            arguments: ["sh", "-c", script].map(OsString::from).to_vec(),
            environment: vec![],
            directory: self.directory.path().to_owned(),
            inherit_stdin: false,
            core_limit: None,
        };
        let request = StartRequest {
            generation,
            tenure: 0,
            workers: vec![worker],
        };
        self.keeper.start(&request, Vec::new(), Instant::now());
    }

    fn turn_until(&mut self, what: &str, done: impl Fn(&mut Keeper, Instant) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let now = Instant::now();
            self.keeper.reap(now);
            self.keeper.climb(now);
            self.keeper.companion.step(now);
            if done(&mut self.keeper, now) {
                return;
            }
            assert!(now < deadline, "{what}");
            let _a_short_sleep = nix::poll::poll(&mut [], 10_u16);
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.keeper.clean_up();
    }
}

#[test]
fn the_companion_outlives_the_workers_and_ends_with_the_job() {
    let Some(mut scene) = scene() else { return };
    let script = "echo $STEADFAST_KEEPER-$HOME; exec sleep 300";
    let companion = scene.start_companion(1, script).expect("it runs");
    assert_eq!(
        scene.start_companion(1, "exit 1"),
        Some(companion),
        "a repeated request does nothing"
    );
    assert_eq!(
        scene.start_companion(2, "exit 1"),
        Some(companion),
        "there is one at a time"
    );
    for generation in 1..=2 {
        scene.start_workers(generation);
        let stop = StopRequest {
            generation,
            first_signal: Signal::SIGTERM as i32,
            grace_ms: 0,
        };
        scene.keeper.stop(stop, Instant::now());
        scene.turn_until("the generation ends", |keeper, _| {
            keeper.stopped_generation == generation
        });
        let process = Process::read(companion);
        assert!(
            process.is_some_and(|process| !process.is_dead()),
            "the companion is none of the workers"
        );
        assert_eq!(scene.keeper.unkillable, []);
    }
    let output = std::fs::read_to_string(scene.directory.path().join("output")).unwrap();
    let token = scene.keeper.token.clone();
    assert!(output.contains(&token), "marked as ours: {output}");
    assert!(
        output.ends_with("-\n"),
        "nothing else is inherited: {output}"
    );
    assert_eq!(scene.keeper.welcome().companion.unwrap().pid, companion);

    scene.keeper.finish(3, Instant::now());
    scene.turn_until("the job ends", |keeper, now| keeper.is_over(now) == Some(3));
    assert_eq!(scene.companion(), None);
    assert_eq!(scene.start_companion(9, "exec sleep 300"), None);
}

#[test]
fn a_companion_that_does_not_listen_is_killed_and_one_that_cannot_be_started_is_told() {
    let Some(mut scene) = scene() else { return };
    let script = "trap '' TERM; echo ready; while :; do sleep 300; done";
    scene.start_companion(1, script).expect("it runs");
    let path = scene.directory.path().join("output");
    scene.turn_until("it ignores SIGTERM", |_, _| {
        std::fs::read_to_string(&path).unwrap().contains("ready")
    });
    scene
        .keeper
        .companion
        .stop(Duration::from_millis(50), Instant::now());
    scene.turn_until("it is killed", |keeper, now| keeper.companion.is_gone(now));
    let view = scene.keeper.companion.view().cloned().unwrap();
    assert!(matches!(
        view.exit,
        Some(steadfast_process::exit::Exit::Signal { signal: 9, .. })
    ));
    let request = CompanionRequest {
        launch: 2,
        program: "/nowhere/etcd".into(),
        arguments: vec!["etcd".into()],
        environment: vec![],
        directory: "/".into(),
    };
    scene.keeper.start_companion(&request, None);
    scene.turn_until("it is reaped", |keeper, now| keeper.companion.is_gone(now));
    let view = scene.keeper.companion.view().cloned().unwrap();
    let reason = view.spawn_error.unwrap_or_default();
    assert!(reason.contains("No such file"), "{reason}");
}
