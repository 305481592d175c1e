// SPDX-License-Identifier: Apache-2.0
//! The loss of a training step, in a line of output.

use std::sync::LazyLock;

use regex::bytes::Regex;

use super::LOOK_BYTES;
use super::patterns::{before, compile};

/// The word, perhaps in quotes, what joins it to the number, and the number.
static LOSS: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r#"loss['"]?(?:\s*[:=]\s*|\s+)['"]?(?:tensor\()?(?P<loss>[+-]?(?:nan|inf(?:inity)?|\d[\d,]*(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+))(?:[^\w.%]|\.?$|\.\s)"#,
    )
});

/// Words before it which say that it is not the loss that is trained on.
static ANOTHER: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"(?:eval\w*|val|valid\w*|test\w*|best|min\w*|max\w*|packet|weight|if|when|until)[ _/.-]*(?:\w+[ _/-]){0,2}$",
    )
});

/// The loss that the line (without its line end) speaks of, if it does: not that of an evaluation. It may be infinite, or no
/// number. Looks at the first 4 KiB.
pub fn loss_in(line: &[u8]) -> Option<f64> {
    let line = &line[..line.len().min(LOOK_BYTES)];
    let mut found = LOSS.captures_iter(line).filter(|found| {
        let start = found.get(0).map_or(0, |whole| whole.start());
        !ANOTHER.is_match(before(line, start, 32))
    });
    let text = found.next()?.name("loss")?.as_bytes();
    let text = std::str::from_utf8(text).ok()?.replace(',', "");
    // Rust reads all of these spellings.
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn finds(line: &str, loss: f64) {
        let found = loss_in(line.as_bytes()).unwrap_or_else(|| panic!("no loss in `{line}`"));
        assert_eq!(found.total_cmp(&loss), std::cmp::Ordering::Equal, "{line}");
    }

    #[test]
    fn losses_are_found_as_frameworks_print_them() {
        finds("step 5/100 loss 0.250000", 0.25);
        finds("Step 5: train_loss=1.5e-3, lr=1e-4", 0.0015);
        finds("{'loss': nan, 'grad_norm': nan, 'epoch': 0.5}", f64::NAN);
        finds("iter 10: loss inf, time 13ms", f64::INFINITY);
        finds(
            " iteration 7/ 100 | lm loss: 1.200000E+01 | loss scale: 1.0",
            12.0,
        );
        finds("loss: NaN", f64::NAN);
        finds("Epoch 1 | loss tensor(2.5, device='cuda:0')", 2.5);
        finds("loss: -inf", f64::NEG_INFINITY);
        finds("val_loss: nan train_loss: 0.5", 0.5);
        finds("the loss is fine; loss: 1,234.5", 1234.5);
    }

    #[test]
    fn what_is_no_loss_of_a_step_is_left_alone() {
        for line in [
            "eval_loss: nan",
            "{'eval_loss': nan}",
            "validation loss: nan",
            "test loss nan",
            "0% packet loss",
            "lossless 5",
            "loss info: none",
            "loss scale: 65536",
            "loss: 5ms",
            "no loss",
        ] {
            assert_eq!(loss_in(line.as_bytes()), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_in_a_line_it_is_read(line in "(loss|nan|[:= ]|[0-9.,e]|eval|.){0,40}") {
            loss_in(line.as_bytes());
        }
    }
}
