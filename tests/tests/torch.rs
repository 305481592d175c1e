// SPDX-License-Identifier: Apache-2.0
//! Real `PyTorch`, `DistributedDataParallel` on the CPU: as the toy job.

use std::time::Duration;

use steadfast_tests::{Random, Requirement, Training, long_tests};

#[test]
fn torch_ddp_disturbed_ends_with_the_loss_of_an_undisturbed_run() {
    if !Requirement::Torch.met() {
        return;
    }
    let training = Training {
        script: "train_ddp.py",
        ranks: 2,
        steps: 40,
        step_time: "0.02",
        start_up: Duration::from_millis(2500),
    };
    let expected = training.undisturbed();
    let mut random = Random::new(9);
    for round in 0..if long_tests() { 20 } else { 3 } {
        assert_eq!(training.disturbed(&mut random), expected, "round {round}");
    }
}
