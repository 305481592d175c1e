// SPDX-License-Identifier: Apache-2.0

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::error::ConfigError;
use super::file;
use super::host::Host;
use super::option::{Default, Key, Kind};
use super::show;
use super::table::OPTIONS;
use super::values::{Origin, Value, Values, Written};
use crate::settings::Mode;

/// A value that is not the default and that every check takes, for each option.
fn other_value(name: &str) -> &'static str {
    match name {
        "job" | "role" | "node-name" | "master-addr" | "address" | "coord-user" => "other",
        "nnodes" => "1:1",
        "nproc-per-node" | "node-rank" => "3",
        "spares" | "node-multiple" | "etcd-servers" => "1",
        "wait-for-nodes" | "lease" => "1m",
        "shrink-after" | "witness-lease" => "3s",
        "grow" => "never",
        "witness" => "off",
        "topology" => "rack=r1,nvlink=n3",
        "scheduler" => "none",
        "coord" => "etcd://127.0.0.1",
        "coord-ca" | "coord-cert" | "coord-key" | "coord-password-file" => "file",
        "hosts" => "host7,other",
        "working-dir" | "log-dir" | "runtime-dir" => ".",
        "stdin" => "inherit",
        "master-port" => "29511",
        "virtual-local-rank" => "true",
        "hook" => "false",
        "core-size" => "16G",
        "cgroup" => "off",
        "max-restarts" => "7",
        "stall" => "report",
        "stall-after" => "20s,eval=1h",
        "on-nan" => "end",
        "restart-grace" | "agent-heartbeat" => "2s",
        "stop-grace" | "time-limit-lead" | "agent-watchdog" => "1m",
        "signals-to-handle" => "SIGTERM,SIGUSR1",
        "exit-code" => "infra=80",
        "checkpoint-dir" => "saves",
        "checkpoint-layout" => "dcp",
        "checkpoint-signal" => "SIGUSR1",
        "time-limit-signal" => "SIGUSR2",
        "checkpoint-file" => "save-now",
        "checkpoint-every" => "auto",
        "checkpoint-timeout" => "30s",
        "fix-tracker" => "true",
        "keep" => "3",
        "redirects" | "tee" => "0:1",
        "console" => "false",
        "local-ranks-filter" => "0,1",
        "duplicate-stdout-filters" | "duplicate-stderr-filters" => "loss,error",
        "log-line-prefix-template" => "${rank}> ",
        "progress-regex" => "step (\\d+)",
        "journal" => "events.jsonl",
        "kernel-log" | "nvml" | "self-check" => "off",
        "self-check-every" | "self-check-wait" => "5s",
        "kernel-log-trust" => "anyone",
        "xid-policy" | "fault-rules" => "/dev/null",
        _ => panic!("give {name} a value here"),
    }
}

/// Other options without which the option means nothing.
fn companions(name: &str) -> Vec<(Key, &'static str)> {
    let etcd = (Key::Coord, "etcds://127.0.0.1");
    match name {
        "spares" | "coord-ca" => vec![etcd],
        "coord-cert" => vec![etcd, (Key::CoordSecret, "file")],
        "coord-key" => vec![etcd, (Key::CoordCert, "file")],
        "coord-user" => vec![etcd, (Key::CoordPasswordFile, "file")],
        "coord-password-file" => vec![etcd, (Key::CoordUser, "other")],
        "hosts" => vec![(Key::Coord, "managed")],
        "checkpoint-layout" | "checkpoint-signal" | "fix-tracker" | "keep" => {
            vec![(Key::CheckpointDir, "saves")]
        }
        "etcd-servers" => vec![(Key::Coord, "managed"), (Key::Hosts, "host7")],
        _ => vec![],
    }
}

fn resolve(host: &Host) -> Result<Values, ConfigError> {
    Values::resolve(Mode::Run, host, Written::default())
}

fn user_file(root: &Path, text: &str) {
    let directory = root.join("home/.config/steadfast");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("config.toml"), text).unwrap();
}

