// SPDX-License-Identifier: Apache-2.0
//! A report for programs.

use serde::Serialize;

use crate::outcome::{Problem, Status};
use crate::report::{CheckResult, Report};

/// The form. Fields may be added to it; one that changes its meaning makes another form.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Shown<'a> {
    version: u32,
    node: &'a str,
    profile: &'static str,
    /// Whether jobs may run on the node.
    fit: bool,
    /// Why not; empty when they may.
    reason: String,
    seconds: f64,
    checks: Vec<Check<'a>>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct Check<'a> {
    name: &'a str,
    status: Status,
    summary: &'a str,
    problems: &'a [Problem],
    evidence: &'a [String],
    seconds: f64,
}

impl<'a> From<&'a CheckResult> for Check<'a> {
    fn from(result: &'a CheckResult) -> Self {
        Self {
            name: &result.name,
            status: result.status,
            summary: &result.summary,
            problems: &result.problems,
            evidence: &result.evidence,
            seconds: result.took.as_secs_f64(),
        }
    }
}

/// The report as one JSON object in one line.
///
/// # Errors
///
/// None that a report could cause.
pub fn report(report: &Report) -> Result<String, serde_json::Error> {
    let shown = Shown {
        version: VERSION,
        node: &report.node,
        profile: report.profile.name(),
        fit: report.is_fit(),
        reason: report.reason(),
        seconds: report.took.as_secs_f64(),
        checks: report.results.iter().map(Check::from).collect(),
        notes: &report.notes,
    };
    Ok(serde_json::to_string(&shown)? + "\n")
}
