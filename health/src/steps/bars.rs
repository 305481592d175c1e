// SPDX-License-Identifier: Apache-2.0
//! Steps in progress bars and counters: "12/1000 [00:05<07:00, 2.34it/s]", "[12/1000] loss 0.5", "12/100 ━━━━".

use std::sync::LazyLock;

use regex::bytes::Regex;

use super::patterns::{EPOCH_BEFORE, NOT_REACHED, before, compile, number};

/// What a bar shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bar {
    pub(super) step: u64,
    pub(super) total: u64,
    /// The epoch that the bar itself names: it counts anew in each.
    pub(super) epoch: Option<u64>,
    /// A Keras bar, whose epoch stands in a line before.
    pub(super) is_keras: bool,
}

/// tqdm: count, elapsed time, and a rate in iterations.
static TQDM: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"(?P<step>\d{1,15})/(?P<total>\d{1,15})\s*\[\s*(?:\d+:)+\d\d[^\]]*?(?:[\d.?]\s*(?:it|step|steps|batch|batches)/s|[\d.?]\s*s/(?:it|step|batch))",
    )
});

/// What may stand before tqdm's count: nothing but the bar itself, or a word for training.
static TQDM_BEFORE: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"^(?:\[?rank\s?\d+\]?:?)?\s*(?:(?:train|training|epoch|step|steps|iter|iteration)[^%|]*)?(?:\d{1,3}%)?\s*(?:\|[^|]*\|)?\s*$",
    )
});

/// A count in brackets.
static BRACKETS: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"\[\s*(?P<step>\d{1,15})\s*/\s*(?P<total>\d{1,15})\s*(?:\(\s*\d{1,3}(?:\.\d+)?%\s*\))?\s*\]",
    )
});

/// The count is of epochs.
static OF_EPOCHS: LazyLock<Regex> = LazyLock::new(|| compile(r"epochs?\s*[:=]?\s*$"));

/// What makes a count in brackets one of training steps.
static TRAINING: LazyLock<Regex> = LazyLock::new(|| {
    compile(r"loss[_a-z]*['\x22]?\s*[:=]?\s*(?:[\d.-]|nan|inf)|[\d?]\s*(?:it/s|s/it)")
});

/// Keras, new and old.
static KERAS: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"^\s*(?:\x1b\[[\d;]*m)*(?P<step>\d{1,15})/(?P<total>\d{1,15})(?:\x1b\[[\d;]*m)*\s*(?:\x1b\[[\d;]*m)*(?:\xe2\x94\x81|\[[=>.]{4,}\])",
    )
});

/// The bar in `line`, if there is one that counts training steps.
pub(super) fn find(line: &[u8]) -> Option<Bar> {
    keras(line)
        .or_else(|| tqdm(line))
        .or_else(|| brackets(line))
}

fn keras(line: &[u8]) -> Option<Bar> {
    let found = KERAS.captures(line)?;
    let (step, total) = (number(&found, "step")?, number(&found, "total")?);
    (step <= total).then_some(Bar {
        step,
        total,
        epoch: None,
        is_keras: true,
    })
}

fn tqdm(line: &[u8]) -> Option<Bar> {
    let found = TQDM.captures(line)?;
    let (step, total) = (number(&found, "step")?, number(&found, "total")?);
    let before = &line[..found.get(0)?.start()];
    if step > total || !TQDM_BEFORE.is_match(before) {
        return None;
    }
    let epoch = EPOCH_BEFORE
        .captures(before)
        .and_then(|epoch| number(&epoch, "epoch"));
    Some(Bar {
        step,
        total,
        epoch,
        is_keras: false,
    })
}

fn brackets(line: &[u8]) -> Option<Bar> {
    if !TRAINING.is_match(line) {
        return None;
    }
    BRACKETS.captures_iter(line).find_map(|found| {
        let whole = found.get(0)?;
        let (step, total) = (number(&found, "step")?, number(&found, "total")?);
        let lead = before(line, whole.start(), 40);
        let counts_steps = !OF_EPOCHS.is_match(lead) && !NOT_REACHED.is_match(lead);
        if step > total || !counts_steps {
            return None;
        }
        let epoch = EPOCH_BEFORE
            .captures(&line[..whole.start()])
            .and_then(|epoch| number(&epoch, "epoch"));
        Some(Bar {
            step,
            total,
            epoch,
            is_keras: false,
        })
    })
}
