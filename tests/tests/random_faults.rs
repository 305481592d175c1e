// SPDX-License-Identifier: Apache-2.0
//! Six nodes and three members of etcd under faults of random kinds at random moments.

use std::time::Duration;

use nix::sys::signal::Signal;
use steadfast_tests::{Direction, Nodes, Random, long_tests, pause, send};

const OPTIONS: [&str; 10] = [
    "--nnodes",
    "2:4",
    "--spares",
    "2",
    "--shrink-after",
    "5s",
    "--lease",
    "5s",
    "--max-restarts",
    "20",
];
/// A fault that is undone again lasts less than this: some end before any lease does, some long after.
const LONGEST: Duration = Duration::from_secs(9);

#[test]
fn random_faults_leave_the_result_right_and_every_rank_alone_for_minutes() {
    if !long_tests() {
        return;
    }
    let mut random = Random::new(42);
    for round in 0..2 {
        let Some(nodes) = Nodes::new(6, 3) else {
            return;
        };
        let mut nodes = nodes.with_steps(1_200);
        nodes.start_all(&OPTIONS);
        nodes.tell(&format!("round {round}"));
        nodes.reach(10);
        while nodes.life().last_step() < 900 {
            disturb(&mut nodes, &mut random);
            let more = 1 + random.below(40);
            nodes.go_on(more);
        }
        nodes.all_end_with(0, &[1, 2, 3, 4, 5, 6]);
        let ranks = nodes.places().len().try_into().unwrap();
        nodes.trained_rightly(ranks);
    }
}

/// One fault, undone in the end. The keeper is not paused: on a node where nothing can be killed, nothing is promised.
fn disturb(nodes: &mut Nodes, random: &mut Random) {
    let node = random.one_of(&[1, 2, 3, 4, 5, 6]);
    let member = random.one_of(&[0, 1, 2]);
    let direction = random.one_of(&[Direction::Incoming, Direction::Outgoing, Direction::Both]);
    let duration = random.duration_below(LONGEST);
    let told = |what: &str| nodes.tell(&format!("{what}, for {duration:?}"));
    match random.below(9) {
        0 => {
            told(&format!("the keeper of node {node} is killed"));
            nodes.job(node).signal(Signal::SIGKILL);
            pause(duration);
            nodes.start(node, &OPTIONS);
        }
        1 => {
            told(&format!("{direction:?} packets of node {node} are dropped"));
            nodes.host(node).cut(direction, &[]);
            pause(duration);
            nodes.host(node).mend();
        }
        2 => {
            told(&format!(
                "{direction:?} packets between node {node} and etcd are dropped"
            ));
            nodes.host(node).cut(direction, &nodes.etcd.hosts());
            pause(duration);
            nodes.host(node).mend();
        }
        3 => {
            told(&format!("the link of node {node} is down"));
            nodes.host(node).link(false);
            pause(duration);
            nodes.host(node).link(true);
        }
        4 => {
            told(&format!("the agent of node {node} is killed"));
            nodes.job(node).kill_agent();
        }
        5 => {
            told(&format!("the agent of node {node} hangs"));
            if let Some(agent) = nodes.job(node).agent() {
                send(agent, Signal::SIGSTOP);
            }
        }
        6 => {
            told("a worker is killed");
            if let Some(pid) = nodes.life().pid(random.below(2)) {
                send(pid, Signal::SIGKILL);
            }
        }
        7 => {
            told(&format!("member {member} of etcd is killed"));
            nodes.etcd.kill(member);
            pause(duration);
            nodes.etcd.start_again();
        }
        _ => {
            told("all of etcd is killed");
            nodes.etcd.kill_all();
            pause(duration);
            nodes.etcd.start_again();
        }
    }
}
