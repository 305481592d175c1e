// SPDX-License-Identifier: Apache-2.0
//! What a torchrun command line may say, and what is run for it.

#![expect(clippy::panic, reason = "this is test code")]

use std::path::Path;

use serde_json::Value;
use steadfast_tests::{Job, Launch, Requirement, python};

/// The arguments after the program of the only worker.
fn arguments(job: &Job) -> Vec<String> {
    let starts = job.started(0, 1);
    let words = starts[0]["arguments"].as_array().into_iter().flatten();
    words
        .skip(1)
        .filter_map(|word| Some(word.as_str()?.to_owned()))
        .collect()
}

/// A script that writes its arguments and some of its surroundings to `out-RANK`.
const SCRIPT: &str = "\
import json, os, sys
with open('out-' + os.environ['RANK'], 'w') as file:
    json.dump({'argv': sys.argv, 'name': __name__, 'unbuffered': sys.stdout.write_through}, file)
";

#[track_caller]
fn written_by(job: &Job, rank: u32) -> Value {
    let path = job.work().join(format!("out-{rank}"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{error}; {}", job.describe()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn place(launch: &Launch, name: &str, text: &str) {
    let path = launch.directory().join("work").join(name);
    let made = std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/")));
    made.and_then(|()| std::fs::write(&path, text))
        .unwrap_or_else(|error| panic!("{error}: {}", path.display()));
}

#[test]
fn the_number_of_workers_can_be_counted() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    for count in ["cpu", "auto"] {
        if count == "auto" && Path::new("/dev/nvidia0").exists() {
            continue;
        }
        let mut job = Launch::torchrun(&["--nproc-per-node", count])
            .worker(&[])
            .start();
        job.wait().ended_with(0);
        let world_size = &job.started(0, cpus)[0]["environment"]["WORLD_SIZE"];
        assert_eq!(world_size, &cpus.to_string());
    }
    if !Path::new("/dev/nvidia0").exists() {
        let mut job = Launch::torchrun(&["--nproc-per-node", "gpu"])
            .worker(&[])
            .start();
        job.wait().ended_with(78).said("gpu");
        assert!(job.records().is_empty());
    }
}

#[test]
fn a_script_is_run_by_python_unbuffered_with_its_own_arguments() {
    if !Requirement::Python.met() {
        return;
    }
    let launch = Launch::torchrun(&["--nproc-per-node", "2"]).env("PYTHON_EXEC", python());
    place(&launch, "train.py", SCRIPT);
    let mut job = launch
        .command(&[
            "train.py",
            "--nproc-per-node",
            "7",
            "--rank=${local_rank}",
            "$$",
        ])
        .start();
    job.wait().ended_with(0);
    for rank in 0..2 {
        let written = written_by(&job, rank);
        let argv = serde_json::json!([
            "train.py",
            "--nproc-per-node",
            "7",
            format!("--rank={rank}"),
            "$"
        ]);
        assert_eq!(written["argv"], argv);
        assert_eq!(written["name"], "__main__");
        assert_eq!(written["unbuffered"], true);
    }
}

#[test]
fn a_module_is_run_by_python() {
    if !Requirement::Python.met() {
        return;
    }
    let launch = Launch::torchrun(&[]);
    place(&launch, "package/__init__.py", "");
    place(&launch, "package/train.py", SCRIPT);
    let mut job = launch
        .command(&["-m", "package.train", "--lr", "1"])
        .start();
    job.wait().ended_with(0);
    let written = written_by(&job, 0);
    assert_eq!(
        written["argv"].as_array().map(Vec::len),
        Some(3),
        "{written}"
    );
    assert_eq!(written["argv"][1], "--lr");
}

#[test]
fn a_path_is_run_by_runpy() {
    if !Requirement::Python.met() {
        return;
    }
    let launch = Launch::torchrun(&[]);
    place(&launch, "train.py", SCRIPT);
    let mut job = launch.command(&["--run-path", "train.py", "--lr"]).start();
    job.wait().ended_with(0);
    assert_eq!(
        written_by(&job, 0)["argv"],
        serde_json::json!(["train.py", "--lr"])
    );
}

#[test]
fn a_program_is_run_as_it_is() {
    let mut job = Launch::torchrun(&[])
        .worker(&["record:${local_rank}", "record:$local_rank"])
        .start();
    job.wait().ended_with(0);
    assert_eq!(arguments(&job), ["record:0", "record:0"]);
    assert_eq!(job.records_of("0").len(), 2);
}

#[test]
fn a_wrong_command_line_starts_nothing() {
    for (options, command, text) in [
        (
            &["--nproc-per-nodes", "2"][..],
            &["train.py"][..],
            "--nproc-per-node",
        ),
        (
            &[],
            &["a-script-that-is-not-there.py"],
            "a-script-that-is-not-there.py",
        ),
        (&["-m", "--no-python"], &["x"], "--no-python"),
        (
            &["--no-python", "--nproc-per-node", "many"],
            &["/bin/true"],
            "many",
        ),
        (&[], &[], ""),
    ] {
        let mut job = Launch::torchrun(options).command(command).start();
        job.wait().ended_with(78).said(text);
        assert!(
            !job.directory().join("logs").exists() && !job.runtime_root().exists(),
            "{options:?}"
        );
    }
}
