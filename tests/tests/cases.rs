// SPDX-License-Identifier: Apache-2.0
//! `steadfast diagnose` on kept cases, as a person calls it: one of each kind here, all of them in the tests of the library.

#![expect(clippy::unwrap_used, reason = "this is test code")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("cases")
        .join(name)
}

#[expect(clippy::disallowed_methods, reason = "tests create processes")]
fn diagnose(path: &Path, options: &[&str]) -> Output {
    Command::new(steadfast_tests::steadfast())
        .arg("diagnose")
        .arg(path)
        .args(options)
        .output()
        .unwrap()
}

fn answer(path: &Path) -> Value {
    let output = diagnose(path, &["--json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn logs_are_told_from_their_consequences() {
    let path = case("05-ib-error-names-peer");
    let json = answer(&path);
    assert_eq!(json["fault"], true);
    assert_eq!(json["class"], "network");
    assert_eq!(json["culprit"], json!({ "node": "ddp-2" }));
    assert_eq!(json["signals"][0]["file"], "rank-1.log");
    assert_eq!(json["signals"][0]["line"], 2);
    assert!(!json["secondary"].as_array().unwrap().is_empty());
    let text = String::from_utf8(diagnose(&path, &[]).stdout).unwrap();
    assert!(text.starts_with("verdict   ddp-2: "), "{text}");
    assert!(text.contains("\nfollows   rank-3.log:3: "), "{text}");
}

#[test]
fn the_program_itself_reads_every_kind_of_file() {
    // What its expressions may use depends on how it is built, which the library's own tests do not see.
    for (name, class) in [
        ("203-shm-64-megabytes", "host_memory"),
        ("227-resume-shard-empty", "storage"),
        ("233-remap-failed-in-query", "gpu_hardware"),
        ("354-one-slow-gpu", "straggler"),
        ("805-intel-mpi-bad-termination", "unknown"),
    ] {
        assert_eq!(answer(&case(name))["class"], class, "{name}");
    }
}

#[test]
fn one_file_is_enough() {
    let json = answer(&case("28-loader-exception-in-one-rank/all.log"));
    assert_eq!(json["class"], "program_error");
    assert_eq!(json["culprit"]["rank"], 3);
}

#[test]
fn kernel_logs_give_events() {
    let json = answer(&case("50-xid79-and-companions"));
    assert_eq!(json["class"], "gpu_hardware");
    assert_eq!(json["culprit"]["gpu"], "0000:06:00");
    assert_eq!(json["incidents"], 1);
    assert_eq!(json["events"][0]["code"], 79);
}

#[test]
fn states_name_the_rank_that_never_came() {
    let json = answer(&case("65-never-entered-dataloader"));
    assert_eq!(json["class"], "hang");
    assert_eq!(json["culprit"]["rank"], 2);
}

#[test]
fn host_lists_are_expanded_or_refused() {
    let json = answer(&case("79-hostlist-nested-and-open"));
    assert_eq!(json["fault"], false);
    let expected = json!(["r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib"]);
    assert_eq!(json["expand"][0]["hosts"], expected);
    assert_eq!(json["expand"][1]["error"], true);
}

#[test]
fn checkpoints_are_told_apart() {
    let json = answer(&case("95-hf-last-shard-cut"));
    assert_eq!(json["class"], "storage");
    assert_eq!(json["layout"], "huggingface");
    assert_eq!(json["newest_good"], "checkpoint-100");
    assert_eq!(json["torn"], json!(["checkpoint-200"]));
}

#[test]
fn rules_of_one_s_own_come_first_and_wrong_ones_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("rank-0.log"),
        "step 3\nlicense server n7 refused\n",
    )
    .unwrap();
    assert_eq!(answer(folder.path())["fault"], false);
    let rules = tempfile::NamedTempFile::new().unwrap();
    let text = "[[rule]]\nid = 'site.license'\nclass = 'configuration'\nrole = 'cause'\n\
                match = ['license server \\S+ refused']\nmeaning = 'the license server refused the job'\n";
    std::fs::write(rules.path(), text).unwrap();
    let option = ["--json", "--rules", rules.path().to_str().unwrap()];
    let output = diagnose(folder.path(), &option);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["summary"], "the license server refused the job");
    std::fs::write(rules.path(), "[[rule]]\nid = 'x'\n").unwrap();
    let output = diagnose(folder.path(), &option);
    assert_eq!(output.status.code(), Some(78));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(":1: `x`: has no `role`"), "{error}");
}

#[test]
fn where_there_is_nothing_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let output = diagnose(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("there is nothing to explain"), "{error}");
}
