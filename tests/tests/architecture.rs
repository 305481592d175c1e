// SPDX-License-Identifier: Apache-2.0
//! The arrows between the crates run downward only, and the decision core stays pure.

#![expect(clippy::expect_used, reason = "this is test code")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

#[expect(clippy::disallowed_methods, reason = "tests create processes")]
fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(arguments)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("cargo prints UTF-8")
}

/// The crates of the workspace that each crate of the workspace depends on, tests aside.
fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let metadata: Value = serde_json::from_str(&cargo(&[
        "metadata",
        "--no-deps",
        "--format-version",
        "1",
        "--offline",
    ]))
    .expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let names: BTreeSet<String> = packages.iter().map(name).collect();
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"]
                .as_array()
                .expect("a list of dependencies");
            let arrows = dependencies
                .iter()
                .filter(|dependency| dependency["kind"] != "dev")
                .map(name)
                .filter(|dependency| names.contains(dependency))
                .collect();
            (name(package), arrows)
        })
        .collect()
}

#[test]
fn arrows_between_crates_run_downward_only() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("steadfast-proto", &[] as &[&str]),
        ("steadfast-process", &[]),
        ("steadfast-health", &["steadfast-proto"]),
        ("steadfast-checks", &["steadfast-health"]),
        ("steadfast-diagnosis", &["steadfast-health"]),
        ("steadfast-core", &["steadfast-proto"]),
        ("steadfast-checkpoints", &[]),
        ("steadfast-sim", &["steadfast-core", "steadfast-proto"]),
        ("steadfast-coord", &["steadfast-core", "steadfast-proto"]),
        (
            "steadfast",
            &[
                "steadfast-checkpoints",
                "steadfast-checks",
                "steadfast-coord",
                "steadfast-core",
                "steadfast-diagnosis",
                "steadfast-health",
                "steadfast-process",
                "steadfast-proto",
            ],
        ),
    ]);
    for (package, dependencies) in arrows() {
        let nothing_depends_on = ["steadfast-chaos", "steadfast-fake-nvml", "steadfast-tests"];
        for dependency in &dependencies {
            assert!(
                !nothing_depends_on.contains(&dependency.as_str()),
                "{package} -> {dependency}"
            );
        }
        if nothing_depends_on.contains(&package.as_str()) {
            continue;
        }
        let allowed = allowed.get(package.as_str()).unwrap_or_else(|| {
            panic!("say in this test and in docs/architecture.md what {package} may know")
        });
        for dependency in &dependencies {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{package} must not know {dependency}"
            );
        }
    }
}

#[test]
fn the_decision_core_can_reach_neither_clock_nor_socket_nor_chance() {
    let tree = cargo(&[
        "tree",
        "-p",
        "steadfast-core",
        "-e",
        "normal",
        "--prefix",
        "none",
        "--offline",
    ]);
    let crates: BTreeSet<&str> = tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(crates.contains("steadfast-core"), "{tree}");
    for impure in [
        "tokio",
        "mio",
        "socket2",
        "nix",
        "rustix",
        "libc",
        "rand",
        "getrandom",
        "jiff",
        "tonic",
        "hyper",
    ] {
        assert!(!crates.contains(impure), "steadfast-core reaches {impure}");
    }
}
