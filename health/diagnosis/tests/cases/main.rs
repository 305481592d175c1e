// SPDX-License-Identifier: Apache-2.0
//! The kept cases (`tests/cases`): each has the right answer, and keeps it whatever is changed that says nothing.

#![expect(clippy::unwrap_used, reason = "this is test code")]

mod case;
mod same_answer;

use std::collections::BTreeMap;

use case::{Case, all, judge};
use steadfast_diagnosis::{Evidence, EvidenceFile, Rules, diagnose};

#[test]
fn every_case_has_the_right_answer() {
    let cases = all();
    assert!(cases.len() >= 40, "only {} cases are there", cases.len());
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let faults = judge(case, &case.files);
            (!faults.is_empty()).then(|| format!("{}: {}", case.name, faults.join("; ")))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Judges every case with its files changed, and names those whose answer changes.
pub(crate) fn changed(change: impl Fn(&Case) -> Vec<EvidenceFile>) -> Vec<String> {
    let cases = all();
    let cases = cases.iter();
    cases
        .filter_map(|case| {
            let faults = judge(case, &change(case));
            (!faults.is_empty()).then(|| format!("{}: {}", case.name, faults.join("; ")))
        })
        .collect()
}

pub(crate) fn with_texts(
    case: &Case,
    change: impl Fn(&EvidenceFile) -> String,
) -> Vec<EvidenceFile> {
    let files = case.files.iter().map(|file| EvidenceFile {
        text: change(file),
        ..file.clone()
    });
    files.collect()
}

/// Whether a file ends so.
pub(crate) fn ends(file: &EvidenceFile, ends: &[&str]) -> bool {
    let end = file.name.rsplit('.').next();
    end.is_some_and(|end| ends.contains(&end))
}

#[test]
fn the_order_of_files_changes_nothing() {
    let wrong = changed(|case| case.files.iter().rev().cloned().collect());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn line_ends_change_nothing() {
    let wrong = changed(|case| {
        with_texts(case, |file| {
            if ends(file, &["log", "txt"]) {
                file.text.replace('\n', "\r\n")
            } else {
                file.text.clone()
            }
        })
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn colours_change_nothing() {
    let wrong = changed(|case| {
        with_texts(case, |file| {
            if !ends(file, &["log"]) {
                return file.text.clone();
            }
            let mut text = String::new();
            for line in file.text.lines() {
                text.extend(["\u{1b}[33m", line, "\u{1b}[0m\n"]);
            }
            text
        })
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn harmless_lines_in_between_change_nothing() {
    let harmless = [
        "Loading dataset shard 3 of 12",
        "/opt/lib/python3.10/site-packages/torch/nn/modules/module.py:1511: UserWarning: Full backward hook is firing",
        "wandb: Syncing run quiet-sun-7",
        "",
    ];
    let wrong = changed(|case| {
        with_texts(case, |file| {
            if !ends(file, &["log"]) {
                return file.text.clone();
            }
            let mut text = String::new();
            for (line, other) in file.text.lines().zip(harmless.iter().cycle()) {
                text.extend([line, "\n", other, "\n"]);
            }
            text
        })
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_names_of_hosts_change_nothing() {
    let cases = all();
    let mut wrong = Vec::new();
    for case in &cases {
        let nodes = case.nodes();
        let new: BTreeMap<&String, String> = nodes
            .iter()
            .enumerate()
            .map(|(index, node)| (node, format!("zq{}x", 90 - index)))
            .collect();
        // The longest first, since one name may begin like another; and only where a name stands alone.
        let mut names: Vec<(&&String, &String)> = new.iter().collect();
        names.sort_by_key(|(node, _)| std::cmp::Reverse(node.len()));
        let rename = |text: &str| -> String {
            names.iter().fold(text.to_owned(), |text, (node, name)| {
                case::replace_word(&text, node, name)
            })
        };
        let files: Vec<EvidenceFile> = case
            .files
            .iter()
            .map(|file| EvidenceFile {
                name: rename(&file.name),
                text: rename(&file.text),
                skipped_lines: 0,
            })
            .collect();
        let renamed = Case {
            name: case.name.clone(),
            files: files.clone(),
            expected: rename(&case.expected.to_string()).parse().unwrap(),
        };
        let faults = judge(&renamed, &files);
        if !faults.is_empty() {
            wrong.push(format!("{}: {}", case.name, faults.join("; ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_long_log_is_read_to_its_end() {
    // A guard against something quadratic, not a measurement.
    let mut text = String::new();
    for step in 0..8_000 {
        let number = step.to_string();
        let words = " loss 1.5 some words that tell nothing at all\n";
        text.extend(["2025-01-01 00:00:00,000 INFO step ", &number, words]);
        if step % 3 == 0 {
            text +=
                "[rank0]:[W CUDAGuardImpl.h:119] Warning: a warning that comes again and again\n";
        }
    }
    text += "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n";
    let lines = u32::try_from(text.lines().count()).unwrap();
    let evidence = Evidence::new(vec![EvidenceFile {
        name: "rank-0.log".to_owned(),
        text,
        skipped_lines: 0,
    }]);
    let answer = diagnose(&evidence, Rules::built_in());
    assert_eq!(answer.class.name(), "gpu_memory");
    assert_eq!(answer.signals[0].line, lines);
}
