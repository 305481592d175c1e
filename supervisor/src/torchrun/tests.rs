// SPDX-License-Identifier: Apache-2.0

mod nodes;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use super::{Asked, parse};
use crate::config::Host;
use crate::settings::{Mode, Settings, Std, Stdin};

struct Machine {
    root: tempfile::TempDir,
    host: Host,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        for name in ["python3", "tool"] {
            std::fs::write(bin.join(name), "").unwrap();
            std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o755))
                .unwrap();
        }
        std::fs::write(root.path().join("train.py"), "").unwrap();
        let host = Host::for_test(root.path());
        Self { root, host }
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.host = self.host.with(name, value);
        self
    }

    fn parse(&self, line: &str) -> Result<Asked, crate::config::ConfigError> {
        let words: Vec<OsString> = line
            .split(' ')
            .filter(|word| !word.is_empty())
            .map(OsString::from)
            .collect();
        parse(&self.host, &words)
    }

    fn job(&self, line: &str) -> Settings {
        match self.parse(line) {
            Ok(Asked::Job(settings)) => *settings,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn error(&self, line: &str) -> String {
        let text = self.parse(line).unwrap_err().render();
        text.replace(&self.root.path().display().to_string(), "ROOT")
    }

    fn argv(&self, line: &str) -> Vec<String> {
        let argv = self.job(line).command.argv.into_iter();
        argv.map(|word| {
            word.into_string()
                .unwrap()
                .replace(&self.root.path().display().to_string(), "ROOT")
        })
        .collect()
    }
}

#[test]
fn defaults_are_those_of_torchrun() {
    let settings = Machine::new().job("train.py");
    assert_eq!(
        (settings.mode, settings.workers, settings.max_restarts),
        (Mode::Torchrun, 1, 0)
    );
    assert_eq!(settings.stop_grace, Duration::from_secs(30));
    assert_eq!(
        (settings.log.redirects.get(0), settings.log.tee.get(0)),
        (Std::None, Std::None)
    );
    assert_eq!(
        (settings.stdin, settings.exit_codes.program),
        (Stdin::Inherit, Some(1))
    );
    assert_eq!((settings.master_addr, settings.master_port), (None, None));
    assert_eq!(settings.run_id.len(), 36);
    let directory = settings
        .log
        .run_dir
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    assert_eq!(directory, format!("{}_hhhhhhhh", settings.run_id));
    assert_eq!(settings.notes, [""; 0]);
}

#[test]
fn flags_are_read_as_argparse_does() {
    let machine = Machine::new();
    for line in [
        "--nproc-per-node 4 train.py",
        "--nproc_per_node 4 train.py",
        "--nproc-per-node=4 train.py",
        "--nproc_per_node=4 -- train.py",
        "--nproc 4 train.py",
        "--npr=4 train.py",
        "--nproc-per-node 2 --nproc-per-node 4 train.py",
    ] {
        assert_eq!(machine.job(line).workers, 4, "{line}");
    }
    for line in [
        "-r 3 train.py",
        "-r3 train.py",
        "-r=3 train.py",
        "-mr3 train",
        "--redir 3 train.py",
    ] {
        assert_eq!(machine.job(line).log.redirects.get(1), Std::Both, "{line}");
    }
    let settings = machine.job("-t 0:1,12:3 --local-ranks-filter 0,12 train.py");
    assert_eq!(
        (settings.log.tee.get(12), settings.log.tee.get(1)),
        (Std::Both, Std::None)
    );
    assert_eq!(
        settings
            .log
            .local_ranks_filter
            .unwrap()
            .into_iter()
            .collect::<Vec<_>>(),
        [0, 12]
    );
}

#[test]
fn everything_after_the_script_is_the_scripts() {
    let machine = Machine::new();
    let line = "--max-restarts 1 train.py --max-restarts 9 -m -- x";
    assert_eq!(
        machine.argv(line),
        [
            "ROOT/bin/python3",
            "-u",
            "train.py",
            "--max-restarts",
            "9",
            "-m",
            "--",
            "x"
        ]
    );
    assert_eq!(machine.job(line).max_restarts, 1);
}

#[test]
fn the_command_follows_the_way_to_run_the_script() {
    let machine = Machine::new();
    assert_eq!(
        machine.argv("-m pkg.train a"),
        ["ROOT/bin/python3", "-u", "-m", "pkg.train", "a"]
    );
    assert_eq!(machine.argv("--no-python tool a"), ["tool", "a"]);
    let run_path = machine.argv("--run-path train.py a");
    assert_eq!(
        (&run_path[1..3], &run_path[4..]),
        (
            &["-u".to_owned(), "-c".to_owned()][..],
            &["train.py".to_owned(), "a".to_owned()][..]
        )
    );
    let settings = machine.job("train.py ${local_rank}");
    assert_eq!(settings.command.argv_for(3).last().unwrap(), "3");
    let other = machine.with("PYTHON_EXEC", "tool");
    assert_eq!(other.argv("train.py"), ["tool", "-u", "train.py"]);
}

#[test]
fn the_environment_stands_in_for_flags() {
    let machine = Machine::new()
        .with("PET_NPROC_PER_NODE", "2")
        .with("PET_MAX_RESTARTS", "5")
        .with("PET_NO_PYTHON", "1")
        .with("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7");
    let settings = machine.job("--max-restarts 6 tool");
    assert_eq!((settings.workers, settings.max_restarts), (2, 6));
    assert_eq!(
        (settings.stop_grace, settings.command.argv.len()),
        (Duration::from_secs(7), 1)
    );
    assert_eq!(
        machine.job("--shutdown-timeout 9 tool").stop_grace,
        Duration::from_secs(9)
    );
    let ours = machine.with("STEADFAST_MAX_RESTARTS", "8");
    assert_eq!(ours.job("tool").max_restarts, 8);
}

#[test]
fn our_own_options_are_taken_in_full_only() {
    let machine = Machine::new();
    let settings =
        machine.job("--restart-grace 1s --console=false --exit-code program=pass --job j train.py");
    assert_eq!(
        (settings.restart_grace, settings.log.console),
        (Duration::from_secs(1), false)
    );
    assert_eq!(
        (settings.exit_codes.program, settings.job.as_str()),
        (None, "j")
    );
    assert!(machine.parse("--restart-gr 1s train.py").is_err());
}

#[test]
fn the_static_rendezvous_fixes_the_address() {
    let machine = Machine::new();
    for line in [
        "--master-addr 10.0.0.1 --master-port 29501 train.py",
        "--rdzv-endpoint 10.0.0.1:29501 train.py",
        "--rdzv-endpoint 10.0.0.1:29501 --master-port 1 train.py",
    ] {
        let settings = machine.job(line);
        assert_eq!(
            (settings.master_addr.as_deref(), settings.master_port),
            (Some("10.0.0.1"), Some(29501)),
            "{line}"
        );
        assert_eq!(settings.run_id, "none");
    }
    let settings = machine.job("--rdzv-endpoint [::1]:0 train.py");
    assert_eq!(
        (settings.master_addr.as_deref(), settings.master_port),
        (Some("::1"), None)
    );
    let settings = machine
        .job("--rdzv-backend c10d --rdzv-endpoint h:1 --rdzv-id 101 --master-port 5 train.py");
    assert_eq!((settings.master_addr, settings.master_port), (None, None));
    assert_eq!(settings.run_id, "101");
    assert!(settings.job.starts_with("101-"));
    insta::assert_snapshot!(settings.notes.join("\n"), @"`--master-port 5` is not used: it is for the static rendezvous only");
    let settings = machine.job("--standalone --rdzv-id 101 train.py");
    assert_eq!(settings.run_id.len(), 36);
}

#[test]
fn flags_without_effect_are_told() {
    let line = "--monitor-interval 1 --rdzv-conf a=b --numa-binding node --start-method fork --logs-specs x train.py";
    insta::assert_snapshot!(Machine::new().job(line).notes.join("\n"), @"
    `--rdzv-conf a=b` has no effect: the nodes of a job meet through --coord
    `--monitor-interval 1` has no effect: the end of a worker is seen at once, without polling
    `--start-method fork` has no effect: workers are always started as programs of their own
    `--logs-specs x` has no effect: it names Python code of torchrun
    `--numa-binding node` has no effect: workers are not bound to NUMA nodes in this version
    ");
}

#[test]
fn wrong_lines_are_refused() {
    let machine = Machine::new();
    let errors: Vec<String> = [
        "--nproc-per-nod=x --what 3 train.py",
        "--nproc-per-noed 3 train.py",
        "--rdzv 3 train.py",
        "--max-restarts --tee 3 train.py",
        "--max-restarts",
        "--standalone=1 train.py",
        "-x train.py",
        "",
        "-m --no-python tool",
        "gone.py",
        "--no-python gone",
        "--nnodes 1:4 train.py",
        "--nproc-per-node xpu train.py",
        "--node-rank 1 train.py",
        "--start-method thread train.py",
        "--rdzv-endpoint host train.py",
        "--shutdown-timeout later train.py",
        "--print-completion bash",
    ]
    .into_iter()
    .map(|line| machine.error(line))
    .collect();
    insta::assert_snapshot!(errors.concat(), @"
    error: torchrun: unrecognized flag `--what`

    hint: `steadfast torchrun --help` lists the flags; the script's own come after the script
    error: torchrun: unrecognized flag `--nproc-per-noed`

    hint: did you mean `--nproc-per-node`?
    error: torchrun: ambiguous flag `--rdzv`: it could be --rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf
    error: torchrun: flag `--max-restarts` needs a value
    error: torchrun: flag `--max-restarts` needs a value
    error: torchrun: flag `--standalone` takes no value, but got `1`
    error: torchrun: unrecognized flag `-x`

    hint: `steadfast torchrun --help` lists the flags; the script's own come after the script
    error: torchrun: no training script was given

    hint: steadfast torchrun [FLAGS] train.py [ARGUMENTS]
    error: torchrun: `--module` and `--no-python` cannot both be given: a module is run by Python
    error: training script ROOT/gone.py: there is no such file
    error: command `gone` was not found in PATH (ROOT/bin)

    hint: give its path, or add its directory to PATH before starting steadfast
    error: `--nnodes 1:4`: the nodes of a job need a place to meet, and --coord names none

    hint: add `--coord etcd://HOST:2379` (or set STEADFAST_COORD), or `--coord managed --hosts A,B,C` to have the nodes run etcd themselves
    error: `--nproc-per-node xpu`: must be a whole number of at least 1, or `auto`, `gpu` or `cpu`
    error: `--node-rank 1`: the rank of the only node is 0
    error: `--start-method thread`: must be one of spawn, fork, forkserver
    error: `--rdzv-endpoint host`: the static rendezvous needs HOST:PORT
    error: `--shutdown-timeout later`: not a duration such as `30s`, `1m30s` or `500ms`
    error: torchrun: `--print-completion` is not taken here

    hint: use `steadfast completions SHELL`
    ");
    insta::assert_snapshot!(machine.with("PET_NNODES", "x").error("train.py"), @"error: `PET_NNODES=x`: must be N or MIN:MAX, with numbers of at least 1");
}
