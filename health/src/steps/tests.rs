// SPDX-License-Identifier: Apache-2.0
use super::*;

fn one(line: &str) -> Option<u64> {
    StepTracker::default().observe(line.as_bytes())
}

#[test]
fn what_trainers_print_is_recognised() {
    let table = [
        ("step 12", 12),
        ("step: 12/100", 12),
        ("step=12", 12),
        ("Step 12: loss 0.31", 12),
        ("rank 0 step 7 loss 0.1", 7),
        ("step 12 of 100", 12),
        (
            "[Rank 0] step=10, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]",
            10,
        ),
        ("iter 100: loss 2.3312, time 12.01ms, mfu 40.1%", 100),
        ("step 250: train loss 1.9621, val loss 2.0411", 250),
        (
            " iteration      100/     500 | consumed samples:        25600 | lm loss: 6.3E+00 |",
            100,
        ),
        (
            " [2024-11-30 10:00:01] iteration       12/   10000 | elapsed time per iteration (ms): 812.3 |",
            12,
        ),
        (
            "completed step: 12, seconds: 1.203, TFLOP/s/device: 180.2, loss: 9.3",
            12,
        ),
        (
            "{'loss': 0.53, 'learning_rate': 5e-05, 'epoch': 0.1, 'step': 40}",
            40,
        ),
        (r#"{"epoch": 1, "global_step": 1200, "loss": 2.5}"#, 1200),
        ("INFO:tensorflow:loss = 0.53, step = 1,200 (3.1 sec)", 1200),
        (
            "Training epoch 0, iteration 5/99 | lr: 1e-05 | global_step: 105 | reduced_train_loss: 8",
            105,
        ),
        (
            "\u{1b}[31mstep:  3  \u{1b}[32mloss:  8.2012  \u{1b}[33mmemory: 30.1GiB\u{1b}[39m",
            3,
        ),
        (
            "Iter(train) [  50/1000]  lr: 1.0000e-03  eta: 0:10:11  loss: 0.3",
            50,
        ),
        ("Epoch [2/5], Step [12/100], Loss: 0.5012", 212),
        (
            "Epoch: [1][  10/5005]\tTime  0.2 (0.3)\tLoss 6.9 (7.0)",
            5015,
        ),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 0.312", 60640),
        ("[12/100] loss: 0.5", 12),
        ("  1%|1         | 12/1000 [00:05<07:02,  2.34it/s]", 12),
        ("12/1000 [00:05<07:02, 2.34s/it]", 12),
        (
            "Training:  12%|#2        | 12/100 [00:05<00:37,  2.34it/s, loss=0.5]",
            12,
        ),
        (
            "Epoch 3:  12%|#2        | 12/100 [00:05<00:37,  2.34it/s, v_num=0]",
            312,
        ),
        (
            "12/100 \u{2501}\u{2501}\u{2501}\u{2501} 5s 50ms/step - loss: 0.5",
            12,
        ),
        ("12/100 [==>...........] - ETA: 5s - loss: 0.5", 12),
        ("| INFO | num_updates=300 | loss=3", 300),
        ("saved checkpoint at step 500", 500),
    ];
    for (line, step) in table {
        assert_eq!(one(line), Some(step), "{line}");
    }
}

#[test]
fn what_is_no_step_is_left_alone() {
    let table = [
        "step 3 of installing the package",
        "Step 3: download the data set",
        "Step 3: install python 3.10",
        "step size 12",
        "step=1e-3",
        "step 0.5",
        "max_steps=1000",
        "max_step=1000",
        "warmup_steps: 100, save_steps: 500",
        "steps_per_epoch: 12",
        "will train until step 10000",
        "stopping at step 10000",
        "time per step: 12 ms",
        "global_step/sec: 12.3",
        "eval step 12",
        "Evaluating at step 12/50",
        "validation step 12 loss 0.3",
        "epoch=0-step=10.ckpt",
        "Epoch 12",
        "Epoch 3/10",
        "Epoch [3/10] loss: 0.5",
        "epoch 3: loss 0.5",
        "lr: 12",
        "2024-11-30 12:00:00 started",
        "Loading checkpoint shards: 12%|#2 | 3/8 [00:05<00:37,  2.34s/it]",
        "Map: 100%|##########| 60000/60000 [00:05<00:00, 9999.1 examples/s]",
        "Validation DataLoader 0:  12%|#2 | 12/100 [00:05<00:37,  2.34it/s]",
        "model.safetensors:  12%|#2 | 12.1M/100M [00:05<00:37, 2.34MB/s]",
        "[1/2] building extension",
        "[3/8] loading, loss of precision possible",
        "requirement 12/100 met",
        "downloaded 12/100 [====>    ] 12%",
        "iterations per second: 12",
        "iter_time 12",
        "step 99999999999999999999 loss 1",
    ];
    for line in table {
        assert_eq!(one(line), None, "{line}");
    }
}

#[test]
fn words_go_before_bars_and_small_bars_do_not_count() {
    let mut tracker = StepTracker::default();
    assert_eq!(
        tracker.observe(b"  1%|1 | 12/1000 [00:05<07:02,  2.34it/s]"),
        Some(12)
    );
    assert_eq!(
        tracker.observe(b" 10%|1 | 5/50 [00:05<07:02,  2.34it/s]"),
        None,
        "an evaluation"
    );
    assert_eq!(tracker.observe(b"step 13 loss 0.5"), Some(13));
    assert_eq!(
        tracker.observe(b"  1%|1 | 14/1000 [00:05<07:02,  2.34it/s]"),
        None
    );
}

#[test]
fn keras_counts_on_from_epoch_to_epoch() {
    let mut tracker = StepTracker::default();
    assert_eq!(tracker.observe(b"Epoch 1/5"), None);
    assert_eq!(
        tracker.observe("100/100 \u{2501}\u{2501} 5s".as_bytes()),
        Some(200)
    );
    assert_eq!(tracker.observe(b"Epoch 2/5"), None);
    assert_eq!(
        tracker.observe("1/100 \u{2501}\u{2501} 5s".as_bytes()),
        Some(201)
    );
}

#[test]
fn the_users_expression_alone_counts() {
    let tracker = |pattern: &str| StepTracker::new(Some(Regex::new(pattern).unwrap()));
    assert_eq!(
        tracker(r"update (?P<step>\d+)").observe(b"update 7, step 9"),
        Some(7)
    );
    assert_eq!(tracker(r"(\d+) updates").observe(b"7 updates"), Some(7));
    assert_eq!(tracker(r"\d+").observe(b"at 7"), Some(7));
    assert_eq!(tracker(r"update (\d+)").observe(b"step 9"), None);
    assert_eq!(tracker(r"update (\w+)").observe(b"update x9"), None);
}

#[test]
fn only_the_start_of_a_long_line_is_looked_at() {
    let mut line = vec![b'x'; LOOK_BYTES];
    line.extend_from_slice(b" step=12");
    assert_eq!(StepTracker::default().observe(&line), None);
}
