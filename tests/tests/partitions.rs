// SPDX-License-Identifier: Apache-2.0
//! Nodes that are cut off: from everybody, from etcd, from each other, in one direction or both.

use nix::sys::signal::Signal;
use steadfast_tests::{Direction, Host, Nodes, name, send};

/// Two nodes with ranks, and one that stands by.
const WITH_SPARE: [&str; 6] = ["--nnodes", "2", "--spares", "1", "--lease", "5s"];

/// What cuts a node off, and what undoes it.
struct Fault {
    inject: fn(&Host),
    undo: fn(&Host),
}

/// A node that nobody reaches any more is replaced; when it is reached again, it stands by, and learns how the job ends.
#[track_caller]
fn replaces_a_node_that_is_cut_off(fault: &Fault) {
    let Some(mut nodes) = Nodes::new(3, 1) else {
        return;
    };
    nodes.start_all(&WITH_SPARE);
    nodes.reach(10);
    let (lost, other, spare) = nodes.two_and_a_spare();
    (fault.inject)(nodes.host(lost));
    nodes.generation_after(1);
    assert_eq!(nodes.places(), [name(spare), name(other)]);
    (fault.undo)(nodes.host(lost));
    nodes.all_end_with(0, &[other, spare, lost]);
    nodes.trained_rightly(2);
}

#[test]
fn a_node_whose_packets_are_all_dropped_is_replaced() {
    replaces_a_node_that_is_cut_off(&Fault {
        inject: |host| host.cut(Direction::Both, &[]),
        undo: Host::heal,
    });
}

#[test]
fn a_node_that_hears_nothing_is_replaced() {
    replaces_a_node_that_is_cut_off(&Fault {
        inject: |host| host.cut(Direction::Incoming, &[]),
        undo: Host::heal,
    });
}

#[test]
fn a_node_that_is_not_heard_is_replaced() {
    replaces_a_node_that_is_cut_off(&Fault {
        inject: |host| host.cut(Direction::Outgoing, &[]),
        undo: Host::heal,
    });
}

#[test]
fn a_node_whose_link_is_down_is_replaced() {
    replaces_a_node_that_is_cut_off(&Fault {
        inject: |host| host.link(false),
        undo: |host| host.link(true),
    });
}

#[test]
fn a_node_that_only_etcd_does_not_reach_goes_on_training_while_steps_vouch_for_it() {
    let Some(nodes) = Nodes::new(2, 1) else {
        return;
    };
    let mut nodes = nodes.with_steps(220);
    nodes.start_all(&["--nnodes", "2", "--lease", "5s"]);
    nodes.steps_vouch();
    nodes.host(2).cut(Direction::Both, &nodes.etcd.hosts());
    nodes.member_is_gone(2);
    nodes.go_on(20);
    nodes.host(2).heal();
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
    nodes.was_never_restarted();
}

#[test]
fn without_a_witness_a_node_that_etcd_does_not_reach_stops_before_it_is_replaced() {
    let Some(mut nodes) = Nodes::new(3, 1) else {
        return;
    };
    nodes.start_all(&[&WITH_SPARE[..], &["--witness", "off"]].concat());
    nodes.reach(10);
    let (lost, other, spare) = nodes.two_and_a_spare();
    nodes.host(lost).cut(Direction::Both, &nodes.etcd.hosts());
    nodes.generation_after(1);
    assert_eq!(nodes.places(), [name(spare), name(other)]);
    nodes.host(lost).heal();
    nodes.all_end_with(0, &[other, spare, lost]);
    nodes.trained_rightly(2);
}

#[test]
fn nodes_that_reach_etcd_but_not_each_other_begin_anew_when_they_do() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    nodes.start_all(&["--nnodes", "2", "--lease", "5s"]);
    nodes.steps_vouch();
    nodes.host(1).cut(Direction::Both, &[nodes.host(2)]);
    nodes.eventually("a reason", |nodes| {
        nodes
            .said(&["the training has stopped, and nothing is heard of"])
            .then_some(())
    });
    nodes.host(1).heal();
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
}

#[test]
fn an_agent_that_hangs_on_a_node_that_is_cut_off_leaves_no_worker_behind() {
    let Some(mut nodes) = Nodes::new(3, 1) else {
        return;
    };
    nodes.start_all(&WITH_SPARE);
    nodes.reach(10);
    let (lost, other, spare) = nodes.two_and_a_spare();
    let agent = nodes.job(lost).agent().unwrap();
    nodes.host(lost).cut(Direction::Both, &[]);
    assert!(send(agent, Signal::SIGSTOP));
    nodes.generation_after(1);
    assert_eq!(nodes.places(), [name(spare), name(other)]);
    nodes.host(lost).heal();
    nodes.all_end_with(0, &[other, spare, lost]);
    nodes.trained_rightly(2);
}

#[test]
fn an_agent_that_is_killed_on_a_node_that_is_cut_off_leaves_no_worker_behind() {
    let Some(mut nodes) = Nodes::new(3, 1) else {
        return;
    };
    nodes.start_all(&WITH_SPARE);
    nodes.reach(10);
    let (lost, other, spare) = nodes.two_and_a_spare();
    nodes.host(lost).cut(Direction::Both, &[]);
    assert!(nodes.job(lost).kill_agent().is_some());
    nodes.generation_after(1);
    assert_eq!(nodes.places(), [name(spare), name(other)]);
    nodes.host(lost).heal();
    nodes.all_end_with(0, &[other, spare, lost]);
    nodes.trained_rightly(2);
}
