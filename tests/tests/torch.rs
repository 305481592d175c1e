// SPDX-License-Identifier: Apache-2.0
//! Real `PyTorch`, `DistributedDataParallel` on the CPU: as the toy job.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use steadfast_tests::{Nodes, Random, Requirement, Training, long_tests, python, send};

#[test]
fn torch_ddp_disturbed_ends_with_the_loss_of_an_undisturbed_run() {
    if !Requirement::Torch.met() {
        return;
    }
    let training = Training {
        script: "train_ddp.py",
        ranks: 2,
        steps: 40,
        step_time: "0.02",
        start_up: Duration::from_millis(2500),
    };
    let expected = training.undisturbed();
    let mut random = Random::new(9);
    for round in 0..if long_tests() { 20 } else { 3 } {
        assert_eq!(training.disturbed(&mut random), expected, "round {round}");
    }
}

/// A launcher inside the command: one torchrun on each node, which find each other through what the workers are given.
#[test]
fn torch_under_torchrun_on_two_nodes_is_restarted_as_a_whole() {
    if !Requirement::Torch.met() {
        return;
    }
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/train_ddp.py");
    let life = nodes.shared("life.jsonl");
    let checkpoints = nodes.shared("checkpoints");
    let logs = nodes.shared("torchrun");
    for node in 1..=2 {
        let launch = nodes.launch(node, &["--nnodes", "2"]).command(&[
            "--",
            python(),
            "-m",
            "torch.distributed.run",
            "--nproc_per_node",
            "1",
            // PyTorch 1.13 does not understand its own defaults of these with Python 3.11.
            "--redirects",
            "1",
            "--tee",
            "1",
            "--log_dir",
            logs.to_str().unwrap(),
            script.to_str().unwrap(),
            "--steps",
            "100",
            "--step-time",
            "0.05",
            "--checkpoint-every",
            "5",
            "--checkpoint-dir",
            checkpoints.to_str().unwrap(),
            "--json-log",
            life.to_str().unwrap(),
        ]);
        // The hosts have addresses, but no names that would lead to them.
        let job = launch.env("GLOO_SOCKET_IFNAME", "eth0").start();
        nodes.adopt(node, job);
    }
    nodes.reach(10);
    let victim = nodes.life().pid(1).unwrap();
    assert!(send(victim, Signal::SIGKILL));
    nodes.generation_after(1);
    nodes.all_end_with(0, &[1, 2]);
    let life = nodes.life();
    assert_eq!(life.last_step(), 100);
    assert!(life.is_sound().is_ok(), "{}", nodes.describe());
}
