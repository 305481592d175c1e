// SPDX-License-Identifier: Apache-2.0
//! Jobs on several nodes, without a scheduler.

use std::time::Duration;

use super::Machine;
use crate::settings::{
    CertificateFiles, Coordination, EtcdAddress, EtcdLogin, Grow, ManagedEtcd, NodeRange,
    PasswordPlace, Settings, Witness,
};

impl Machine {
    fn with_file(self, name: &str) -> Self {
        std::fs::write(self.root.path().join(name), "").unwrap();
        self
    }

    /// The settings of a job with these options, given in one line.
    fn nodes(&self, options: &str) -> Settings {
        self.job(&line(options))
    }

    fn refused(&self, options: &str) -> String {
        self.error(&line(options))
    }
}

fn line(options: &str) -> Vec<&str> {
    let mut line = vec!["run"];
    line.extend(options.split_whitespace());
    line.extend(["--", "python", "x.py"]);
    line
}

fn managed(settings: Settings) -> ManagedEtcd {
    match settings.coordination {
        Coordination::Managed(managed) => managed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_node_needs_nothing() {
    let settings = Machine::new().nodes("");
    assert_eq!(settings.coordination, Coordination::Embedded);
    assert!(!settings.coordination.is_fenced());
    assert_eq!(settings.address, "127.0.0.1");
    assert_eq!(settings.agent_watchdog, Duration::from_secs(10));
    assert_eq!((settings.node_rank, settings.node_count_hint), (None, None));
}

#[test]
fn etcd_and_what_goes_with_it() {
    let machine = Machine::new()
        .with_file("ca")
        .with_file("cert")
        .with_file("key")
        .with_file("secret");
    let settings = machine.nodes(
        "--nnodes 2:4 --coord etcds://127.0.0.1:2379/team --job j --coord-ca ca --coord-cert cert --coord-key key \
         --coord-user u --coord-password-file secret --spares 1 --node-multiple 2 --wait-for-nodes 1m --shrink-after 5s \
         --grow immediately --witness off --node-rank 3 --topology rack=r1,nvlink=n3",
    );
    let file = |name: &str| machine.root.path().join(name);
    let address = EtcdAddress {
        uri: "etcds://127.0.0.1:2379/team".to_owned(),
        ca_file: Some(file("ca")),
        certificate: Some(CertificateFiles {
            certificate: file("cert"),
            key: file("key"),
        }),
        login: Some(EtcdLogin {
            user: "u".to_owned(),
            password: PasswordPlace::File(file("secret")),
        }),
    };
    let connection = address.settings(Duration::from_secs(3)).unwrap();
    assert_eq!(connection.lease_timeout, Duration::from_secs(1));
    assert_eq!(connection.prefix, "/team");
    let tls = connection.tls.unwrap();
    assert_eq!(tls.ca_file, Some(file("ca")));
    assert_eq!(tls.client.unwrap().key_file, file("key"));
    assert_eq!(connection.credentials.unwrap().user, "u");
    assert_eq!(settings.coordination, Coordination::Etcd(address));
    let elastic = &settings.elastic;
    assert_eq!(elastic.nodes, NodeRange { min: 2, max: 4 });
    assert_eq!((elastic.spares, elastic.node_multiple), (1, 2));
    assert_eq!(
        (elastic.grow, elastic.witness),
        (Grow::Immediately, Witness::Off)
    );
    assert_eq!(
        (elastic.wait_for_nodes, elastic.shrink_after),
        (Duration::from_mins(1), Duration::from_secs(5))
    );
    assert_eq!(
        (elastic.lease, elastic.witness_lease),
        (Duration::from_secs(10), Duration::from_secs(2))
    );
    assert_eq!(settings.node_rank, Some(3));
    assert_eq!(settings.topology[1].0, "nvlink");
    assert_eq!(settings.notes, [""; 0]);
    let json = serde_json::to_string(&settings).unwrap();
    assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);
}

#[test]
fn a_node_is_reached_where_its_route_to_etcd_starts() {
    let machine = Machine::new();
    let etcd = "--nnodes 2 --job j --coord etcd://127.0.0.1:2379";
    assert_eq!(machine.nodes(etcd).address, "127.0.0.1");
    let given = machine.nodes(&format!("{etcd} --address gpu7"));
    assert_eq!(given.address, "gpu7");
}

#[test]
fn nodes_that_share_a_directory_keep_their_logs_apart() {
    let machine = Machine::new();
    let settings = machine
        .nodes("--nnodes 2 --job j --coord etcd://127.0.0.1 --log-dir logs --node-name gpu7");
    assert_eq!(
        settings.log.run_dir,
        machine.root.path().join("logs/j/gpu7")
    );
    assert!(settings.journal.starts_with(&settings.log.run_dir));
}

#[test]
fn a_password_is_in_the_environment_or_in_a_file_and_never_in_the_settings() {
    let etcd = "--nnodes 2 --job j --coord etcd://127.0.0.1 --coord-user u";
    let settings = Machine::new()
        .with("STEADFAST_COORD_PASSWORD", "hunter2")
        .nodes(etcd);
    let json = serde_json::to_string(&settings).unwrap();
    assert!(json.contains("STEADFAST_COORD_PASSWORD") && !json.contains("hunter2"));
    let address = "etcd://u:hunter2@h1:2379";
    let machine = Machine::new().with("STEADFAST_COORD", address);
    for (error, place) in [
        (
            Machine::new().refused(&format!("--job j --coord {address}")),
            "--coord ",
        ),
        (machine.refused("--job j"), "STEADFAST_COORD="),
        (machine.error(&["config"]), "STEADFAST_COORD="),
    ] {
        assert!(error.contains(&format!("{place}etcd://...@h1")), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_sites_file_gives_jobs_on_one_node_no_etcd() {
    let machine = Machine::new()
        .with_file("ca")
        .with("STEADFAST_CONFIG", "site.toml");
    std::fs::write(
        machine.root.path().join("site.toml"),
        "coord = \"etcds://127.0.0.1\"\ncoord_ca = \"ca\"\nnode_name = \"n\"\n",
    )
    .unwrap();
    let one = machine.nodes("");
    assert_eq!(one.coordination, Coordination::Embedded);
    let two = machine.nodes("--nnodes 2 --job j");
    assert!(matches!(two.coordination, Coordination::Etcd(_)));
    let spare = machine.nodes("--spares 1 --job j");
    assert!(spare.coordination.is_fenced());
}

#[test]
fn managed_etcd_is_on_the_first_hosts() {
    let machine = Machine::new().with_program("etcd");
    let settings = machine.nodes("--coord managed --job j --hosts host[5-8] --spares 1");
    assert_eq!(settings.elastic.nodes, NodeRange { min: 3, max: 3 });
    assert_eq!(settings.node_count_hint, Some(4));
    assert_eq!(settings.address, "host7");
    let etcd = managed(settings);
    assert_eq!(etcd.hosts, ["host5", "host6", "host7", "host8"]);
    assert_eq!((etcd.servers, etcd.this_node), (3, 2));
    let two = machine.nodes("--coord managed --job j --hosts a,host7");
    assert_eq!(two.elastic.nodes, NodeRange { min: 2, max: 2 });
    assert_eq!(managed(two).servers, 1);
    for named in ["--node-name b", "--address b", "--node-rank 1"] {
        let options = format!("--coord managed --job j --hosts a,b,c --etcd-servers 1 {named}");
        let etcd = managed(machine.nodes(&options));
        assert_eq!((etcd.this_node, etcd.servers), (1, 1), "{named}");
    }
    let ports =
        machine.nodes("--coord managed --job j --hosts 127.0.0.2:7:8,127.0.0.1:5:6 --node-rank 1");
    assert_eq!(ports.address, "127.0.0.1");
}

#[test]
fn a_hung_agent_is_replaced_while_the_lease_holds() {
    let machine = Machine::new();
    let times = |options: &str| {
        let etcd = "--nnodes 2 --job j --coord etcd://127.0.0.1";
        let settings = machine.nodes(&format!("{etcd} {options}"));
        (
            settings.agent_heartbeat.as_millis(),
            settings.agent_watchdog.as_millis(),
        )
    };
    assert_eq!(times(""), (1000, 5000));
    assert_eq!(times("--lease 1m"), (1000, 10_000));
    assert_eq!(times("--agent-watchdog 3s"), (1000, 3000));
    assert_eq!(times("--lease 2s"), (250, 1000));
}

#[test]
fn sizes_that_a_multiple_leaves_out_are_told() {
    let settings =
        Machine::new().nodes("--nnodes 3:9 --node-multiple 4 --job j --coord etcd://127.0.0.1");
    insta::assert_snapshot!(settings.notes.join("\n"), @"`--node-multiple 4` lets 4 to 8 nodes run workers, out of `--nnodes 3:9`");
}

/// Options that no job can have.
const HOPELESS: [&str; 34] = [
    "--nnodes 2",
    "--nnodes 1:4 --coord embedded",
    "--spares 1",
    "--nnodes 2 --coord etcd://h1",
    "--coord managed --hosts host7,b",
    "--nnodes 2 --job j --coord h1:2379",
    "--nnodes 2 --job j --coord http://h1:2379",
    "--nnodes 2 --job j --coord etcd://h1 --coord-ca ca",
    "--nnodes 2 --job j --coord etcds://h1 --coord-ca ca",
    "--nnodes 2 --job j --coord etcds://h1 --coord-cert cert",
    "--nnodes 2 --job j --coord etcd://h1 --coord-password-file cert",
    "--nnodes 2 --job j --coord etcd://h1 --coord-user u",
    "--nnodes 2 --job j --coord etcd://h1 --hosts a,b",
    "--coord-user u",
    "--nnodes 2 --job j --coord managed",
    "--job j --coord managed --hosts a,b",
    "--job j --coord managed --hosts host7,b,b",
    "--job j --coord managed --hosts host[7",
    "--job j --coord managed --hosts host7,b --etcd-servers 3",
    "--job j --coord managed --hosts host7,b --etcd-servers 2",
    "--job j --coord managed --hosts host7,b --coord-user u",
    "--job j --coord managed --hosts host7,b --spares 2",
    "--job j --coord managed --hosts host7,b --nnodes 3:4",
    "--nnodes 5:7 --node-multiple 8 --job j --coord etcd://h1",
    "--nnodes 2 --master-addr h1 --job j --coord etcd://127.0.0.1",
    "--nnodes 2 --address h1:80 --job j --coord etcd://h1",
    "--lease 1s",
    "--witness-lease 11s",
    "--witness maybe",
    "--grow later",
    "--scheduler pbs",
    "--topology r1",
    "--nnodes 2 --agent-watchdog 6s --job j --coord etcd://h1",
    "--nnodes 2 --lease 3s --agent-heartbeat 1s --job j --coord etcd://h1",
];

#[test]
fn what_cannot_work_is_refused() {
    let machine = Machine::new().with_file("cert").with_program("etcd");
    let errors: Vec<String> = HOPELESS
        .into_iter()
        .map(|options| machine.refused(options))
        .collect();
    insta::assert_snapshot!(errors.concat(), @"
    error: `--nnodes 2`: the nodes of a job need a place to meet, and --coord names none

    hint: add `--coord etcd://HOST:2379` (or set STEADFAST_COORD), or `--coord managed --hosts A,B,C` to have the nodes run etcd themselves
    error: `--nnodes 1:4`: the nodes of a job need a place to meet, and --coord names none

    hint: add `--coord etcd://HOST:2379` (or set STEADFAST_COORD), or `--coord managed --hosts A,B,C` to have the nodes run etcd themselves
    error: `--spares 1`: the nodes of a job need a place to meet, and --coord names none

    hint: add `--coord etcd://HOST:2379` (or set STEADFAST_COORD), or `--coord managed --hosts A,B,C` to have the nodes run etcd themselves
    error: `--coord etcd://h1`: --job is missing; nodes find each other by the job's name, and the one that is made up would differ on each node

    hint: add `--job NAME`, the same on every node, and another one for each job
    error: `--coord managed`: --job is missing; nodes find each other by the job's name, and the one that is made up would differ on each node

    hint: add `--job NAME`, the same on every node, and another one for each job
    error: `--coord h1:2379`: must be `embedded`, `managed` or etcd://HOST:PORT,HOST:PORT
    error: `--coord http://h1:2379`: write etcd:// instead of http://
    error: `--coord-ca ca`: means something with --coord etcds:// alone
    error: `--coord-ca ca`: ROOT/ca: there is no such file
    error: `--coord-cert cert`: goes with --coord-key
    error: `--coord-password-file cert`: goes with --coord-user
    error: `--coord-user u`: the password is missing: name a file with --coord-password-file, or set STEADFAST_COORD_PASSWORD
    error: `--hosts a,b`: means something with --coord managed alone
    error: `--coord-user u`: means nothing without --coord
    error: `--coord managed`: name the nodes with --hosts A,B,C; only in a Slurm step are they known
    error: `--hosts a,b`: none of them is this node (host7): say which one is, with --node-name or --node-rank
    error: `--hosts host7,b,b`: b is named twice
    error: `--hosts host[7`: host list `host[7`, character 5: this `[` is never closed
    error: `--etcd-servers 3` and `--hosts host7,b` cannot both hold: every server is on a host of its own
    error: `--etcd-servers 2`: must be 1, 3 or 5: with an even number, no more of them may be lost
    error: `--coord-user u`: means nothing with --coord managed, which has certificates of its own
    error: `--spares 2`: there are 2 nodes in all, and none would be left for workers
    error: `--nnodes 3:4` and `--hosts host7,b` cannot both hold: the job would wait for nodes that it does not have
    error: `--node-multiple 8` and `--nnodes 5:7` cannot both hold: no number of nodes in that range is such a multiple
    error: `--master-addr h1` and `--nnodes 2` cannot both hold: rank 0 can move to another node, and the workers meet where it is; how this node is reached is said with --address
    error: `--address h1:80`: must be a host's name or address alone, without a port
    error: `--lease 1s`: must be at least 2s: below that, a busy moment looks like a lost node
    error: `--witness-lease 11s` and `--lease 10s` (the default) cannot both hold: training steps as a witness allow for a shorter lease, not for a longer one
    error: `--witness maybe`: must be `auto`, `on` or `off`
    error: `--grow later`: must be `never`, `at-checkpoint` or `immediately`
    error: `--scheduler pbs`: must be `auto` or `none`
    error: `--topology r1`: `r1` is not LEVEL=NAME, such as `rack=r1`
    error: `--agent-watchdog 6s` and `--lease 10s` (the default) cannot both hold: a hung agent renews no lease: to be replaced in time, its watchdog can be half of the lease at most
    error: `--agent-heartbeat 1s` and `--lease 3s` cannot both hold: the agent's watchdog is half of the lease at most, and at least twice the heartbeat
    ");
}

#[test]
fn managed_etcd_needs_the_program() {
    let error = Machine::new().refused("--job j --coord managed --hosts host7,b");
    assert!(error.contains("`etcd` was not found in PATH"), "{error}");
}

#[test]
fn a_launcher_inside_must_not_stand_alone_or_meet_elsewhere() {
    let machine = Machine::new();
    let etcd = [
        "run",
        "--nnodes=2",
        "--job=j",
        "--coord=etcd://127.0.0.1",
        "--",
        "torchrun",
    ];
    let torchrun = |flags: &[&'static str]| [&etcd[..], flags, &["x.py"]].concat();
    assert_eq!(
        machine.job(&torchrun(&["--nproc-per-node=8"])).notes,
        [""; 0]
    );
    let fixed = machine.job(&torchrun(&[
        "--rdzv-backend=c10d",
        "--rdzv_endpoint",
        "h1:29500",
    ]));
    insta::assert_snapshot!(fixed.notes.join("\n"), @"torchrun is told about its nodes on its command line (`--rdzv-backend c10d`, `--rdzv_endpoint h1:29500`), which stays the same when a node is lost: leave that out, and torchrun takes what holds from its environment (PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and so on)");
    insta::assert_snapshot!(machine.error(&torchrun(&["--standalone"])), @"error: `--standalone` of torchrun and `--nnodes 2` cannot both hold: every node would train by itself");
}
