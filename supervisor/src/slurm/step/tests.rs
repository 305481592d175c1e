// SPDX-License-Identifier: Apache-2.0

use super::{Found, StepError, find};
use crate::config::Host;
use crate::settings::SlurmStep;

/// What Slurm 22.05 gave the second of three tasks of `srun -N3`, with a tree of switches.
const STEP: [(&str, &str); 15] = [
    ("SLURMD_NODENAME", "n2"),
    ("SLURM_JOB_ID", "71"),
    ("SLURM_JOB_NODELIST", "n[1-3]"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NNODES", "3"),
    ("SLURM_NODEID", "1"),
    ("SLURM_NTASKS", "3"),
    ("SLURM_PROCID", "1"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NODELIST", "n[1-3]"),
    ("SLURM_STEP_NUM_NODES", "3"),
    ("SLURM_STEP_NUM_TASKS", "3"),
    ("SLURM_STEP_TASKS_PER_NODE", "1(x3)"),
    ("SLURM_TOPOLOGY_ADDR", "top.s1.n2"),
    ("SLURM_TOPOLOGY_ADDR_PATTERN", "switch.switch.node"),
];

/// The step with some variables changed; an empty value takes one away.
fn step(changes: &[(&str, &str)]) -> Result<Option<Found>, StepError> {
    let mut host = Host::for_test("/".as_ref());
    for (name, value) in STEP.iter().chain(changes) {
        host = host.with(name, value);
    }
    find(&host)
}

fn found(changes: &[(&str, &str)]) -> Found {
    step(changes).unwrap().expect("a step on several nodes")
}

#[test]
fn a_step_is_read_as_slurm_says_it() {
    let Found {
        step,
        node_list,
        topology,
    } = found(&[]);
    let expected = SlurmStep {
        job_id: 71,
        step_id: 0,
        nodes: 3,
        node_id: 1,
        node_name: "n2".to_owned(),
        restart_count: 0,
    };
    assert_eq!(step, expected);
    assert_eq!(node_list, "n[1-3]");
    assert_eq!(topology, "switch1=top,switch2=s1");
}

#[test]
fn the_rank_is_slurms_and_not_the_place_in_the_list() {
    // Slurm sorts three brackets in its own way.
    let found = found(&[
        ("SLURM_STEP_NODELIST", "a[0-1]b[0-1]c[0-1]"),
        ("SLURM_STEP_NUM_NODES", "8"),
        ("SLURM_STEP_NUM_TASKS", "8"),
        ("SLURM_NODEID", "6"),
        ("SLURMD_NODENAME", "a1b0c0"),
    ]);
    assert_eq!(found.step.node_id, 6);
}

#[test]
fn the_end_is_placed_on_the_monotonic_clock() {
    // The test's machine reads 1,700,000,000 s on the wall and 5 s since its start.
    for (end, expected_s) in [("1700000060", 65), ("1600000000", 5)] {
        let host = Host::for_test("/".as_ref()).with("SLURM_JOB_END_TIME", end);
        assert_eq!(super::end(&host).unwrap(), Some(expected_s * 1_000_000_000));
    }
}

#[test]
fn a_requeued_job_says_so() {
    assert_eq!(found(&[("SLURM_RESTART_COUNT", "2")]).step.restart_count, 2);
}

#[test]
fn what_is_no_step_on_several_nodes_is_left_alone() {
    for changes in [
        // The shell of salloc and a batch script.
        &[("SLURM_STEP_ID", "")][..],
        &[("SLURM_JOB_ID", "")],
        &[("SLURM_STEP_ID", "4294967291")],
        &[("SLURM_STEP_NUM_NODES", "1")],
        &[("SLURM_STEP_NUM_NODES", ""), ("SLURM_NNODES", "1")],
    ] {
        assert_eq!(step(changes).unwrap(), None, "{changes:?}");
    }
    let older = found(&[("SLURM_STEP_NUM_NODES", ""), ("SLURM_STEP_NUM_TASKS", "")]);
    assert_eq!(older.step.nodes, 3);
}

#[test]
fn no_topology_is_no_fault() {
    for (address, pattern, expected) in [
        ("", "", ""),
        ("n2", "node", ""),
        ("n2.site", "node", ""),
        ("s1.n2.site", "switch.node", "switch1=s1"),
        (".s1.n2", "switch.switch.node", "switch2=s1"),
        ("b7.n2", "block.node", "block1=b7"),
        ("s1", "switch.node", ""),
    ] {
        let changes = [
            ("SLURM_TOPOLOGY_ADDR", address),
            ("SLURM_TOPOLOGY_ADDR_PATTERN", pattern),
        ];
        assert_eq!(found(&changes).topology, expected, "{address}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let errors: Vec<String> = [
        &[("SLURM_STEP_NODELIST", "")][..],
        &[("SLURM_STEP_NODELIST", "n[1-3")],
        &[("SLURM_STEP_NODELIST", ",")],
        &[("SLURM_STEP_NODELIST", "n[1-2]")],
        &[("SLURM_STEP_NODELIST", "n1,n2,n1")],
        &[("SLURM_STEP_NODELIST", "m[1-3]")],
        &[("SLURM_NODEID", "3")],
        &[("SLURM_NODEID", "")],
        &[("SLURMD_NODENAME", "")],
        &[("SLURM_JOB_ID", "7x")],
        &[("SLURM_STEP_NUM_TASKS", "24")],
        &[("SLURM_LOCALID", "1")],
    ]
    .into_iter()
    .map(|changes| format!("{}\n", step(changes).unwrap_err()))
    .collect();
    insta::assert_snapshot!(errors.concat(), @"
    `SLURM_STEP_NODELIST` is empty or not set, in a Slurm step on 3 nodes
    `SLURM_STEP_NODELIST`: host list `n[1-3`, character 2: this `[` is never closed
    `SLURM_STEP_NODELIST`: host list `,`, character 1: it names no host
    `SLURM_STEP_NODELIST` names 2 nodes, but `SLURM_STEP_NUM_NODES` is 3
    `SLURM_STEP_NODELIST` names n1 twice
    `SLURM_STEP_NODELIST` does not name this node, `SLURMD_NODENAME=n2`
    `SLURM_NODEID=3` is not below 3, the number of nodes of the Slurm step
    `SLURM_NODEID` is empty or not set, in a Slurm step on 3 nodes
    `SLURMD_NODENAME` is empty or not set, in a Slurm step on 3 nodes
    `SLURM_JOB_ID=7x` is not a number
    srun started 24 tasks on 3 nodes, and not one on each: steadfast takes one task on each node, and starts the node's workers itself
    srun started 3 tasks on 3 nodes, and not one on each: steadfast takes one task on each node, and starts the node's workers itself
    ");
}
