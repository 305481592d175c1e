// SPDX-License-Identifier: Apache-2.0
//! The line of `steadfast check`.

use std::path::PathBuf;

use steadfast_checks::{Nvml, Profile};

use super::Machine;
use crate::check_command::{ConfigFile, Form, Inquiry, Request, Subject};
use crate::cli::Invocation;

fn request(machine: &Machine, line: &[&str]) -> Request {
    match machine.parse(&[&["check"], line].concat()) {
        Ok(Invocation::Check(request)) => request,
        other => panic!("{other:?}"),
    }
}

fn inquiry(machine: &Machine, line: &[&str]) -> Inquiry {
    match request(machine, line).subject {
        Subject::Node(inquiry) => *inquiry,
        other @ Subject::List => panic!("{other:?}"),
    }
}

#[test]
fn what_is_not_said_is_what_a_person_beside_jobs_would_want() {
    let machine = Machine::new();
    let root = machine.root.path();
    assert_eq!(
        inquiry(&machine, &[]),
        Inquiry {
            profile: Profile::Health,
            only: Vec::new(),
            skip: Vec::new(),
            config: ConfigFile::IfThere(root.join("etc/steadfast/checks.toml")),
            node: "host7".to_owned(),
            root: root.to_owned(),
            state: Some(root.join("home/.local/state/steadfast/checks.json")),
            nvml: Nvml::Installed,
            gpu_faults: root.join("var/lib/steadfast/gpu-faults.json"),
            gpus: None,
        }
    );
    let mut machine = machine;
    machine.host.uid = 0;
    let state = inquiry(&machine, &[]).state;
    assert_eq!(state, Some(PathBuf::from("/var/lib/steadfast/checks.json")));
}

#[test]
fn flags_go_before_variables() {
    let machine = Machine::new()
        .with("STEADFAST_CHECK_CONFIG", "/a.toml")
        .with("STEADFAST_CHECK_STATE", "off")
        .with("STEADFAST_NVML", "off");
    let from_variables = inquiry(&machine, &[]);
    assert_eq!(from_variables.config, ConfigFile::Named("/a.toml".into()));
    assert_eq!(
        (from_variables.state, from_variables.nvml),
        (None, Nvml::Off)
    );
    let line = [
        "--config", "/b.toml", "--state", "/s.json", "--nvml", "/lib.so",
    ];
    let from_flags = inquiry(&machine, &line);
    assert_eq!(from_flags.config, ConfigFile::Named("/b.toml".into()));
    assert_eq!(from_flags.state, Some("/s.json".into()));
    assert_eq!(from_flags.nvml, Nvml::At("/lib.so".into()));
}

#[test]
fn checks_and_gpus_are_lists() {
    let machine = Machine::new();
    let line = [
        "gpu-ecc", "mounts", "--skip", "a,b", "--skip", "c", "--gpus", "0,GPU-1",
    ];
    let found = inquiry(&machine, &line);
    assert_eq!(found.only, ["gpu-ecc", "mounts"]);
    assert_eq!(found.skip, ["a", "b", "c"]);
    assert_eq!(found.gpus.unwrap(), ["0", "GPU-1"]);
}

#[test]
fn a_report_has_one_form() {
    let machine = Machine::new();
    for (line, form) in [
        (&["--json"][..], Form::Json),
        (&["--prometheus"], Form::Prometheus),
        (&["--nagios"], Form::Nagios),
        (&["--list", "--json"], Form::Json),
    ] {
        assert_eq!(request(&machine, line).form, form, "{line:?}");
    }
    let text = |machine: &Machine, line: &[&str]| match request(machine, line).form {
        Form::Text { verbose, plain } => (verbose, plain),
        other => panic!("{other:?}"),
    };
    assert_eq!(text(&machine, &["-v"]), (true, false));
    assert_eq!(text(&machine.with("NO_COLOR", "1"), &[]), (false, true));
    let machine = Machine::new();
    for (line, said) in [
        (&["check", "--json", "--nagios"][..], "cannot be used with"),
        (&["check", "--profile", "prologue"], "prolog"),
        (&["check", "--list", "mounts"], "cannot be used with"),
    ] {
        let error = machine.error(line);
        assert!(error.contains(said), "{line:?}: {error}");
    }
}
