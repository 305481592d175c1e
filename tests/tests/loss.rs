// SPDX-License-Identifier: Apache-2.0
//! Losses that are no numbers, printed or reported: said, and acted upon where that is wanted.

use steadfast_tests::{Job, PythonJob, Requirement};

/// Prints losses; from step 20 on they are no numbers, in the first attempt.
const PRINTS: &str = r#"
import os, sys, time
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(1, 41):
    loss = "nan" if first and step >= 20 else "0.5"
    print("step %d/40 loss %s" % (step, loss), flush=True)
    time.sleep(0.05)
"#;

/// The same through the client, without a word of output.
const REPORTS: &str = r"
import os, time
import steadfast
for step in range(1, 41):
    steadfast.progress(step, loss=float('nan') if step >= 20 else 0.5)
    time.sleep(0.05)
";

#[track_caller]
fn suspects(job: &Job) -> Vec<serde_json::Value> {
    let told = job.journal_of("loss.suspect");
    assert!(!told.is_empty());
    assert_eq!(told[0]["trouble"], "nan", "{told:#?}");
    assert_eq!(told[0]["last_good_loss"], 0.5, "{told:#?}");
    told
}

#[test]
fn a_loss_that_is_no_number_is_reported_and_the_job_goes_on() {
    if !Requirement::Python.met() {
        return;
    }
    let mut job = PythonJob::new(PRINTS).start();
    let outcome = job.wait();
    outcome
        .ended_with(0)
        .said("has a loss that is not a number")
        .said("the last good one was 0.5");
    let told = suspects(&job);
    assert!(told.iter().all(|line| line["acted_upon"] == false));
    assert_eq!(job.journal_of("generation.starting").len(), 1);
}

#[test]
fn a_loss_that_the_program_reports_counts_too() {
    if !Requirement::Python.met() {
        return;
    }
    let mut job = PythonJob::new(REPORTS).start();
    let outcome = job.wait();
    outcome
        .ended_with(0)
        .said("has a loss that is not a number");
    suspects(&job);
}

#[test]
fn where_that_is_wanted_the_workers_are_started_again() {
    if !Requirement::Python.met() {
        return;
    }
    let mut job = PythonJob::with_options(&["--on-nan", "restart"], PRINTS).start();
    let outcome = job.wait();
    outcome
        .ended_with(0)
        .said("generation 2 starts: rank 0 on node has a loss that is still not a number");
    let told = suspects(&job);
    assert!(
        told.iter().any(|line| line["acted_upon"] == true),
        "{told:#?}"
    );
}

#[test]
fn where_that_is_wanted_the_job_ends() {
    if !Requirement::Python.met() {
        return;
    }
    let mut job = PythonJob::with_options(&["--on-nan", "end"], PRINTS).start();
    let outcome = job.wait();
    outcome
        .ended_with(1)
        .said("has a loss that is still not a number");
    assert_eq!(job.journal_of("generation.starting").len(), 1, "{outcome}");
}