#[test]
fn every_option_can_be_set_in_all_three_places_in_order_of_precedence() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), "").unwrap();
    let etcd = root.path().join("bin/etcd");
    std::fs::create_dir(root.path().join("bin")).unwrap();
    std::fs::write(&etcd, "").unwrap();
    std::fs::set_permissions(etcd, std::fs::Permissions::from_mode(0o755)).unwrap();
    for option in &OPTIONS {
        let text = other_value(option.name);
        user_file(
            root.path(),
            &format!(
                "{} = {}\n",
                option.file_key(),
                show::toml_value(option.kind, text)
            ),
        );
        let host = Host::for_test(root.path());
        let from_file = resolve(&host).unwrap();
        assert_eq!(
            from_file.text(option.key),
            Some(text),
            "{} in a file",
            option.name
        );
        assert!(matches!(
            from_file.get(option.key).unwrap().origin,
            Origin::File(_, 1)
        ));

        let host = host.with(&option.environment(), text);
        let from_environment = resolve(&host).unwrap();
        assert_eq!(
            from_environment.get(option.key).unwrap().origin,
            Origin::Environment(option.environment())
        );

        let flag = Value::flag(format!("--{}", option.name), text);
        let companions = companions(option.name).into_iter();
        let mut flags: Vec<(Key, Value)> = companions
            .map(|(key, text)| (key, Value::flag("--companion", text)))
            .collect();
        flags.push((option.key, flag.clone()));
        let written = Written {
            flags,
            ..Written::default()
        };
        let from_flag = Values::resolve(Mode::Run, &host, written).unwrap();
        assert_eq!(from_flag.get(option.key), Some(&flag));
        super::validate::check_values(&host, &from_flag, None)
            .unwrap_or_else(|error| panic!("{}: {error}", option.name));
    }
}

#[test]
fn the_defaults_pass_every_check() {
    let root = tempfile::tempdir().unwrap();
    let host = Host::for_test(root.path());
    for mode in [Mode::Run, Mode::Torchrun] {
        let values = Values::resolve(mode, &host, Written::default()).unwrap();
        super::validate::check_values(&host, &values, None).unwrap();
    }
}

#[test]
fn a_later_file_goes_before_an_earlier_one() {
    let root = tempfile::tempdir().unwrap();
    let etc = root.path().join("etc/steadfast");
    std::fs::create_dir_all(&etc).unwrap();
    std::fs::write(
        etc.join("config.toml"),
        "max_restarts = 1\nrole = \"etc\"\ntee = 0\n",
    )
    .unwrap();
    user_file(root.path(), "max_restarts = 2\nrole = \"user\"\n");
    std::fs::write(root.path().join("named.toml"), "max_restarts = 3\n").unwrap();
    let host = Host::for_test(root.path()).with("STEADFAST_CONFIG", "named.toml");
    let values = resolve(&host).unwrap();
    let texts: Vec<_> = ["max-restarts", "role", "tee"]
        .into_iter()
        .map(|name| {
            values
                .text(super::table::by_name(name).unwrap().key)
                .unwrap()
        })
        .collect();
    assert_eq!(texts, ["3", "user", "0"]);
}

#[test]
fn the_sample_holds_the_defaults() {
    let sample = show::sample();
    assert_eq!(file::parse(Path::new("sample"), &sample).unwrap(), []);
    let uncommented: String = sample
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.starts_with(' ') => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let values = file::parse(Path::new("sample"), &uncommented).unwrap();
    assert_eq!(values.len(), OPTIONS.len());
    for value in values {
        if let Default::Value(default) = super::table::spec(value.key).default {
            assert_eq!(value.text, default, "{:?}", value.key);
        }
    }
}

#[test]
fn toml_values_are_taken_in_their_own_types() {
    let text =
        "max_restarts = 1_0\nconsole = false\nstop_grace = 2.5\nlocal_ranks_filter = [0, 12]\n";
    let values = file::parse(Path::new("c.toml"), text).unwrap();
    let texts: Vec<&str> = values.iter().map(|value| value.text.as_str()).collect();
    let mut sorted = texts.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, ["0,12", "10", "2.5", "false"]);
}

