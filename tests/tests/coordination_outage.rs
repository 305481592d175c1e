// SPDX-License-Identifier: Apache-2.0
//! etcd in trouble, and supervisors that stand still.

use std::time::Duration;

use nix::sys::signal::Signal;
use steadfast_tests::{Direction, Nodes, eventually, is_alive, long_tests, pause, send};

const TWO: [&str; 4] = ["--nnodes", "2", "--lease", "5s"];

/// The training goes on, in one generation, through a fault of the member of etcd that leads.
#[track_caller]
fn survives_without_a_restart(inject: fn(&mut Nodes, usize), undo: fn(&mut Nodes, usize)) {
    let Some(nodes) = Nodes::new(2, 3) else {
        return;
    };
    let mut nodes = nodes.with_steps(200);
    nodes.start_all(&TWO);
    nodes.steps_vouch();
    let leader = nodes.etcd.leader();
    inject(&mut nodes, leader);
    // Longer than leases and elections take.
    nodes.go_on(110);
    undo(&mut nodes, leader);
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
    nodes.was_never_restarted();
}

#[test]
fn a_leader_of_etcd_that_is_killed_stops_no_training() {
    survives_without_a_restart(
        |nodes, leader| nodes.etcd.kill(leader),
        |nodes, _| nodes.etcd.start_again(),
    );
}

#[test]
fn a_leader_of_etcd_that_is_paused_stops_no_training() {
    survives_without_a_restart(
        |nodes, leader| nodes.etcd.signal(leader, Signal::SIGSTOP),
        |nodes, leader| nodes.etcd.signal(leader, Signal::SIGCONT),
    );
}

#[test]
fn a_leader_of_etcd_that_is_cut_off_stops_no_training() {
    survives_without_a_restart(
        |nodes, leader| nodes.etcd.host(leader).cut(Direction::Both, &[]),
        |nodes, leader| nodes.etcd.host(leader).heal(),
    );
}

/// Many leases without any etcd.
#[track_caller]
fn trains_on_without_etcd(outage: Duration, steps: u64) {
    let Some(nodes) = Nodes::new(3, 3) else {
        return;
    };
    let mut nodes = nodes.with_steps(steps);
    nodes.start_all(&["--nnodes", "3", "--lease", "5s"]);
    nodes.steps_vouch();
    nodes.etcd.kill_all();
    pause(outage);
    let made = nodes.life().last_step();
    assert!(made < steps, "the outage has outlasted the training");
    nodes.go_on(5);
    nodes.etcd.start_again();
    nodes.all_end_with(0, &[1, 2, 3]);
    nodes.trained_rightly(3);
    nodes.was_never_restarted();
}

#[test]
fn the_training_goes_on_while_all_of_etcd_is_away() {
    trains_on_without_etcd(Duration::from_secs(7), 220);
}

#[test]
fn the_training_goes_on_while_all_of_etcd_is_away_for_a_minute() {
    if long_tests() {
        trains_on_without_etcd(Duration::from_mins(1), 1_500);
    }
}

#[test]
fn a_training_that_ends_while_etcd_is_away_is_over_when_it_is_back() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    nodes.start_all(&TWO);
    nodes.steps_vouch();
    nodes.etcd.kill_all();
    nodes.eventually("the end of all workers", |nodes| {
        (nodes.life().ends() == 2).then_some(())
    });
    nodes.etcd.start_again();
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
    nodes.was_never_restarted();
}

#[test]
fn a_worker_that_dies_while_etcd_is_away_is_restarted_when_it_is_back() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    nodes.start_all(&TWO);
    nodes.steps_vouch();
    nodes.etcd.kill_all();
    let victim = nodes.life().pid(1).unwrap();
    assert!(send(victim, Signal::SIGKILL));
    let other = nodes.life().pid(0).unwrap();
    eventually("the end of the other worker", || {
        (!is_alive(other))
            .then_some(())
            .ok_or_else(|| nodes.describe())
    });
    nodes.etcd.start_again();
    nodes.generation_after(1);
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
}

#[test]
fn without_a_witness_the_workers_end_with_the_leases_and_all_begin_anew() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    nodes.start_all(&[&TWO[..], &["--witness", "off"]].concat());
    nodes.reach(10);
    nodes.etcd.kill_all();
    let workers = [nodes.life().pid(0).unwrap(), nodes.life().pid(1).unwrap()];
    eventually("the end of both workers", || {
        let lives = workers.iter().any(|&worker| is_alive(worker));
        (!lives).then_some(()).ok_or_else(|| nodes.describe())
    });
    nodes.etcd.start_again();
    nodes.generation_after(1);
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
}

#[test]
fn nodes_that_cannot_reach_etcd_at_the_start_say_so_and_end() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    // One is refused the connection, the other hears nothing at all.
    nodes.etcd.kill_all();
    nodes.host(2).cut(Direction::Both, &[]);
    nodes.start_all(&["--nnodes", "2"]);
    for node in 1..=2 {
        nodes.wait(node).ended_with(69).said("cannot join the job");
    }
    nodes.host(2).heal();
    assert!(nodes.life().generations().is_empty());
}

#[test]
fn a_leading_supervisor_that_stands_still_for_three_leases_wakes_to_no_harm() {
    let Some(nodes) = Nodes::new(3, 1) else {
        return;
    };
    let mut nodes = nodes.with_steps(280);
    nodes.start_all(&["--nnodes", "3", "--lease", "5s"]);
    nodes.steps_vouch();
    let leader = nodes.leader();
    nodes.signal_supervisor(leader, Signal::SIGSTOP);
    nodes.member_is_gone(leader);
    pause(Duration::from_secs(6));
    nodes.signal_supervisor(leader, Signal::SIGCONT);
    nodes.all_end_with(0, &[1, 2, 3]);
    nodes.trained_rightly(3);
}

#[test]
fn an_agent_that_hangs_is_replaced_and_the_training_goes_on() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    nodes.start_all(&TWO);
    nodes.steps_vouch();
    let leader = nodes.leader();
    let agent = nodes.job(leader).agent().unwrap();
    assert!(send(agent, Signal::SIGSTOP));
    nodes.job(leader).other_agent(agent);
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
    nodes.was_never_restarted();
}

#[test]
fn agents_that_are_killed_again_and_again_cost_no_worker() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    nodes.start_all(&TWO);
    nodes.reach(5);
    for round in 0..6 {
        nodes.eventually("an agent", |nodes| nodes.job(1 + round % 2).kill_agent());
        nodes.go_on(8);
    }
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
    nodes.was_never_restarted();
}

#[test]
fn supervisors_that_are_told_to_end_do_so_without_etcd() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    nodes.start_all(&TWO);
    nodes.reach(10);
    nodes.etcd.kill_all();
    for node in 1..=2 {
        nodes.job(node).signal(Signal::SIGTERM);
    }
    nodes.all_end_with(143, &[1, 2]);
    nodes.is_sound();
}

#[test]
fn an_agent_that_is_killed_costs_no_worker_where_leases_alone_decide() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    nodes.start_all(&[&TWO[..], &["--witness", "off"]].concat());
    nodes.reach(5);
    for node in 1..=2 {
        let old = nodes.job(node).kill_agent().unwrap();
        nodes.job(node).other_agent(old);
    }
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
    nodes.was_never_restarted();
}
