// SPDX-License-Identifier: Apache-2.0
//! The table of checks, for people and programs.

use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::spec::{Spec, Threshold};
use crate::table::CHECKS;
use crate::units::show_duration;

/// Columns of a text.
const WIDTH: usize = 100;

/// What every check looks at, and what can be configured of it.
pub fn text() -> String {
    let mut text = String::new();
    for spec in CHECKS {
        // Writing to a text cannot fail.
        let _written = entry(&mut text, spec);
    }
    text.push_str(
        "Every check also has `enabled`, `severity` (\"warn\" or \"fail\": how bad all is that it finds), `deadline` and \
         `profiles`.\nDocumentation: docs/checks.md\n",
    );
    text
}

fn entry(text: &mut String, spec: &Spec) -> fmt::Result {
    writeln!(
        text,
        "{}  ({}; at most {})",
        spec.name,
        profiles(spec).join(", "),
        show_duration(spec.deadline)
    )?;
    wrap(text, "  ", spec.doc)?;
    for threshold in spec.thresholds {
        let default = threshold.default_in_words();
        let head = format!("{} (default {default}): ", threshold.name());
        wrap(text, "    ", &format!("{head}{}", threshold.doc()))?;
    }
    writeln!(text)
}

fn wrap(text: &mut String, indent: &str, words: &str) -> fmt::Result {
    let mut column = 0;
    for word in words.split_ascii_whitespace() {
        let length = word.chars().count();
        if column == 0 || column + 1 + length > WIDTH {
            if column > 0 {
                writeln!(text)?;
            }
            write!(text, "{indent}{word}")?;
            column = indent.len() + length;
        } else {
            write!(text, " {word}")?;
            column += 1 + length;
        }
    }
    writeln!(text)
}

pub(super) fn profiles(spec: &Spec) -> Vec<&'static str> {
    spec.profiles.iter().map(|profile| profile.name()).collect()
}

#[derive(Serialize)]
struct Shown {
    name: &'static str,
    doc: &'static str,
    profiles: Vec<&'static str>,
    deadline_seconds: f64,
    thresholds: Vec<ShownThreshold>,
}

#[derive(Serialize)]
struct ShownThreshold {
    name: &'static str,
    doc: &'static str,
    takes: String,
    default: String,
}

/// The same as a JSON array.
///
/// # Errors
///
/// None that the table could cause.
pub fn json() -> Result<String, serde_json::Error> {
    let threshold = |threshold: &Threshold| ShownThreshold {
        name: threshold.name(),
        doc: threshold.doc(),
        takes: threshold.form(),
        default: threshold.default_in_words(),
    };
    let shown: Vec<Shown> = CHECKS
        .iter()
        .map(|spec| Shown {
            name: spec.name,
            doc: spec.doc,
            profiles: profiles(spec),
            deadline_seconds: spec.deadline.as_secs_f64(),
            thresholds: spec.thresholds.iter().map(threshold).collect(),
        })
        .collect();
    Ok(serde_json::to_string(&shown)? + "\n")
}
