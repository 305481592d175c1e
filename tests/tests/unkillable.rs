// SPDX-License-Identifier: Apache-2.0
//! A worker that even SIGKILL does not end, as when it waits in the kernel for a dead file system.

#![expect(clippy::unwrap_used, reason = "this is test code")]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use steadfast_tests::{Job, Launch, Requirement, eventually, is_alive, process_state};

/// A frozen cgroup of version 1: its members sleep uninterruptibly. Dropping it lets them go.
struct Freezer {
    path: PathBuf,
}

impl Freezer {
    fn around(pid: i32) -> Freezer {
        let path = PathBuf::from(format!("/sys/fs/cgroup/freezer/steadfast-test-{pid}"));
        fs::create_dir(&path).unwrap();
        let freezer = Freezer { path };
        fs::write(freezer.path.join("cgroup.procs"), pid.to_string()).unwrap();
        fs::write(freezer.path.join("freezer.state"), "FROZEN").unwrap();
        eventually("the frozen state", || match process_state(pid) {
            Some('D') => Ok(()),
            other => Err(format!("{other:?}")),
        });
        freezer
    }

    fn thaw(&self) {
        fs::write(self.path.join("freezer.state"), "THAWED").unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        eventually("the end of the frozen process", || {
            fs::remove_dir(&self.path).map_err(|error| error.to_string())
        });
    }
}

#[test]
fn a_worker_that_cannot_be_killed_is_reported_and_holds_up_nobody() {
    if !(Requirement::Root.met() && Requirement::FreezerOne.met()) {
        return;
    }
    let options = ["--nproc-per-node", "3", "--restart-grace", "100ms"];
    let steps = [
        "@rank=0@wait-file:fail",
        "@rank=0@exit:3",
        "daemon",
        "record:ready",
        "hang",
    ];
    let mut job = Launch::run(&options).worker(&steps).start();
    job.eventually("the other workers", |job| {
        (job.records_of("ready").len() == 2).then_some(())
    });
    let stuck = job.worker(0, 1);
    let freezer = Freezer::around(stuck);
    job.touch("fail");
    let outcome = job.wait_leaving_traces();
    let left: Vec<i32> = job.processes().iter().map(|process| process.pid).collect();
    assert_eq!(left, [stuck], "everything else must be gone; {outcome}");
    drop(freezer);
    outcome.ended_with(76).said(&format!("{stuck}"));
    assert_eq!(
        job.journal_of("generation.starting").len(),
        1,
        "the node is not to be trusted with another generation"
    );
    job.eventually("the runtime directory to be gone", |job| {
        (!job.runtime_root().join("job@node").exists()).then_some(())
    });
}

#[test]
fn a_worker_that_cannot_be_killed_does_not_keep_a_stopped_job_from_ending() {
    if !(Requirement::Root.met() && Requirement::FreezerOne.met()) {
        return;
    }
    let mut job = Launch::run(&["--nproc-per-node", "2", "--stop-grace", "100ms"])
        .worker(&["record:ready", "hang"])
        .start();
    job.eventually("the workers", |job| {
        (job.records_of("ready").len() == 2).then_some(())
    });
    let stuck = job.worker(0, 1);
    let freezer = Freezer::around(stuck);
    job.signal(Signal::SIGTERM);
    let outcome = job.wait_leaving_traces();
    let left: Vec<i32> = job.processes().iter().map(|process| process.pid).collect();
    assert_eq!(left, [stuck], "everything else must be gone; {outcome}");
    drop(freezer);
    assert_ne!(outcome.status.code(), Some(0), "{outcome}");
    outcome.said(&format!("{stuck}"));
}

#[test]
fn a_worker_that_cannot_be_killed_is_fenced_all_the_same() {
    if !(Requirement::Root.met() && Requirement::FreezerOne.met()) {
        return;
    }
    let mut job = Launch::run(&["--nproc-per-node", "2"])
        .worker(&["record:ready", "hang"])
        .start();
    job.eventually("the workers", |job| {
        (job.records_of("ready").len() == 2).then_some(())
    });
    job.eventually("the agent", Job::status);
    let stuck = job.worker(0, 1);
    let freezer = Freezer::around(stuck);
    job.voice()
        .fence(Duration::from_millis(100), Duration::ZERO, None);
    job.eventually("the word that the fence has passed", |job| {
        job.journal_of("generation.fenced").pop()
    });
    assert!(is_alive(stuck), "only the kernel can end it now");
    let outcome = job.wait_leaving_traces();
    assert_eq!(job.records_of("start").len(), 2, "{outcome}");
    drop(freezer);
    outcome.said(&format!("{stuck}"));
}
