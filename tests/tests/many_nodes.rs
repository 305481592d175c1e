// SPDX-License-Identifier: Apache-2.0
//! Jobs on several nodes, whose network is well: what is lost, leaves, comes, or does not fit.

use std::fs;

use nix::sys::signal::Signal;
use steadfast_tests::{Direction, Nodes, name, number, send};

/// What all jobs here have in common: a lost node is not waited for long.
const LEASE: [&str; 2] = ["--lease", "5s"];

#[test]
fn three_nodes_train_as_one() {
    let Some(mut nodes) = Nodes::new(3, 3) else {
        return;
    };
    nodes.start_all(&["--nnodes", "3"]);
    nodes.all_end_with(0, &[1, 2, 3]);
    nodes.trained_rightly(3);
    nodes.was_never_restarted();
    let left: Vec<String> = nodes.etcd.keys("/steadfast/");
    assert!(
        left.iter().all(|key| !key.contains("/members/")),
        "{left:?}"
    );
}

#[test]
fn a_spare_takes_the_ranks_of_a_node_whose_keeper_was_killed() {
    let Some(mut nodes) = Nodes::new(3, 1) else {
        return;
    };
    nodes.start_all(&[&LEASE[..], &["--nnodes", "2", "--spares", "1"]].concat());
    nodes.reach(10);
    let (lost, other, spare) = nodes.two_and_a_spare();
    nodes.job(lost).signal(Signal::SIGKILL);
    nodes.generation_after(1);
    assert_eq!(nodes.places(), [name(spare), name(other)]);
    nodes.all_end_with(0, &[other, spare]);
    nodes.trained_rightly(2);
}

#[test]
fn a_spare_that_has_become_unfit_gets_no_ranks_until_it_is_fit_again() {
    let Some(mut nodes) = Nodes::new(4, 1) else {
        return;
    };
    let fit = |nodes: &Nodes, node: u8| nodes.shared(&format!("fit-{node}"));
    let options = [
        &LEASE[..],
        &["--nnodes", "2", "--spares", "2", "--self-check", "on"],
        &["--self-check-every", "1s"],
    ]
    .concat();
    for node in 1..=4 {
        let fit = fit(&nodes, node);
        fs::write(&fit, "").unwrap();
        let check = format!(
            "[command.fit]\nrun = [\"sh\", \"-c\", \"test -e {} || {{ echo out of order; exit 2; }}\"]\nprofiles = [\"job\"]\n",
            fit.display()
        );
        let config = nodes.shared(&format!("checks-{node}.toml"));
        fs::write(&config, check).unwrap();
        let launch = nodes.launch_toy(node, &options);
        let job = launch.env("STEADFAST_CHECK_CONFIG", config.to_str().unwrap());
        nodes.adopt(node, job.start());
    }
    nodes.reach(10);
    let places = nodes.places();
    let is_spare = |node: &u8| !places.contains(&name(*node));
    let spares: Vec<u8> = (1..=4).filter(is_spare).collect();
    // The first of them would be taken.
    let [unfit, other] = spares[..] else {
        panic!("{places:?}: {}", nodes.describe());
    };
    let shows_fault = |nodes: &Nodes, wanted: bool| {
        nodes.eventually("what the spare says of itself", |nodes| {
            let record = nodes
                .etcd
                .value(&format!("/steadfast/job/members/{}", name(unfit)))?;
            let has_fault = record["fitness"]["faults"]
                .as_array()
                .is_some_and(|all| !all.is_empty());
            (has_fault == wanted).then_some(())
        });
    };
    fs::remove_file(fit(&nodes, unfit)).unwrap();
    shows_fault(&nodes, true);
    let lost = number(&places[0]);
    nodes.job(lost).signal(Signal::SIGKILL);
    let second = nodes.generation_after(1);
    assert!(
        nodes.places().contains(&name(other)),
        "{}",
        nodes.describe()
    );
    assert!(
        !nodes.places().contains(&name(unfit)),
        "{}",
        nodes.describe()
    );
    fs::write(fit(&nodes, unfit), "").unwrap();
    shows_fault(&nodes, false);
    nodes.job(other).signal(Signal::SIGKILL);
    nodes.generation_after(second);
    assert!(
        nodes.places().contains(&name(unfit)),
        "{}",
        nodes.describe()
    );
    let stays = number(&places[1]);
    nodes.all_end_with(0, &[unfit, stays]);
    nodes.trained_rightly(2);
}

