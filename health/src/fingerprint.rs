// SPDX-License-Identifier: Apache-2.0
//! What recurs when the same failure recurs.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use crate::python_traceback::Frame;
use crate::worker_exit::Exit;

/// Most characters kept of a normalised text.
const MAX_CHARACTERS: usize = 200;
/// Most characters looked at.
const MAX_INPUT: usize = 2000;

/// What differs from one run, rank or host to the next, and what stands in its place. Applied in this order.
static MASKS: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    [
        (r"\x1b\[[0-9;:]*[A-Za-z]", ""),
        (r"0x[0-9a-fA-F]+", "<address>"),
        (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<id>"),
        (r#"(?:/var)?/(?:tmp|scratch|dev/shm|run/user)/[^\s"':,)\]]*"#, "<temporary>"),
        (r"\btmp[A-Za-z0-9_]{6,}\b", "<temporary>"),
        (r"(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?:%\w+)?", "<N>"),
        (r"\b[0-9a-fA-F]*[0-9][0-9a-fA-F]*[a-fA-F][0-9a-fA-F]{6,}\b|\b[a-fA-F][0-9a-fA-F]*[0-9][0-9a-fA-F]{6,}\b", "<id>"),
        (r"[-+]?[0-9][0-9_,]*(?:\.[0-9]+)*(?:[eE][-+]?[0-9]+)?", "<N>"),
        (r"<N>(?:[\s,.:/-]*<N>)+", "<N>"),
        (r"\s+", " "),
    ]
    .into_iter()
    .filter_map(|(pattern, mask)| Some((Regex::new(pattern).ok()?, mask)))
    .collect()
});

/// Takes out of `text` what differs between ranks, hosts and runs: addresses, numbers, temporary paths, ids.
pub fn normalise(text: &str) -> String {
    let text = text.trim();
    let end = text
        .char_indices()
        .nth(MAX_INPUT)
        .map_or(text.len(), |(end, _)| end);
    let mut text = Cow::Borrowed(&text[..end]);
    for (mask, replacement) in MASKS.iter() {
        if let Cow::Owned(masked) = mask.replace_all(&text, *replacement) {
            text = Cow::Owned(masked);
        }
    }
    text.trim().chars().take(MAX_CHARACTERS).collect()
}

/// The fingerprint of an exception: its type, the first line of its message, and where it was raised.
pub fn exception_fingerprint(exception: &str, message: &str, frame: Option<&Frame>) -> String {
    let first_line = normalise(message.lines().next().unwrap_or_default());
    let place = frame.map(|frame| {
        let name = frame.file.rsplit('/').next().unwrap_or(&frame.file);
        // Where the code lies may differ from host to host, but not what its file is called.
        format!(" at {}:{} {}", normalise(name), frame.line, frame.function)
    });
    format!("{exception}: {first_line}{}", place.unwrap_or_default())
}

/// The fingerprint of an exit without an exception: the code and the last message, or the signal. What a worker printed
/// last before somebody killed it says nothing about the cause.
pub fn exit_fingerprint(exit: Exit, last_message: Option<&str>) -> String {
    match (
        exit,
        last_message
            .map(normalise)
            .filter(|message| !message.is_empty()),
    ) {
        (Exit::Code(code), Some(message)) => format!("exit {code}: {message}"),
        (Exit::Code(code), None) => format!("exit {code}"),
        (Exit::Signal(signal), Some(message)) => format!("signal {signal}: {message}"),
        (Exit::Signal(signal), None) => format!("signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_differs_is_masked() {
        let pairs = [
            ("object at 0x7f3a12 died", "object at 0x55d0ffab died"),
            ("[rank3] failed at step 120", "[rank0] failed at step 7"),
            (
                "connect to 10.0.0.12:29500 failed",
                "connect to 10.0.1.3:41233 failed",
            ),
            ("[fd00:1148:9000::3] closed", "[fe80::1] closed"),
            (
                "no file /tmp/torchelastic_ab12/x.log",
                "no file /tmp/torchelastic_zz/y.log",
            ),
            (
                "2026-11-30 10:00:01,123 ERROR bad",
                "2025-01-02 23:59:59,999 ERROR bad",
            ),
            (
                "job 3f2504e0-4f89-11d3-9a0c-0305e82c3301",
                "job 7c9e6679-7425-40de-944b-e07fc1f90ae7",
            ),
            ("loss is 1.2e-05", "loss is 3"),
        ];
        for (one, other) in pairs {
            assert_eq!(normalise(one), normalise(other));
        }
    }

    #[test]
    fn what_matters_is_kept() {
        assert_ne!(normalise("KeyError: 'loss'"), normalise("KeyError: 'lr'"));
        assert_eq!(
            normalise("expected scalar type Half"),
            "expected scalar type Half"
        );
        let frame = |line| Frame {
            file: "/home/u/train.py".to_owned(),
            line,
            function: "main".to_owned(),
        };
        let print =
            |line| exception_fingerprint("ValueError", "bad batch 12\nmore", Some(&frame(line)));
        assert_eq!(print(12), "ValueError: bad batch <N> at train.py:12 main");
        assert_ne!(print(12), print(13));
    }

    #[test]
    fn all_masks_compile() {
        assert_eq!(MASKS.len(), 10);
    }

    proptest! {
        #[test]
        fn numbers_never_matter(one in 0u64..1_000_000_000, other in 0u64..1_000_000_000, rank in 0u32..9999) {
            let text = |number: u64, rank: u32| format!("rank {rank}: worker{number} port={number} at {number}.5s [{rank}]");
            prop_assert_eq!(normalise(&text(one, rank)), normalise(&text(other, rank / 2)));
        }

        #[test]
        fn normalising_ends_and_is_bounded(text in ".{0,400}") {
            let normal = normalise(&text);
            prop_assert!(normal.chars().count() <= MAX_CHARACTERS);
        }
    }
}