#[test]
fn mistakes_in_a_file_are_placed() {
    let error = |text: &str| {
        file::parse(Path::new("/c.toml"), text)
            .unwrap_err()
            .render()
    };
    insta::assert_snapshot!(error("tee = 3\n\nmax_restart = 5\n"), @"
    error: /c.toml:3: unknown key `max_restart`

    hint: did you mean `max_restarts`?
    ");
    insta::assert_snapshot!(error("learning_rate = 5\n"), @"
    error: /c.toml:1: unknown key `learning_rate`

    hint: `steadfast config --sample` prints every key with its meaning
    ");
    insta::assert_snapshot!(error("max-restarts = 5\n"), @"
    error: /c.toml:1: unknown key `max-restarts`

    hint: did you mean `max_restarts`?
    ");
    insta::assert_snapshot!(error("tee = 3\nrole = \n"), @"error: /c.toml:2: not valid TOML: string values must be quoted, expected literal string");
    insta::assert_snapshot!(error("[tee]\nrank0 = 3\n"), @"
    error: /c.toml:1: `tee` is a table, not a single value or a list

    hint: keys stand at the top level, one a line: `max_restarts = 3`
    ");
    insta::assert_snapshot!(error("role = 2026-01-01\n"), @"
    error: /c.toml:1: `role` is a date, not a single value or a list

    hint: keys stand at the top level, one a line: `max_restarts = 3`
    ");
    insta::assert_snapshot!(error("duplicate_stdout_filters = [\"a,b\"]\n"), @"
    error: /c.toml:1: `duplicate_stdout_filters` is a list with a comma in one of its items, not a single value or a list

    hint: keys stand at the top level, one a line: `max_restarts = 3`
    ");
}

#[test]
fn a_file_that_was_named_must_be_there() {
    let root = tempfile::tempdir().unwrap();
    let host = Host::for_test(root.path());
    let written = Written {
        config: Some("/nowhere/c.toml".to_owned()),
        ..Written::default()
    };
    let error = Values::resolve(Mode::Run, &host, written).unwrap_err();
    insta::assert_snapshot!(error.render(), @"error: cannot read the configuration file /nowhere/c.toml (--config): No such file or directory (os error 2)");
}

#[test]
fn what_is_in_force_is_shown_with_its_origin() {
    let root = tempfile::tempdir().unwrap();
    let host = Host::for_test(root.path()).with("STEADFAST_TEE", "0");
    let values = resolve(&host).unwrap();
    let text = show::text(&values);
    assert_eq!(text.lines().count(), OPTIONS.len());
    let line = |key: &str| {
        text.lines()
            .find(|line| line.starts_with(key))
            .unwrap()
            .to_owned()
    };
    insta::assert_snapshot!(line("max_restarts"), @"max_restarts             = 3                                         # default");
    insta::assert_snapshot!(line("tee"), @r#"tee                      = "0"                                       # environment STEADFAST_TEE"#);
    insta::assert_snapshot!(line("node_name"), @"node_name                = (the host's name, or Slurm's)             # default");
    let json: serde_json::Value = serde_json::from_str(&show::json(&values)).unwrap();
    assert_eq!(json["version"], 1);
    assert_eq!(json["options"].as_array().unwrap().len(), OPTIONS.len());
    let tee = &json["options"]
        .as_array()
        .unwrap()
        .iter()
        .find(|option| option["key"] == "tee")
        .unwrap();
    assert_eq!(tee["place"], "STEADFAST_TEE");
}

#[test]
fn values_are_written_as_toml_takes_them() {
    assert_eq!(show::toml_value(Kind::List, "a,b"), r#"["a", "b"]"#);
    assert_eq!(show::toml_value(Kind::Text, "a\"b"), "'a\"b'");
    assert_eq!(show::toml_value(Kind::Integer, "3"), "3");
}
