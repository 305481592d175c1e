// SPDX-License-Identifier: Apache-2.0
//! The toy training job: it survives any fault of a rank, with the very result of a run that was left alone.

use std::time::Duration;

use steadfast_tests::{Random, Requirement, Training, long_tests};

#[test]
fn a_disturbed_run_of_the_toy_job_ends_with_the_loss_of_an_undisturbed_one() {
    if !Requirement::Python.met() {
        return;
    }
    let training = Training {
        script: "train_toy.py",
        ranks: 3,
        steps: 60,
        step_time: "0.01",
        start_up: Duration::from_millis(150),
    };
    let expected = training.undisturbed();
    let mut random = Random::new(8);
    for round in 0..if long_tests() { 20 } else { 5 } {
        assert_eq!(training.disturbed(&mut random), expected, "round {round}");
    }
}
