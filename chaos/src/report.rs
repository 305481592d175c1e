// SPDX-License-Identifier: Apache-2.0
//! Reports: a scorecard for the terminal, `JUnit` for CI, JSON for programs, a page with timelines for people.

mod html;
mod junit;
mod scorecard;
mod timeline;

use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;

use crate::bench::launch::write;
use crate::failure::Failure;
use crate::history::write_json;
use crate::judge::Judgement;
use crate::suite::Scored;

pub(crate) use self::scorecard::Scorecard;

/// The files that are wanted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Files {
    pub(crate) junit: Option<PathBuf>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) html: Option<PathBuf>,
}

/// The JSON report.
#[derive(Debug, Serialize)]
struct Report<'a> {
    /// Changes when a field changes its meaning.
    version: u32,
    scorecard: &'a Scorecard,
    scenarios: Vec<&'a Judgement>,
}

/// Writes the files, and the scorecard to `out`.
pub(crate) fn write_all(
    results: &[Scored],
    files: &Files,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let scorecard = Scorecard::of(results);
    scorecard.print(out)?;
    if let Some(path) = &files.junit {
        write(path, &junit::text(results))?;
    }
    if let Some(path) = &files.json {
        let report = Report {
            version: 1,
            scorecard: &scorecard,
            scenarios: results.iter().map(|scored| &scored.judgement).collect(),
        };
        write_json(path, &report)?;
    }
    if let Some(path) = &files.html {
        write(path, &html::page(results, &scorecard))?;
    }
    Ok(())
}

/// Text as XML and HTML want it.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            // XML has no place for the others.
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_markup_is_escaped() {
        assert_eq!(
            escaped("a<b & \"c\"\u{1b}\n"),
            "a&lt;b &amp; &quot;c&quot;\u{fffd}\n"
        );
    }
}
