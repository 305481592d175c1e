// SPDX-License-Identifier: Apache-2.0
//! torchrun's flags for several nodes.

use super::Machine;
use crate::settings::{Coordination, NodeRange};

/// A place to meet, as a site has it.
fn machine() -> Machine {
    Machine::new().with("STEADFAST_COORD", "etcd://127.0.0.1")
}

#[test]
fn the_usual_line_is_taken() {
    let settings = machine().job(
        "--nnodes 2:4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint h1:29500 --rdzv-id llama train.py",
    );
    assert!(matches!(settings.coordination, Coordination::Etcd(_)));
    assert_eq!(settings.elastic.nodes, NodeRange { min: 2, max: 4 });
    assert_eq!(
        (settings.job.as_str(), settings.run_id.as_str()),
        ("llama", "llama")
    );
    assert_eq!((settings.master_addr, settings.master_port), (None, None));
    assert_eq!(settings.node_rank, None);
    insta::assert_snapshot!(settings.notes.join("\n"), @"`--rdzv-endpoint h1:29500` is not used: the nodes meet through `STEADFAST_COORD=etcd://127.0.0.1`");
}

#[test]
fn the_static_rendezvous_tells_where_node_0_is() {
    let line = "--nnodes 2 --master-addr gpu1 --master-port 29501 --job j";
    let first = machine().job(&format!("{line} --node-rank 0 train.py"));
    assert_eq!((first.address.as_str(), first.node_rank), ("gpu1", Some(0)));
    assert_eq!((first.master_addr, first.master_port), (None, Some(29501)));
    assert_eq!(first.notes, [""; 0]);
    let second = machine().job(&format!("{line} --node-rank 1 train.py"));
    assert_eq!(
        (second.address.as_str(), second.node_rank),
        ("127.0.0.1", Some(1))
    );
    assert_eq!(
        (second.master_addr, second.master_port),
        (None, Some(29501))
    );
    insta::assert_snapshot!(second.notes.join("\n"), @"`--master-addr gpu1` is not used: the workers meet at the node that has rank 0");
    let endpoint =
        machine().job("--nnodes 2 --rdzv-endpoint gpu1:0 --node-rank 0 --job j train.py");
    assert_eq!(
        (endpoint.address.as_str(), endpoint.master_port),
        ("gpu1", None)
    );
    let local = machine().job("--nnodes 2 --rdzv-backend c10d --local-addr gpu7 --job j train.py");
    assert_eq!((local.address.as_str(), local.master_addr), ("gpu7", None));
}

#[test]
fn what_an_operator_sets_is_taken() {
    let settings = machine()
        .with("PET_NNODES", "2")
        .with("PET_NODE_RANK", "1")
        .with("PET_MASTER_ADDR", "job-node-0-0.job")
        .with("PET_MASTER_PORT", "29500")
        .with("STEADFAST_JOB", "llama")
        .job("train.py");
    assert_eq!(
        (settings.node_rank, settings.job.as_str()),
        (Some(1), "llama")
    );
    assert_eq!(settings.elastic.nodes.max, 2);
}

#[test]
fn what_is_missing_is_said_with_the_line_to_add() {
    let errors = [
        Machine::new().error("--nnodes 1:4 train.py"),
        Machine::new().error(
            "--nnodes 2 --rdzv-backend etcd-v2 --rdzv-endpoint h1:2379 --rdzv-id x train.py",
        ),
        machine().error("--nnodes 2 train.py"),
        machine().error("--nnodes 2 --standalone train.py"),
        machine()
            .with("STEADFAST_MASTER_ADDR", "a")
            .error("--nnodes 2 --job j train.py"),
    ];
    insta::assert_snapshot!(errors.concat(), @"
    error: `--nnodes 1:4`: the nodes of a job need a place to meet, and --coord names none

    hint: add `--coord etcd://HOST:2379` (or set STEADFAST_COORD), or `--coord managed --hosts A,B,C` to have the nodes run etcd themselves
    error: `--nnodes 2`: the nodes of a job need a place to meet, and --coord names none

    hint: add `--coord etcd://h1:2379` (or set STEADFAST_COORD), or `--coord managed --hosts A,B,C` to have the nodes run etcd themselves
    error: `STEADFAST_COORD=etcd://127.0.0.1`: --job is missing; nodes find each other by the job's name, and the one that is made up would differ on each node

    hint: add `--job NAME`, the same on every node, and another one for each job
    error: `--standalone` and `--nnodes 2` cannot both hold: a job that stands alone has one node
    error: `STEADFAST_MASTER_ADDR=a` and `--nnodes 2` cannot both hold: rank 0 can move to another node, and the workers meet where it is; how this node is reached is said with --address
    ");
}
