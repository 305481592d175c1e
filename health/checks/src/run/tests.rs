// SPDX-License-Identifier: Apache-2.0
//! Checks that do not end, or break, hold nobody up and fail nothing (CH-1, CH-2).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::outside::{Ended, How, KernelClock, Outside, Work};
use crate::{Node, Plan, Profile, Report, Settings, Status};

/// The outside world on a bad day.
enum BadDay {
    /// Nothing comes back until the other end is dropped.
    Hangs(Mutex<Receiver<()>>),
    Panics,
}

impl Outside for BadDay {
    fn run(&self, _work: &Work, _until: Instant) -> Ended {
        match self {
            Self::Hangs(held) => {
                let held = held.lock().unwrap_or_else(PoisonError::into_inner);
                let _released = held.recv();
                Ended::silently(How::Exited(0))
            }
            Self::Panics => panic!("a bad day"),
        }
    }

    fn kernel_clock(&self) -> Result<KernelClock, String> {
        Err("not today".to_owned())
    }
}

fn report(outside: BadDay, settings: &str, checks: &[&str]) -> Report {
    let root = tempfile::tempdir().unwrap();
    let info = root.path().join("proc/self/mountinfo");
    std::fs::create_dir_all(info.parent().unwrap()).unwrap();
    std::fs::write(info, "40 22 0:40 / /home rw - nfs4 server:/home rw\n").unwrap();
    let mut node = Node::here("made", Arc::new(outside));
    root.path().clone_into(&mut node.root);
    let settings = Settings::parse("checks.toml".as_ref(), settings).unwrap();
    let names: Vec<String> = checks.iter().map(|name| (*name).to_owned()).collect();
    let plan = Plan::new(Profile::Prolog, settings, node);
    plan.only(&names).unwrap().run()
}

#[test]
fn a_check_that_does_not_end_is_left_behind_and_the_others_are_told() {
    let (release, held) = channel();
    let settings = "[check.mounts]\ndeadline = \"300ms\"\n[check.gpu-ecc]\ndeadline = \"300ms\"";
    let checks = ["mounts", "gpu-ecc", "clock", "kernel-modules"];
    let report = report(BadDay::Hangs(Mutex::new(held)), settings, &checks);
    drop(release);
    let of = |name: &str| {
        let mut results = report.results.iter();
        let result = results.find(|result| result.name == name).unwrap();
        (result.status, result.summary.as_str())
    };
    assert_eq!(
        of("mounts"),
        (Status::Broken, "it did not end within 300ms")
    );
    assert_ne!(of("gpu-ecc").0, Status::Fail);
    assert_eq!(of("clock").0, Status::Unknown);
    assert_eq!(of("kernel-modules").0, Status::Ok);
    assert!(report.is_fit());
}

#[test]
fn a_check_that_panics_is_broken_and_the_others_are_told() {
    let settings = "[command.own]\nrun = \"own\"";
    let report = report(BadDay::Panics, settings, &["own", "kernel-modules"]);
    let statuses: Vec<Status> = report.results.iter().map(|result| result.status).collect();
    assert_eq!(statuses, [Status::Ok, Status::Broken]);
    assert!(report.results[1].summary.contains("this is a bug"));
    assert!(report.is_fit());
}