#[test]
fn a_worker_that_is_killed_restarts_the_workers_of_all_nodes_once() {
    let Some(mut nodes) = Nodes::new(3, 1) else {
        return;
    };
    nodes.start_all(&["--nnodes", "3"]);
    nodes.reach(20);
    let place = nodes.places()[1].clone();
    assert!(send(nodes.life().pid(1).unwrap(), Signal::SIGKILL));
    assert_eq!(nodes.generation_after(1), 2);
    nodes.all_end_with(0, &[1, 2, 3]);
    nodes.trained_rightly(3);
    let culprit = format!("rank 1 on {place}");
    assert!(
        nodes.said(&["generation 2 starts", &culprit]),
        "{}",
        nodes.describe()
    );
    for node in 1..=3 {
        let starts = nodes.job(node).journal_of("generation.starting");
        let why = starts[1]["why"].as_str().unwrap_or_default();
        assert!(why.contains(&culprit), "node {node}: {starts:?}");
    }
}

#[test]
fn sigterm_to_one_supervisor_hands_its_ranks_over_and_is_no_failure() {
    let Some(mut nodes) = Nodes::new(3, 1) else {
        return;
    };
    let options = ["--nnodes", "2", "--spares", "1", "--max-restarts", "0"];
    nodes.start_all(&options);
    nodes.reach(10);
    let (leaving, other, spare) = nodes.two_and_a_spare();
    nodes.job(leaving).signal(Signal::SIGTERM);
    nodes.all_end_with(143, &[leaving]);
    nodes.generation_after(1);
    assert_eq!(nodes.places(), [name(spare), name(other)]);
    nodes.all_end_with(0, &[other, spare]);
    nodes.trained_rightly(2);
}

#[test]
fn sigterm_to_all_supervisors_ends_the_job() {
    let Some(mut nodes) = Nodes::new(3, 1) else {
        return;
    };
    nodes.start_all(&["--nnodes", "3"]);
    nodes.reach(10);
    for node in 1..=3 {
        nodes.job(node).signal(Signal::SIGTERM);
    }
    nodes.all_end_with(143, &[1, 2, 3]);
    nodes.is_sound();
}

#[test]
fn stop_on_one_node_ends_the_job_on_all() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    nodes.start_all(&["--nnodes", "2"]);
    nodes.reach(10);
    let asked = nodes.job(2).ask("stop", &["--job", "job"]);
    asked.ended_with(0);
    nodes.all_end_with(143, &[1, 2]);
    nodes.is_sound();
}

#[test]
fn without_a_spare_the_job_goes_on_with_fewer_nodes() {
    let Some(mut nodes) = Nodes::new(3, 1) else {
        return;
    };
    nodes.start_all(&[&LEASE[..], &["--nnodes", "1:3", "--shrink-after", "0s"]].concat());
    nodes.reach(10);
    assert_eq!(nodes.places().len(), 3);
    let lost = number(&nodes.places()[0]);
    let left: Vec<u8> = (1..=3).filter(|node| *node != lost).collect();
    nodes.job(lost).signal(Signal::SIGKILL);
    let second = nodes.generation_after(1);
    assert_eq!(nodes.places().len(), 2);
    nodes.go_on(5);
    let lost = number(&nodes.places()[1]);
    let left: Vec<u8> = left.into_iter().filter(|node| *node != lost).collect();
    nodes.job(lost).signal(Signal::SIGKILL);
    nodes.generation_after(second);
    assert_eq!(nodes.places(), [name(left[0])]);
    nodes.all_end_with(0, &left);
    nodes.trained_rightly(1);
}

