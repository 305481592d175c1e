// SPDX-License-Identifier: Apache-2.0
//! Agent, supervisor and workers are killed at random moments of a job that saves all the time: what the store says is
//! committed is never lost, and nothing torn is resumed from.

#![expect(clippy::unwrap_used, reason = "this is test code")]

use std::fs;

use nix::sys::signal::Signal;
use steadfast_tests::{Nodes, Random, long_tests, send};

const TOY_RULE: &str = r"name = 'step-(?<step>\d+)\.toy'";

#[test]
fn kills_at_random_moments_lose_no_commit_and_nothing_torn_is_resumed_from() {
    let Some(nodes) = Nodes::new(1, 1) else {
        return;
    };
    let (kills, steps) = if long_tests() { (100, 4_000) } else { (5, 400) };
    let mut nodes = nodes.saving_every(20).with_steps(steps);
    let rule = nodes.shared("rule.toml");
    fs::write(&rule, TOY_RULE).unwrap();
    let directory = nodes.shared("checkpoints");
    fs::create_dir(&directory).unwrap();
    let options = [
        "--nnodes",
        "1",
        "--lease",
        "2s",
        "--max-restarts",
        "1000",
        "--keep",
        "3",
        "--checkpoint-dir",
        directory.to_str().unwrap(),
        "--checkpoint-layout",
        rule.to_str().unwrap(),
    ];
    nodes.start_all(&options);
    nodes.eventually("a commit", |nodes| (newest_commit(nodes) > 0).then_some(()));
    let mut random = Random::new(7);
    for kill in 0..kills {
        // A save is made each second.
        nodes.go_on(1 + random.below(60));
        if nodes.life().last_step() + 80 > steps {
            break;
        }
        disturb(&mut nodes, kill, &mut random, &options);
    }
    nodes.all_end_with(0, &[1]);
    nodes.trained_rightly(1);
}

/// Kills one of the three, each as often as the others, and looks where the training goes on.
fn disturb(nodes: &mut Nodes, kill: u64, random: &mut Random, options: &[&str]) {
    let generation = nodes.life().newest_generation_with_steps().unwrap();
    let committed = newest_commit(nodes);
    match kill % 3 {
        0 => {
            nodes.tell("the agent is killed");
            nodes.job(1).kill_agent();
            nodes.go_on(1 + random.below(10));
            return;
        }
        1 => {
            nodes.tell("the worker is killed");
            let worker = nodes.life().pid(0).unwrap();
            assert!(send(worker, Signal::SIGKILL));
        }
        _ => {
            nodes.tell("the supervisor is killed");
            nodes.job(1).signal(Signal::SIGKILL);
            nodes.start(1, options);
        }
    }
    let now = nodes.generation_after(generation);
    let chosen = nodes.job(1).journal_of("checkpoint.chosen");
    let step = chosen.last().map(|line| line["step"].as_u64().unwrap());
    let resumed = nodes.life().resumed_from(now);
    // The program looks by itself whether it is whole.
    assert_eq!(resumed, step, "{}", nodes.describe());
    assert!(
        resumed >= Some(committed),
        "step {committed} was committed; {}",
        nodes.describe()
    );
}

/// The newest step that the store says is committed; 0 for none.
fn newest_commit(nodes: &Nodes) -> u64 {
    let prefix = "/steadfast/job/checkpoints/";
    let keys = nodes.etcd.keys(prefix);
    let steps = keys.iter().filter_map(|key| {
        let step = key.strip_prefix(prefix)?;
        step.parse().ok()
    });
    steps.max().unwrap_or(0)
}
