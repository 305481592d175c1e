// SPDX-License-Identifier: Apache-2.0
//! The expressions that several kinds of step lines share.

use std::sync::LazyLock;

use regex::bytes::{Captures, Regex, RegexBuilder};

/// A line in which none of these occurs speaks of no step. Checked first, because it is cheap.
pub(super) static CANDIDATE: LazyLock<Regex> =
    LazyLock::new(|| compile(r"step|iter|num_updates|loss|it/s|s/it|epoch|batch|\xe2\x94\x81|\[="));

/// A line that announces an epoch and nothing else, as Keras prints it before its bars.
pub(super) static EPOCH_ALONE: LazyLock<Regex> =
    LazyLock::new(|| compile(r"^\s*epoch:?\s+(?P<epoch>\d{1,9})(?:\s*/\s*\d{1,9})?\s*:?\s*$"));

/// The epoch that a line speaks of before it comes to the step.
pub(super) static EPOCH_BEFORE: LazyLock<Regex> = LazyLock::new(|| {
    compile(r"epoch(?:\(train\))?\s*[:=]?\s*\[?\s*(?P<epoch>\d{1,9})(?:[^\d.]|$)")
});

/// Words before a number which say that it is no step that was reached in training.
pub(super) static NOT_REACHED: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"(?:^|[^a-z])(?:until|till|up to|(?:stop|end|finish)\w* (?:at|after|on)|every|per|each|warm-?up|max\w*|min\w*|total|eval\w*|val|valid\w*|test\w*|sanity|sampl\w*|diffusion|denois\w*|decod\w*|infer\w*|predict\w*|generat\w*|install\w*|setup|build\w*|next|num\w*|download\w*|map|tokeni\w*|first|last|previous|before|after)[\s:_(\[a-z-]{0,16}$",
    )
});

/// Words and signs after a step that only a training loop prints.
pub(super) static METRIC: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"loss|\blr\b|learning|acc\b|accuracy|grad|time|tok|sec|it/s|ms\b|mfu|perplex|\bppl\b|reward|norm|throughput|samples|tflop|\bdone\b|finish|complete|took|saved|[=|]\s*-?\d|\w:\s*-?\d",
    )
});

/// Compiles one of the expressions above: bytes, not characters, and letters in either case.
#[expect(
    clippy::expect_used,
    reason = "the expressions are constants, and a test compiles each"
)]
pub(super) fn compile(pattern: &str) -> Regex {
    RegexBuilder::new(pattern)
        .unicode(false)
        .case_insensitive(true)
        .build()
        .expect("the pattern is valid")
}

/// The number in the group `name`.
pub(super) fn number(found: &Captures<'_>, name: &str) -> Option<u64> {
    parse(found.name(name)?.as_bytes())
}

/// A number, perhaps with commas between thousands.
pub(super) fn parse(text: &[u8]) -> Option<u64> {
    let mut number: u64 = 0;
    let mut digits = 0;
    for &byte in text {
        match byte {
            b'0'..=b'9' => {
                number = number
                    .checked_mul(10)?
                    .checked_add(u64::from(byte - b'0'))?;
                digits += 1;
            }
            b',' | b'_' if digits > 0 => {}
            _ => return None,
        }
    }
    (digits > 0).then_some(number)
}

/// The last `length` bytes before `position`.
pub(super) fn before(line: &[u8], position: usize, length: usize) -> &[u8] {
    &line[position.saturating_sub(length)..position]
}