#[test]
fn a_node_that_comes_later_is_taken_in_at_once_where_that_is_asked_for() {
    let Some(mut nodes) = Nodes::new(3, 1) else {
        return;
    };
    let options = [
        "--nnodes",
        "2:3",
        "--shrink-after",
        "0s",
        "--grow",
        "immediately",
    ];
    let options = [&LEASE[..], &options].concat();
    nodes.start_all(&options);
    nodes.reach(5);
    let places = nodes.places();
    assert_eq!(places.len(), 3, "{}", nodes.describe());
    let lost = number(&places[1]);
    nodes.job(lost).signal(Signal::SIGKILL);
    let second = nodes.generation_after(1);
    assert_eq!(nodes.places(), [places[0].clone(), places[2].clone()]);
    nodes.start(lost, &options);
    nodes.generation_after(second);
    assert_eq!(nodes.places().len(), 3);
    nodes.all_end_with(0, &[1, 2, 3]);
    nodes.trained_rightly(3);
}

#[test]
fn the_number_of_nodes_stays_a_multiple() {
    let Some(mut nodes) = Nodes::new(4, 1) else {
        return;
    };
    let options = [
        "--nnodes",
        "2:4",
        "--node-multiple",
        "2",
        "--shrink-after",
        "0s",
    ];
    nodes.start_all(&[&LEASE[..], &options].concat());
    nodes.reach(10);
    let places = nodes.places();
    assert_eq!(places.len(), 4);
    let lost = number(&places[3]);
    nodes.job(lost).signal(Signal::SIGKILL);
    nodes.generation_after(1);
    assert_eq!(nodes.places(), places[..2]);
    let left: Vec<u8> = (1..=4).filter(|node| *node != lost).collect();
    nodes.all_end_with(0, &left);
    nodes.trained_rightly(2);
}

#[test]
fn too_few_nodes_are_waited_for_and_then_a_scheduler_may_try_again() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    nodes.start_all(&[&LEASE[..], &["--nnodes", "2", "--wait-for-nodes", "2s"]].concat());
    nodes.reach(10);
    nodes.job(2).signal(Signal::SIGKILL);
    let outcome = nodes.wait(1);
    outcome
        .ended_with(75)
        .said("only 1 of at least 2 nodes were there after 2 s");
    nodes.is_sound();
}

#[test]
fn a_supervisor_that_is_started_anew_under_its_old_name_is_taken_in_again() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    let options = [&LEASE[..], &["--nnodes", "2"]].concat();
    nodes.start_all(&options);
    nodes.reach(10);
    nodes.job(1).signal(Signal::SIGKILL);
    nodes.start(1, &options);
    nodes.generation_after(1);
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
}

#[test]
fn a_second_supervisor_of_one_name_is_refused_and_harms_nobody() {
    let Some(nodes) = Nodes::new(2, 1) else {
        return;
    };
    // The second one is patient for three leases.
    let mut nodes = nodes.with_steps(260);
    let options = ["--nnodes", "2", "--lease", "3s"];
    nodes.start_all(&options);
    nodes.reach(5);
    let mut twin = nodes.launch_toy(2, &options).start();
    twin.wait().ended_with(78).said("n2");
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
    nodes.was_never_restarted();
}

#[test]
fn what_must_be_the_same_on_all_nodes_is_named_when_it_is_not() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    nodes.start(1, &["--nnodes", "2"]);
    nodes.eventually("the first node", |nodes| nodes.job(1).status());
    nodes.leader();
    let cases = [
        (vec!["--nnodes", "2", "--max-restarts", "7"], "max_restarts"),
        (vec!["--nnodes", "2:3"], "max_nodes"),
        (vec!["--nnodes", "2", "--witness", "off"], "witness"),
    ];
    for (options, field) in cases {
        let mut other = nodes.launch_toy(2, &options).start();
        other.wait().ended_with(78).said(field);
    }
    let other = nodes.launch(2, &["--nnodes", "2"]).worker(&["exit:0"]);
    other.start().wait().ended_with(78).said("command");
    nodes.start(2, &["--nnodes", "2"]);
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
}

