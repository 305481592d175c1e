// SPDX-License-Identifier: Apache-2.0
//! A report as a plugin of Nagios gives it: one line, and an exit code from 0 to 3.

use crate::outcome::Status;
use crate::report::Report;

/// The line, with what is wrong in it, and the time after the bar.
pub fn line(report: &Report) -> String {
    let word = match exit_code(report) {
        0 => "OK",
        1 => "WARNING",
        2 => "CRITICAL",
        _ => "UNKNOWN",
    };
    let wrong: Vec<String> = [Status::Fail, Status::Warn, Status::Broken]
        .into_iter()
        .flat_map(|status| report.with(status))
        .map(|result| format!("{}: {}", result.name, result.summary))
        .collect();
    let said = if wrong.is_empty() {
        let unknown = report.with(Status::Unknown).count();
        let well = report.with(Status::Ok).count();
        format!("{well} checks well, {unknown} could not be made")
    } else {
        // The bar would begin the figures.
        wrong.join("; ").replace('|', "/")
    };
    let took = report.took.as_secs_f64();
    format!("STEADFAST {word} - {said} | time={took:.3}s\n")
}

/// 2 when something failed, 1 for a warning, 3 when a check broke or none could be made, else 0.
pub fn exit_code(report: &Report) -> u8 {
    let has = |status| report.with(status).next().is_some();
    if has(Status::Fail) {
        2
    } else if has(Status::Warn) {
        1
    } else if has(Status::Broken) || !has(Status::Ok) {
        3
    } else {
        0
    }
}
