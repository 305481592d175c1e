// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;

use super::{KernelLog, parse_line};
use crate::xid::{Grouping, Judge, Policy, assess, rank_in_incident};

/// Lines, and the fields that their last event must have.
struct Case<'a> {
    lines: Vec<&'a str>,
    expected: Vec<(&'a str, &'a str)>,
}

/// A case ends with its `= ` line.
fn cases(text: &str) -> Vec<Case<'_>> {
    let (mut cases, mut lines) = (Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("> ") {
            lines.push(line);
        } else if let Some(fields) = line.strip_prefix("= ") {
            let fields = fields
                .split('\t')
                .map(|field| field.split_once('=').unwrap());
            cases.push(Case {
                lines: std::mem::take(&mut lines),
                expected: fields.collect(),
            });
        } else {
            assert!(line.is_empty() || line.starts_with('#'), "{line}");
        }
    }
    cases
}

fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(as_text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

fn fields(lines: &[&str]) -> BTreeMap<String, String> {
    let mut log = KernelLog::new();
    let event = lines
        .iter()
        .filter_map(|line| log.push(line.as_bytes()))
        .last();
    let Some(event) = event else {
        return BTreeMap::from([("kind".to_owned(), "none".to_owned())]);
    };
    let mut all = BTreeMap::new();
    for (name, value) in event.fields() {
        if let Value::Array(items) = &value {
            for (index, item) in items.iter().enumerate() {
                all.insert(format!("{name}.{index}"), as_text(item));
            }
        }
        all.insert(name.to_owned(), as_text(&value));
    }
    all
}

fn check(text: &str, least: usize) {
    let cases = cases(text);
    assert!(cases.len() >= least, "{}", cases.len());
    let mut wrong = Vec::new();
    for Case { lines, expected } in &cases {
        let found = fields(lines);
        for (name, value) in expected {
            let absent = *value == "-" && *name != "flags";
            let found = found.get(*name).map(String::as_str);
            if found != (!absent).then_some(*value) {
                wrong.push(format!("{lines:?}: {name} is {found:?}, not {value}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn lines_of_the_gpu_driver() {
    check(include_str!("../../testdata/gpu_lines.txt"), 100);
}

#[test]
fn lines_of_the_rest_of_the_kernel() {
    check(include_str!("../../testdata/system_lines.txt"), 35);
}

#[test]
fn everything_that_may_stand_before_a_message() {
    check(include_str!("../../testdata/headers.txt"), 20);
}

#[test]
fn further_lines_of_a_switch_error_make_no_event_unless_they_are_all_there_is() {
    let line = |rest: &str| format!("nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 12033, {rest}");
    let mut log = KernelLog::new();
    let alone = log
        .push(line("Severity 1 Engine instance 00").as_bytes())
        .unwrap();
    let field = ("continuation", Value::from("severity1"));
    assert!(alone.fields().contains(&field), "{alone:?}");
    assert_eq!(log.push(line("Data {0x1}").as_bytes()), None);
    assert!(log.push(line("Fatal, Link 3 x").as_bytes()).is_some());
    assert_eq!(
        log.push(line("Severity 1 Engine instance 00").as_bytes()),
        None
    );
}

#[test]
fn line_ends_and_key_value_pairs_of_a_record_are_no_part_of_it() {
    let line = "NVRM: Xid (PCI:0000:01:00): 43, pid=1, name=a, Ch 8";
    let record = format!("4,1,2,-;{line}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n");
    let event = parse_line(record.as_bytes()).unwrap();
    assert_eq!(event.message, "Ch 8");
    let event = parse_line(format!("{line}\r\n").as_bytes()).unwrap();
    assert_eq!(event.message, "Ch 8");
}

/// Reads a line in every way there is; it only has to come back.
fn read(line: &[u8]) {
    let (mut log, mut grouping) = (KernelLog::new(), Grouping::new());
    let mut judge = Judge::new(Policy::default());
    for event in [log.push(line), parse_line(line)].into_iter().flatten() {
        let found = assess(&event, None);
        assert!(!found.meaning.is_empty());
        assert!(!event.fields().is_empty());
        grouping.place(&event);
        assert!(rank_in_incident(&event) < 10);
        judge.judge(std::time::Duration::ZERO, &event, found.action);
    }
}

/// A line of the test data, broken at one place.
fn broken_line() -> impl Strategy<Value = Vec<u8>> {
    let text = include_str!("../../testdata/gpu_lines.txt");
    let lines: Vec<&'static str> = cases(text)
        .into_iter()
        .flat_map(|case| case.lines)
        .collect();
    let noise = prop::collection::vec(any::<u8>(), 0..4);
    (
        prop::sample::select(lines),
        any::<prop::sample::Index>(),
        noise,
        any::<bool>(),
    )
        .prop_map(|(line, place, noise, cut)| {
            let (before, after) = line.as_bytes().split_at(place.index(line.len()));
            let after = if cut { &[][..] } else { after };
            [before, &noise, after].concat()
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read(line in prop::collection::vec(any::<u8>(), 0..300)) {
        read(&line);
    }

    #[test]
    fn broken_lines_are_read(line in broken_line()) {
        read(&line);
    }

    #[test]
    fn what_is_read_of_an_xid_is_what_was_written(
        bus: u8,
        device in 0..32_u8,
        code: u32,
        pid: u32,
        name in "[a-zA-Z0-9:.\\[\\]_-]{1,15}",
    ) {
        let line = format!("[1.5] NVRM: Xid (PCI:0000:{bus:02x}:{device:02x}): {code}, pid={pid}, name={name}, x");
        let event = parse_line(line.as_bytes()).unwrap();
        let fields: BTreeMap<_, _> = event.fields().into_iter().collect();
        prop_assert_eq!(&fields["code"], &Value::from(code));
        prop_assert_eq!(&fields["pid"], &Value::from(pid));
        prop_assert_eq!(&fields["name"], &Value::from(name));
        prop_assert_eq!(&fields["pci"], &Value::from(format!("0000:{bus:02x}:{device:02x}")));
    }
}