#[test]
fn the_name_of_a_job_that_has_ended_can_be_used_again() {
    let Some(mut nodes) = Nodes::new(2, 1) else {
        return;
    };
    nodes.start_all(&["--nnodes", "2"]);
    nodes.reach(10);
    nodes.job(1).ask("stop", &["--job", "job"]).ended_with(0);
    nodes.all_end_with(143, &[1, 2]);
    nodes.forget_life();
    nodes.start_all(&["--nnodes", "2"]);
    nodes.all_end_with(0, &[1, 2]);
    nodes.trained_rightly(2);
}

#[test]
fn a_spare_that_is_lost_costs_nothing() {
    let Some(mut nodes) = Nodes::new(3, 1) else {
        return;
    };
    nodes.start_all(&[&LEASE[..], &["--nnodes", "2", "--spares", "1"]].concat());
    nodes.reach(10);
    let (first, second, spare) = nodes.two_and_a_spare();
    nodes.job(spare).signal(Signal::SIGKILL);
    nodes.member_is_gone(spare);
    nodes.all_end_with(0, &[first, second]);
    nodes.trained_rightly(2);
    nodes.was_never_restarted();
}

#[test]
fn a_node_that_is_lost_while_the_job_recovers_from_another_loss_is_replaced_as_well() {
    let Some(mut nodes) = Nodes::new(4, 1) else {
        return;
    };
    nodes.start_all(&[&LEASE[..], &["--nnodes", "2", "--spares", "2"]].concat());
    nodes.reach(10);
    let places = nodes.places();
    nodes.job(number(&places[0])).signal(Signal::SIGKILL);
    let first_spare = nodes.eventually("the spare's worker", |nodes| {
        let started = nodes.life().nodes_of(2);
        started.into_iter().find(|node| !places.contains(node))
    });
    nodes.job(number(&first_spare)).signal(Signal::SIGKILL);
    nodes.generation_after(2);
    let left: Vec<u8> = (1..=4)
        .filter(|&node| name(node) != places[0] && name(node) != first_spare)
        .collect();
    nodes.all_end_with(0, &left);
    nodes.trained_rightly(2);
}

#[test]
fn six_nodes_come_through_one_fault_after_another() {
    let Some(nodes) = Nodes::new(6, 3) else {
        return;
    };
    let mut nodes = nodes.with_steps(300);
    let options = ["--nnodes", "4", "--spares", "2", "--lease", "5s"];
    nodes.start_all(&options);
    nodes.reach(10);
    let first = nodes.places();
    assert_eq!(first.len(), 4, "{}", nodes.describe());

    let cut = number(&first[1]);
    nodes.host(cut).cut(Direction::Both, &[]);
    let mut generation = nodes.generation_after(1);
    nodes.host(cut).heal();

    let etcd_leader = nodes.etcd.leader();
    nodes.etcd.kill(etcd_leader);
    nodes.go_on(10);
    let dead = number(&nodes.places()[0]);
    nodes.job(dead).signal(Signal::SIGKILL);
    generation = nodes.generation_after(generation);
    nodes.etcd.start_again();
    nodes.start(dead, &options);

    nodes.job(number(&nodes.places()[2])).kill_agent();
    nodes.go_on(10);
    assert!(send(nodes.life().pid(3).unwrap(), Signal::SIGKILL));
    nodes.generation_after(generation);

    nodes.all_end_with(0, &[1, 2, 3, 4, 5, 6]);
    nodes.trained_rightly(4);
}
