// SPDX-License-Identifier: Apache-2.0
//! Files and their sizes, as `ls -l`, `find` or `du` print them: a part of a checkpoint that is empty, much shorter than its
//! like or not there explains why it cannot be read.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

use crate::answer::{Class, Signal};
use crate::evidence::{Evidence, EvidenceFile, FileKind};
use crate::logs::Candidate;
use crate::pattern::{compile, group};

/// Less than that share of what its like have is too short.
const SHORT: f64 = 0.5;
/// The name of what this file finds.
const ID: &str = "listing.torn";

static LONG_FORM: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"^-[rwxsStT.+@-]{9,11}\s+\d+\s+\S+\s+\S+\s+(?P<size>\d+)\s+.*?(?:\d\d:\d\d(?::\d\d\S*)?|\d{4})(?:\s[+-]\d{4})?\s+(?P<path>\S.*)$",
    )
});
static SHORT_FORM: LazyLock<Regex> =
    LazyLock::new(|| compile(r"^\s*(?P<size>\d+)(?:\s+B)?\s+(?P<path>[^\s:][^:]*)$"));
static SIZE_LAST: LazyLock<Regex> = LazyLock::new(|| {
    compile(r"^\s*(?P<path>[^\s:]*[./][^\s:]*)\s+(?P<size>\d+)(?:\s*(?:B|bytes))?\s*$")
});

/// A file in a listing.
struct Entry {
    size: u64,
    line: u32,
    text: String,
}

/// What a listing shows. It explains a failure, and is none by itself: a file may just be being written.
pub(crate) fn candidate(evidence: &Evidence) -> Option<Candidate> {
    let signals: Vec<Signal> = evidence.of_kind(FileKind::Listing).flat_map(torn).collect();
    if signals.is_empty() {
        return None;
    }
    let words = "a part of a checkpoint is empty or shorter than the others";
    let mut candidate = Candidate::new(ID, Class::Storage, 53, words);
    candidate.is_background = true;
    candidate.signals = signals;
    "resume from the newest checkpoint that is whole".clone_into(&mut candidate.next);
    Some(candidate)
}

/// An error in reading, and a file that is torn: the one explains the other.
pub(crate) fn explain(candidates: &mut [Candidate]) {
    let torn = candidates
        .iter()
        .find(|candidate| candidate.id == ID)
        .cloned();
    let Some(torn) = torn else { return };
    let reads = [
        "load", "resum", "restor", "read", "eof", "truncat", "header", "archive", "unpickl",
    ];
    for candidate in candidates {
        let in_reading = candidate.signals.iter().any(|signal| {
            let text = signal.text.to_ascii_lowercase();
            reads.iter().any(|word| text.contains(word))
        });
        let may_be = candidate.id == "storage.torn_checkpoint"
            || matches!(
                candidate.id.as_str(),
                "program.runtime" | "program.exception"
            ) && in_reading;
        if may_be {
            candidate.class = Class::Storage;
            candidate.action = torn.action;
            candidate.strength = candidate.strength.max(88);
            candidate.confidence = candidate.confidence.max(0.9);
            candidate.signals.extend(torn.signals.iter().cloned());
        }
    }
}

fn torn(file: &EvidenceFile) -> Vec<Signal> {
    // Files of one kind: of one folder, and alike but for their numbers.
    let mut kinds: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    for (number, line) in file.numbered() {
        let found = [&LONG_FORM, &SHORT_FORM, &SIZE_LAST]
            .into_iter()
            .find_map(|pattern| pattern.captures(line));
        let Some(found) = found else { continue };
        let (Some(size), Some(path)) = (
            group(&found, "size").and_then(|size| size.parse().ok()),
            group(&found, "path"),
        ) else {
            continue;
        };
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let kind = name.chars().filter(|letter| !letter.is_ascii_digit());
        kinds
            .entry(format!("{folder}/{}", kind.collect::<String>()))
            .or_default()
            .push(Entry {
                size,
                line: number,
                text: line.trim().to_owned(),
            });
    }
    kinds.values().flat_map(|kind| odd(kind, file)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "shares need no last digit")]
fn odd(kind: &[Entry], file: &EvidenceFile) -> Vec<Signal> {
    let mut sizes: Vec<u64> = kind.iter().map(|entry| entry.size).collect();
    sizes.sort_unstable();
    let usual = sizes.get(sizes.len() / 2).copied().unwrap_or_default();
    kind.iter()
        .filter(|entry| kind.len() > 2 && (entry.size as f64) < usual as f64 * SHORT)
        .map(|entry| Signal {
            file: file.name.clone(),
            line: entry.line,
            meaning: format!("{} bytes, where its like have {usual}", entry.size),
            text: entry.text.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<u32> {
        let file = EvidenceFile {
            name: "listing.txt".to_owned(),
            text: text.to_owned(),
            skipped_lines: 0,
        };
        torn(&file).iter().map(|signal| signal.line).collect()
    }

    #[test]
    fn a_shard_that_is_shorter_than_its_like_is_seen_in_every_form() {
        let long = "total 12\n-rw-r--r-- 1 ml ml 812230144 Mar  3 01:00 ck/optim_rank0.pt\n-rw-r--r-- 1 ml ml 812230144 Mar  3 01:00 \
                    ck/optim_rank1.pt\n-rw-r--r-- 1 ml ml 0 Mar  3 01:00 ck/optim_rank2.pt\n-rw-r--r-- 1 ml ml 99 Mar  3 01:00 ck/latest\n";
        assert_eq!(lines(long), [4]);
        assert_eq!(
            lines("100 a/s-0.pt\n100 a/s-1.pt\n7 a/s-2.pt\n7 b/s-2.pt\n"),
            [3]
        );
        assert_eq!(lines("a/s-0.pt 100\na/s-1.pt 40\na/s-2.pt 90\n"), [2]);
        let alike = lines("100 a/s-0.pt\n90 a/s-1.pt\n80 a/s-2.pt\nno file at all\n");
        assert!(alike.is_empty(), "{alike:?}");
    }
}
