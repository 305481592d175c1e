// SPDX-License-Identifier: Apache-2.0
//! Nodes that run an etcd among themselves, with nothing else on the machine to meet at.

#![expect(clippy::unwrap_used, reason = "this is test code")]

use std::net::{Ipv4Addr, TcpListener};

use nix::sys::signal::Signal;
use steadfast_tests::{Found, Job, Launch, Requirement, children, is_alive, send};

/// Names of hosts that are all this machine, at an address that only this process uses.
fn hosts(count: usize) -> (String, String) {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 192 + high % 63, middle, low.max(1));
    let listeners: Vec<_> = (0..2 * count)
        .map(|_| TcpListener::bind((address, 0)).unwrap())
        .collect();
    let port = |index: usize| listeners[index].local_addr().unwrap().port();
    let hosts: Vec<_> = (0..count)
        .map(|index| format!("{address}:{}:{}", port(2 * index), port(2 * index + 1)))
        .collect();
    (hosts.join(","), address.to_string())
}

/// One supervisor for each node of a job.
fn start(nodes: usize, steps: &[&str]) -> Vec<Job> {
    let (hosts, address) = hosts(nodes);
    let size = nodes.to_string();
    (0..nodes)
        .map(|node| {
            let (name, rank) = (format!("n{node}"), node.to_string());
            Launch::run(&[
                "--coord",
                "managed",
                "--hosts",
                &hosts,
                "--nnodes",
                &size,
                "--node-name",
                &name,
                "--node-rank",
                &rank,
                "--address",
                &address,
            ])
            // They have no home directory in common.
            .env("STEADFAST_TOKEN", "a secret of the tests")
            .worker(steps)
            .start()
        })
        .collect()
}

fn etcd_of(job: &Job) -> Option<i32> {
    let is_etcd = |found: &Found| found.arguments.first().is_some_and(|name| name == "etcd");
    children(job.pid())
        .into_iter()
        .find(is_etcd)
        .map(|found| found.pid)
}

#[test]
fn nodes_without_an_etcd_run_one_that_is_gone_with_the_job() {
    if !Requirement::Etcd.met() {
        return;
    }
    let mut jobs = start(3, &["record:ready", "wait-file:go"]);
    let mut etcds: Vec<i32> = jobs
        .iter()
        .map(|job| {
            job.eventually("a worker that is ready", |job| {
                (!job.records_of("ready").is_empty()).then_some(())
            });
            etcd_of(job).expect("each node of three has a member")
        })
        .collect();

    // A member dies, then an agent: the training takes no notice of either.
    let killed = etcds[0];
    assert!(send(killed, Signal::SIGKILL));
    etcds.push(jobs[0].eventually("another etcd", |job| {
        etcd_of(job).filter(|etcd| *etcd != killed)
    }));
    let agent = jobs[1].kill_agent().expect("an agent");
    jobs[1].other_agent(agent);
    assert_eq!(etcd_of(&jobs[1]), Some(etcds[1]), "it outlives the agent");

    for job in &jobs {
        job.touch("go");
    }
    for job in &mut jobs {
        job.wait().ended_with(0).said("no restarts");
    }
    for etcd in etcds {
        assert!(!is_alive(etcd), "{etcd} is still there");
    }
}

#[test]
fn a_generation_that_is_stopped_leaves_etcd_alone() {
    if !Requirement::Etcd.met() {
        return;
    }
    let steps = ["record:ready", "@rank=0,restart=0@exit:3", "wait-file:go"];
    let mut jobs = start(2, &steps);
    for job in &jobs {
        job.eventually("a worker of the second generation", |job| {
            (job.records_of("ready").len() == 2).then_some(())
        });
    }
    // One of two nodes has a member: there would be none without the other.
    let etcd = etcd_of(&jobs[0]).expect("the first node has the member");
    assert_eq!(etcd_of(&jobs[1]), None);
    assert_eq!(jobs[0].journal_of("etcd.server.died").len(), 0);
    for job in &jobs {
        job.touch("go");
    }
    for job in &mut jobs {
        job.wait().ended_with(0);
    }
    assert!(!is_alive(etcd));
}
