// SPDX-License-Identifier: Apache-2.0
//! Steps in so many words: "step 12", "iteration 100/500", "'step': 12".

use std::sync::LazyLock;

use regex::bytes::{Captures, Regex};

use super::patterns::{EPOCH_BEFORE, METRIC, NOT_REACHED, before, compile, number};

/// The word, what joins it to the number, the number, and perhaps of how many.
static STEP: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r#"(?:^|[^\w/.-]|\x1b\[[\d;]*m)(?P<word>(?:(?:global|train|training|optimizer|completed|current|finished)[ _-]?)?(?:step|iteration|iter|num_updates)(?:\(train\))?)(?:(?P<sign>['"]?\s*[:=]\s*['"]?)(?P<bracket>\[\s*)?|\s*(?P<bracket_alone>\[\s*)|\s+#?)(?P<step>\d{1,3}(?:,\d{3})+|\d{1,15})(?:\s*/\s*(?P<total>\d{1,15}))?"#,
    )
});

/// What may follow the number directly: nothing that makes it a fraction, a date, a size or a name.
static AFTER: LazyLock<Regex> =
    LazyLock::new(|| compile(r"^(?:[\s,;:|\])}'\x22\x1b]|\.(?:\s|$)|$)"));

/// Of how many, and whatever else is no word.
static NO_WORDS: LazyLock<Regex> = LazyLock::new(|| compile(r"^[^\w]*(?:of\s+\d+[^\w]*)?$"));

/// Another part of a sentence: "step 3 of installing", "step 3: install".
static SENTENCE: LazyLock<Regex> = LazyLock::new(|| compile(r"^\s*(?:of\b|[:)\].-]\s*[a-z])"));

/// The step that `line` speaks of. A global step goes before any other.
pub(super) fn step(line: &[u8]) -> Option<u64> {
    let mut first = None;
    for found in STEP.captures_iter(line) {
        let Some(step) = judge(line, &found) else {
            continue;
        };
        if is_global(&found) {
            return Some(step);
        }
        first = first.or(Some(step));
    }
    first
}

fn is_global(found: &Captures<'_>) -> bool {
    found
        .name("word")
        .is_some_and(|word| word.as_bytes().to_ascii_lowercase().starts_with(b"global"))
}

fn judge(line: &[u8], found: &Captures<'_>) -> Option<u64> {
    let (word, step) = (found.name("word")?, number(found, "step")?);
    let rest = &line[found.get(0)?.end()..];
    if !AFTER.is_match(rest) || NOT_REACHED.is_match(before(line, word.start(), 40)) {
        return None;
    }
    let total = number(found, "total");
    if total.is_some_and(|total| step > total) {
        return None;
    }
    let told_by_sign = found.name("sign").is_some();
    let plausible = told_by_sign
        || NO_WORDS.is_match(rest)
        || METRIC.is_match(rest)
        || (!SENTENCE.is_match(rest) && rest.iter().any(u8::is_ascii_digit));
    if !plausible {
        return None;
    }
    let bracketed = found
        .name("bracket")
        .or(found.name("bracket_alone"))
        .is_some();
    match total.filter(|_| bracketed) {
        // "Epoch [1/5], Step [12/100]" counts anew in each epoch.
        Some(total) => match EPOCH_BEFORE.captures(&line[..word.start()]) {
            Some(epoch) => number(&epoch, "epoch")?
                .checked_mul(total)?
                .checked_add(step),
            None => Some(step),
        },
        None => Some(step),
    }
}
