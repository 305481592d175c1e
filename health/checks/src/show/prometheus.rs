// SPDX-License-Identifier: Apache-2.0
//! A report as metrics, for the text files that Prometheus' node exporter collects.

use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::outcome::Status;
use crate::report::Report;

/// The report as metrics; `now` is the time since 1970.
pub fn report(report: &Report, now: Duration) -> String {
    let mut text = String::new();
    // Writing to a text cannot fail.
    let _written = write(&mut text, report, now);
    text
}

fn write(text: &mut String, report: &Report, now: Duration) -> fmt::Result {
    let profile = report.profile.name();
    head(
        text,
        "steadfast_check_fit",
        "Whether jobs may run on the node: 1 if no check failed.",
    )?;
    writeln!(
        text,
        "steadfast_check_fit{{profile=\"{profile}\"}} {}",
        u8::from(report.is_fit())
    )?;
    head(
        text,
        "steadfast_check_status",
        "Result of a check: 1 for the status that it has.",
    )?;
    for result in &report.results {
        let name = escape(&result.name);
        for status in Status::ALL {
            let has = u8::from(result.status == status);
            writeln!(
                text,
                "steadfast_check_status{{profile=\"{profile}\",check=\"{name}\",status=\"{status}\"}} {has}"
            )?;
        }
    }
    head(
        text,
        "steadfast_check_duration_seconds",
        "How long a check took.",
    )?;
    for result in &report.results {
        let name = escape(&result.name);
        let took = result.took.as_secs_f64();
        writeln!(
            text,
            "steadfast_check_duration_seconds{{profile=\"{profile}\",check=\"{name}\"}} {took:.6}"
        )?;
    }
    head(
        text,
        "steadfast_check_run_duration_seconds",
        "How long all checks took.",
    )?;
    let took = report.took.as_secs_f64();
    writeln!(
        text,
        "steadfast_check_run_duration_seconds{{profile=\"{profile}\"}} {took:.6}"
    )?;
    head(
        text,
        "steadfast_check_run_timestamp_seconds",
        "When the checks were made, since 1970.",
    )?;
    let now = now.as_secs_f64();
    writeln!(
        text,
        "steadfast_check_run_timestamp_seconds{{profile=\"{profile}\"}} {now:.3}"
    )
}

fn head(text: &mut String, name: &str, help: &str) -> fmt::Result {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge")
}

fn escape(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
