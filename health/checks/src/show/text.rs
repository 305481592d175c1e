// SPDX-License-Identifier: Apache-2.0
//! A report for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::outcome::Status;
use crate::report::{CheckResult, Report};

/// Names are padded to this width.
const WIDTH: usize = 20;

/// The report as text: what is wrong first, with what to do about it, then what could not be checked, then the rest. With
/// `verbose`, evidence and times too.
pub fn report(report: &Report, colour: bool, verbose: bool) -> String {
    let mut text = String::new();
    for status in [Status::Fail, Status::Warn, Status::Broken] {
        for result in report.with(status) {
            problems(&mut text, result, colour);
            details(&mut text, result, verbose);
        }
    }
    for result in report.with(Status::Ok) {
        line(&mut text, Status::Ok, &result.name, &result.summary, colour);
        details(&mut text, result, verbose);
    }
    unknown(&mut text, report, colour, verbose);
    for note in &report.notes {
        add(&mut text, format_args!("note: {note}\n"));
    }
    add(&mut text, format_args!("{}\n", summary(report)));
    text
}

/// One line that says how the node is.
pub(super) fn summary(report: &Report) -> String {
    let counts = [
        (Status::Fail, "failed"),
        (Status::Warn, "warned"),
        (Status::Broken, "broke"),
        (Status::Unknown, "could not be made"),
        (Status::Ok, "well"),
    ];
    let counts: Vec<String> = counts
        .into_iter()
        .map(|(status, words)| (report.with(status).count(), words))
        .filter(|(count, _)| *count > 0)
        .map(|(count, words)| format!("{count} {words}"))
        .collect();
    format!(
        "{} is {}fit for jobs: of {} checks ({}) {}, in {:.2} s",
        report.node,
        if report.is_fit() { "" } else { "not " },
        report.results.len(),
        report.profile,
        if counts.is_empty() {
            "none was made".to_owned()
        } else {
            counts.join(", ")
        },
        report.took.as_secs_f64()
    )
}

fn problems(text: &mut String, result: &CheckResult, colour: bool) {
    for problem in &result.problems {
        line(text, problem.status, &result.name, &problem.text, colour);
        if let Some(next) = &problem.next_step {
            add(text, format_args!("{:8} {:WIDTH$} -> {next}\n", "", ""));
        }
    }
}

fn details(text: &mut String, result: &CheckResult, verbose: bool) {
    if !verbose {
        return;
    }
    for evidence in &result.evidence {
        add(text, format_args!("{:8} {:WIDTH$}    {evidence}\n", "", ""));
    }
    let took = result.took.as_secs_f64();
    add(
        text,
        format_args!("{:8} {:WIDTH$}    took {took:.3} s\n", "", ""),
    );
}

/// Checks that could not be made for the same reason share a line.
fn unknown(text: &mut String, report: &Report, colour: bool, verbose: bool) {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for result in report.with(Status::Unknown) {
        by_reason
            .entry(&result.summary)
            .or_default()
            .push(&result.name);
    }
    for (reason, names) in by_reason {
        if let [name] = names[..] {
            line(text, Status::Unknown, name, reason, colour);
            continue;
        }
        line(
            text,
            Status::Unknown,
            &format!("{} checks", names.len()),
            reason,
            colour,
        );
        let names = names.join(", ");
        add(text, format_args!("{:8} {:WIDTH$}    {names}\n", "", ""));
    }
    if verbose {
        for result in report
            .with(Status::Unknown)
            .filter(|result| !result.evidence.is_empty())
        {
            add(text, format_args!("{:8} {:WIDTH$}\n", "", result.name));
            details(text, result, verbose);
        }
    }
}

fn line(text: &mut String, status: Status, name: &str, summary: &str, colour: bool) {
    let (on, off) = match (colour, status) {
        (false, _) => ("", ""),
        (true, Status::Ok) => ("\x1b[32m", "\x1b[0m"),
        (true, Status::Warn) => ("\x1b[33m", "\x1b[0m"),
        (true, Status::Fail) => ("\x1b[1;31m", "\x1b[0m"),
        (true, Status::Broken) => ("\x1b[35m", "\x1b[0m"),
        (true, Status::Unknown) => ("\x1b[2m", "\x1b[0m"),
    };
    add(
        text,
        format_args!("{on}{status:8}{off} {name:WIDTH$} {summary}\n"),
    );
}

fn add(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a text cannot fail.
    let _written = text.write_fmt(arguments);
}
