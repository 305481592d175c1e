// SPDX-License-Identifier: Apache-2.0
//! Jobs that take their nodes from a Slurm step.

use super::Machine;
use crate::settings::{Coordination, ManagedEtcd, NodeRange, Settings, TimeLimit};

/// The second of four tasks, one on each node.
fn step() -> Machine {
    [
        ("SLURMD_NODENAME", "n2"),
        ("SLURM_JOB_ID", "71"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_NODEID", "1"),
        ("SLURM_STEP_NUM_NODES", "4"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_STEP_NODELIST", "n[1-4]"),
        ("SLURM_TOPOLOGY_ADDR", "s1.n2"),
        ("SLURM_TOPOLOGY_ADDR_PATTERN", "switch.node"),
    ]
    .into_iter()
    .fold(Machine::new(), |machine, (name, value)| {
        machine.with(name, value)
    })
}

fn with_etcd() -> Machine {
    step().with_program("etcd")
}

fn nodes(settings: &Settings) -> (u32, u32) {
    let NodeRange { min, max } = settings.elastic.nodes;
    (min, max)
}

#[test]
fn a_step_gives_everything() {
    let settings = with_etcd().job(&["run", "--", "python", "x.py"]);
    assert_eq!(settings.job, "slurm-71.0");
    assert_eq!(settings.node, "n2");
    assert_eq!((settings.node_rank, nodes(&settings)), (Some(1), (4, 4)));
    assert_eq!(settings.address, "n2");
    assert_eq!(settings.node_count_hint, Some(4));
    assert_eq!(settings.topology, [("switch1".to_owned(), "s1".to_owned())]);
    let Coordination::Managed(ManagedEtcd {
        hosts,
        servers,
        this_node,
        ..
    }) = settings.coordination
    else {
        panic!("{:?}", settings.coordination)
    };
    assert_eq!(hosts, ["n1", "n2", "n3", "n4"]);
    assert_eq!((servers, this_node), (3, 1));
    assert_eq!(settings.slurm.unwrap().step_id, 0);
    assert_eq!(settings.notes, [""; 0]);
}

#[test]
fn what_was_written_goes_before_slurm() {
    let machine = with_etcd().with("STEADFAST_NODE_NAME", "mine");
    let settings = machine.job(&[
        "run",
        "--coord=etcd://127.0.0.1",
        "--nnodes=2:3",
        "--job=j",
        "--address=a",
        "--node-rank=0",
        "--topology=rack=r1",
        "--",
        "python",
    ]);
    assert!(matches!(settings.coordination, Coordination::Etcd(_)));
    assert_eq!(
        (settings.job.as_str(), settings.node.as_str()),
        ("j", "mine")
    );
    assert_eq!((settings.node_rank, nodes(&settings)), (Some(0), (2, 3)));
    assert_eq!(settings.address, "a");
    assert_eq!(settings.topology[0].0, "rack");
    assert_eq!(settings.slurm.unwrap().node_id, 1);
    let managed = machine.job(&["run", "--", "python"]);
    let Coordination::Managed(etcd) = managed.coordination else {
        panic!()
    };
    assert_eq!(etcd.this_node, 1, "Slurm's own name finds the place");
}

#[test]
fn spares_come_out_of_the_step() {
    let settings = with_etcd().job(&["run", "--spares=1", "--", "python"]);
    assert_eq!((nodes(&settings), settings.elastic.spares), ((3, 3), 1));
    let error = with_etcd().error(&["run", "--spares=4", "--", "python"]);
    insta::assert_snapshot!(error, @"error: `--spares 4`: there are 4 nodes in all, and none would be left for workers");
}

#[test]
fn a_requeued_job_has_a_new_name() {
    let machine = with_etcd().with("SLURM_RESTART_COUNT", "2");
    assert_eq!(machine.job(&["run", "--", "python"]).job, "slurm-71.0.r2");
}

#[test]
fn a_job_of_its_own_on_every_node_can_be_had() {
    for line in [
        &["run", "--scheduler=none", "--", "python"][..],
        &["run", "--nnodes=1", "--", "python"],
        &["run", "--coord=embedded", "--", "python"],
    ] {
        let settings = step().job(line);
        assert_eq!(settings.coordination, Coordination::Embedded, "{line:?}");
        assert_eq!((settings.node.as_str(), settings.slurm), ("host7", None));
    }
    let inside = step().with("STEADFAST_JOB_ID", "slurm-71.0");
    assert_eq!(inside.job(&["run", "--", "python"]).slurm, None);
    let batch = with_etcd().with("SLURM_STEP_ID", "");
    assert_eq!(batch.job(&["run", "--", "python"]).slurm, None);
}

#[test]
fn what_is_wrong_with_a_step_is_taught() {
    let run = ["run", "--", "python"];
    let errors = [
        step().error(&run),
        step().with("SLURM_STEP_NODELIST", "").error(&run),
        step().with("SLURM_STEP_NODELIST", "n[1-").error(&run),
        step().with("SLURM_STEP_NUM_TASKS", "32").error(&run),
        with_etcd().error(&["run", "--nnodes=8", "--", "python"]),
    ];
    insta::assert_snapshot!(errors.concat(), @"
    error: this Slurm step has 4 nodes, which need a place to meet, and there is no `etcd` program in PATH to make one

    hint: put `etcd` into PATH on every node, or name one that is there already: `--coord etcd://HOST:2379`; with `--nnodes 1` each node is a job of its own
    error: `SLURM_STEP_NODELIST` is empty or not set, in a Slurm step on 4 nodes

    hint: start steadfast by srun; with `--scheduler none` it takes nothing from Slurm
    error: `SLURM_STEP_NODELIST`: host list `n[1-`, character 2: this `[` is never closed

    hint: start steadfast by srun; with `--scheduler none` it takes nothing from Slurm
    error: srun started 32 tasks on 4 nodes, and not one on each: steadfast takes one task on each node, and starts the node's workers itself

    hint: srun --nodes=4 --ntasks=4 --ntasks-per-node=1 steadfast run --nproc-per-node 8 -- ..., with --cpus-per-task and --gpus-per-task for all that a node has
    error: `--nnodes 8`: the Slurm step has 4 nodes, and the job would wait for more
    ");
}

#[test]
fn the_values_in_force_name_slurm() {
    let text = with_etcd().print(&["config"]);
    let lines: Vec<String> = text
        .lines()
        .filter(|line| line.contains("# Slurm"))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    job = "slurm-71.0" # Slurm SLURM_JOB_ID
    node_name = "n2" # Slurm SLURMD_NODENAME
    nnodes = "4" # Slurm SLURM_STEP_NUM_NODES
    address = "n2" # Slurm SLURMD_NODENAME
    node_rank = 1 # Slurm SLURM_NODEID
    topology = ["switch1=s1"] # Slurm SLURM_TOPOLOGY_ADDR
    coord = "managed" # Slurm SLURM_STEP_NUM_NODES
    hosts = "n[1-4]" # Slurm SLURM_STEP_NODELIST
    "#);
    let json = with_etcd().print(&["config", "--json"]);
    assert!(json.contains(r#""place": "SLURM_NODEID""#), "{json}");
}

#[test]
fn torchrun_takes_its_nodes_from_the_step_too() {
    let machine = with_etcd();
    std::fs::write(machine.root.path().join("x.py"), "").unwrap();
    let settings = machine.job(&["torchrun", "--nproc-per-node=8", "x.py"]);
    assert_eq!((nodes(&settings), settings.workers), ((4, 4), 8));
    assert_eq!(
        (settings.job.as_str(), settings.run_id.as_str()),
        ("slurm-71.0", "none")
    );
    let alone = machine.job(&["torchrun", "--standalone", "x.py"]);
    assert_eq!(alone.coordination, Coordination::Embedded);
    assert_eq!(alone.slurm, None);
}

#[test]
fn a_lead_before_the_time_limit_must_leave_time_to_train() {
    let line = ["run", "--time-limit-lead=2m", "--", "python"];
    // The test's machine reads 1,700,000,000 s on the wall and 5 s since its start.
    let machine = |end: &str| {
        Machine::new()
            .with_program("python")
            .with("SLURM_JOB_END_TIME", end)
    };
    let limit = machine("1700000600").job(&line).time_limit;
    assert_eq!(limit.near(484_000_000_000), None);
    let left = limit.near(486_000_000_000).unwrap();
    assert_eq!(left.as_secs(), 119);
    insta::assert_snapshot!(machine("1700000100").error(&line), @"error: `--time-limit-lead 2m`: the scheduler ends the job in 100 s, so it would be run again for ever and never train");
    let unknown = machine("").job(&line);
    assert_eq!(unknown.time_limit, TimeLimit::default());
    insta::assert_snapshot!(unknown.notes.join("\n"), @"`--time-limit-lead 2m` has no effect: the scheduler does not say when the job's time is up (SLURM_JOB_END_TIME)");
}

#[test]
fn the_signal_that_says_that_time_is_up_is_one_that_means_nothing_else() {
    let machine = |end: &str| {
        Machine::new()
            .with_program("python")
            .with("SLURM_JOB_END_TIME", end)
    };
    let line = ["run", "--time-limit-signal=usr2", "--", "python"];
    let limit = machine("").job(&line).time_limit;
    assert_eq!((limit.signal, limit.left(0)), (Some(12), None));
    let limit = machine("1700000600").job(&line).time_limit;
    assert_eq!(limit.left(5_000_000_000).unwrap().as_secs(), 600);
    assert_eq!(limit.near(604_000_000_000), None, "it waits to be told");
    let line = ["run", "--time-limit-signal=TERM", "--", "python"];
    insta::assert_snapshot!(machine("").error(&line), @"error: `--time-limit-signal TERM`: must be `SIGUSR1` or `SIGUSR2`");
}
