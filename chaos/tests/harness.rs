// SPDX-License-Identifier: Apache-2.0
//! The harness as its users meet it: what it prints, how it ends, and what it leaves behind.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "this is test code"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const HARNESS: &str = env!("CARGO_BIN_EXE_steadfast-chaos");
const DEADLINE: Duration = Duration::from_mins(2);

fn harness(arguments: &[&str]) -> Output {
    Command::new(HARNESS).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether a scenario can be run; the supervisor is built by `cargo build --workspace --bins`.
fn can_run() -> bool {
    let there = Path::new(HARNESS).with_file_name("steadfast").is_file()
        && Path::new("/usr/bin/python3").exists()
        && Path::new("/usr/bin/setpriv").exists();
    if !there {
        eprintln!("SKIPPED: it takes steadfast beside steadfast-chaos, python3 and setpriv");
    }
    there
}

fn scenario(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("scenario.toml");
    fs::write(&path, text).unwrap();
    path
}

#[track_caller]
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "gave up waiting for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The living processes that carry the mark of a run.
fn marked(run: &str) -> Vec<String> {
    let mark = format!("STEADFAST_CHAOS_RUN={run}");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let carries = |path: &PathBuf| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|pair| pair == mark.as_bytes())
    };
    let paths = entries.map(|entry| entry.path()).filter(carries);
    paths.map(|path| path.display().to_string()).collect()
}

#[test]
fn a_scenario_that_holds_passes_and_one_that_does_not_fails() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let kill = "description = 'A rank is killed.'\n[nodes]\nmode = 'loopback'\n[job]\nsteps = 20\n[[faults]]\nid = 'kill'\n\
                inject = { signal = { signal = 'KILL' } }\non = { rank = 1 }\nat = { step = 5 }\n[expect]\n";
    let out = directory.path().join("out");
    let path = scenario(
        directory.path(),
        &format!("{kill}restarts = 1\ncause = {{ rank_of = 'kill' }}\n"),
    );
    let ran = harness(&[
        "run",
        path.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ]);
    let said = stdout(&ran);
    assert_eq!(ran.status.code(), Some(0), "{said}");
    assert!(
        said.contains("scenario: pass") && said.contains("1 passed"),
        "{said}"
    );
    let junit = fs::read_to_string(out.join("junit.xml")).unwrap();
    assert!(junit.contains("failures=\"0\""), "{junit}");
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("rank 1"), "{page}");

    // The same history is judged again, by other expectations.
    let history = out.join("scenario");
    fs::write(
        history.join("scenario.toml"),
        format!("{kill}restarts = 0\n"),
    )
    .unwrap();
    let judged = harness(&["judge", history.to_str().unwrap()]);
    assert_eq!(judged.status.code(), Some(1), "{}", stdout(&judged));
    assert!(
        stdout(&judged).contains("FAIL: restarts: 1 restarts, not 0"),
        "{}",
        stdout(&judged)
    );
    let lenient = harness(&["judge", history.to_str().unwrap(), "--fail-on", "invalid"]);
    assert_eq!(lenient.status.code(), Some(0), "{}", stdout(&lenient));
}

#[test]
fn a_fault_that_never_comes_makes_the_run_invalid() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let text = "description = 'x'\n[nodes]\nmode = 'loopback'\n[job]\nsteps = 5\n[[faults]]\n\
                inject = 'segfault'\nat = { generation = 9 }\n";
    let path = scenario(directory.path(), text);
    let ran = harness(&["run", path.to_str().unwrap()]);
    assert_eq!(ran.status.code(), Some(2), "{}", stdout(&ran));
    assert!(stdout(&ran).contains("INVALID: J-9"), "{}", stdout(&ran));
}

#[test]
fn after_a_harness_that_was_killed_clean_leaves_nothing() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let text = "description = 'x'\n[job]\nsteps = 100000\nhabits = ['leave-behind']\n";
    let path = scenario(directory.path(), text);
    let mut running = Command::new(HARNESS)
        .args(["run", path.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let run = format!("sc-{}-0", running.id());
    let root = std::env::temp_dir().join(&run);
    eventually("a training job", || {
        let life = fs::read_to_string(root.join("shared/life.jsonl")).ok()?;
        life.contains("\"step\"").then_some(())
    });
    running.kill().unwrap();
    running.wait().unwrap();
    let cleaned = harness(&["clean"]);
    let said = stdout(&cleaned);
    assert!(said.contains(&format!("cleaned up after {run}")), "{said}");
    assert_eq!(marked(&run), Vec::<String>::new());
    assert!(!root.exists());
    assert!(!stdout(&harness(&["clean"])).contains(&run));
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = scenario(directory.path(), "description = 'x'\n[nodes]\ncuont = 2\n");
    let checked = harness(&["validate", path.to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(
        stdout(&checked).contains("scenario.toml:3:1: unknown field `cuont`"),
        "{}",
        stdout(&checked)
    );
    assert_eq!(
        harness(&["run", path.to_str().unwrap()]).status.code(),
        Some(3)
    );
    assert_eq!(harness(&["run"]).status.code(), Some(3));
    assert_eq!(
        harness(&["run", "--all", "--filter", "no-such-thing"])
            .status
            .code(),
        Some(3)
    );
}

#[test]
fn the_schema_tells_what_every_field_means() {
    let schema: serde_json::Value = serde_json::from_slice(&harness(&["schema"]).stdout).unwrap();
    assert!(
        schema["properties"]["description"]["description"].is_string(),
        "{schema}"
    );
    let definitions = schema["$defs"].as_object().unwrap();
    for name in ["Nodes", "Job", "Fault", "Trigger", "Target", "Expect"] {
        let fields = definitions[name]["properties"].as_object().unwrap();
        for (field, of_it) in fields {
            assert!(of_it["description"].is_string(), "{name}.{field}: {of_it}");
        }
    }
}

#[test]
fn the_doctor_says_what_is_there_and_what_is_done_instead() {
    let examined = harness(&["doctor"]);
    assert_eq!(examined.status.code(), Some(0));
    assert!(
        stdout(&examined).contains("python"),
        "{}",
        stdout(&examined)
    );
}
