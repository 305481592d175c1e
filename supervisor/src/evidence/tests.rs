// SPDX-License-Identifier: Apache-2.0
#![expect(
    clippy::disallowed_methods,
    reason = "something must be there that can be looked at"
)]

use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;

/// A process that is ended with the test.
struct Sleeper(Child);

impl Sleeper {
    fn start(words: &[&str]) -> Sleeper {
        let child = Command::new(words[0])
            .args(&words[1..])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Sleeper(child)
    }

    fn subject(&self) -> Subject {
        Subject {
            node: NodeName("n".to_owned()),
            rank: 3,
            local_rank: 1,
            pid: i32::try_from(self.0.id()).unwrap(),
            trains: None,
            pages: PathBuf::from("/nonexistent"),
            step: Some(7),
            activity: None,
            last_lines: vec!["step 7".to_owned()],
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Looks until what is seen is as expected: a process takes a moment to get where it is going.
#[track_caller]
fn eventually(subject: &Subject, expected: impl Fn(&RankSigns) -> bool) -> RankEvidence {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let evidence = look_at_all(std::slice::from_ref(subject)).remove(0);
        let signs = &evidence.signs;
        if expected(signs) {
            return evidence;
        }
        assert!(Instant::now() < deadline, "{signs:?}");
    }
}

fn sleeps(signs: &RankSigns) -> bool {
    (signs.kernel, signs.doing) == (KernelState::Sleeping, Doing::Pause)
}

#[test]
fn a_process_that_sleeps_or_is_stopped_is_seen_so() {
    let sleeper = Sleeper::start(&["sleep", "1000"]);
    // Between two looks it may just have come to its sleep.
    let evidence = eventually(&sleeper.subject(), |signs| {
        sleeps(signs) && signs.still && signs.cpu < 0.5
    });
    assert_eq!(
        (evidence.signs.step, evidence.last_lines.len()),
        (Some(7), 1)
    );
    let pid = Pid::from_raw(sleeper.subject().pid);
    kill(pid, Signal::SIGSTOP).unwrap();
    eventually(&sleeper.subject(), |signs| {
        signs.kernel == KernelState::Stopped
    });
}

#[test]
fn behind_a_shell_the_program_is_looked_at_and_a_signal_only_sent_where_it_is_caught() {
    let shell = Sleeper::start(&["sh", "-c", "sleep 1000; true"]);
    let mut subject = shell.subject();
    let inner = eventually(&subject, sleeps).signs.pid;
    assert_ne!(inner, shell.0.id());
    // It claims to write stacks upon a signal that would end it.
    let pages = tempfile::tempdir().unwrap();
    let stacks = pages.path().join(format!("{}.stacks", shell.0.id()));
    std::fs::write(stacks, "old").unwrap();
    subject.pages = pages.path().to_owned();
    subject.trains = Some((shell.0.id(), Some(44)));
    let evidence = eventually(&subject, |signs| signs.doing == Doing::Waiting);
    assert_eq!(evidence.signs.pid, shell.0.id());
    assert!(evidence.stacks.is_empty());
    kill(
        Pid::from_raw(i32::try_from(inner).unwrap()),
        Signal::SIGKILL,
    )
    .unwrap();
}

#[test]
fn a_process_that_is_gone_is_dead() {
    let sleeper = Sleeper::start(&["true"]);
    let subject = sleeper.subject();
    drop(sleeper);
    eventually(&subject, |signs| signs.kernel == KernelState::Dead);
}

#[test]
fn a_bundle_has_an_index_that_names_its_files() {
    let sleeper = Sleeper::start(&["sleep", "1000"]);
    let bundle = Bundle {
        incident: serde_json::json!({ "kind": "stall" }),
        nodes: vec![NodeEvidence {
            node: "../n".to_owned(),
            kernel_log: vec!["a line".to_owned()],
            ..NodeEvidence::default()
        }],
        ranks: look_at_all(&[sleeper.subject()]),
    };
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("incidents/1");
    write_bundle(&directory, &bundle).unwrap();
    let index = std::fs::read(directory.join("index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(index["incident"]["kind"], "stall");
    assert_eq!(index["ranks"][0]["step"], 7);
    assert!(directory.join("node-.._n.kernel.txt").is_file());
    for file in index["files"].as_array().unwrap() {
        assert!(directory.join(file.as_str().unwrap()).is_file(), "{file}");
    }
}
