// SPDX-License-Identifier: Apache-2.0
//! Reading scenario files, with a place for everything that is wrong.

use std::fs;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;

use super::Scenario;
use super::check;
use crate::failure::Failure;

/// A scenario and the text that it was read from.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Its name: that of the file, without the ending.
    pub(crate) name: String,
    /// The text.
    pub(crate) text: String,
    /// What it says.
    pub(crate) scenario: Scenario,
}

/// Where the parts of a file lie.
#[derive(Debug, Deserialize)]
struct Parts {
    #[serde(default)]
    nodes: Option<Spanned<toml::Value>>,
    #[serde(default)]
    job: Option<Spanned<toml::Value>>,
    #[serde(default)]
    faults: Vec<Spanned<toml::Value>>,
    #[serde(default)]
    expect: Option<Spanned<toml::Value>>,
}

/// The part of a file that something is wrong with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    File,
    Nodes,
    Job,
    Fault(usize),
    Expect,
}

/// Reads a scenario file.
pub(crate) fn read_file(path: &Path) -> Result<Source, Failure> {
    let text = fs::read_to_string(path).map_err(|error| Failure::read(path.display(), error))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    read_text(&name, &path.display().to_string(), &text)
}

/// Reads the text of a scenario; `shown` is what messages call it.
pub(crate) fn read_text(name: &str, shown: &str, text: &str) -> Result<Source, Failure> {
    let wrong = |span: Option<Range<usize>>, message: &str| {
        let (line, column) = position(text, span.map_or(0, |span| span.start));
        Failure::Scenario {
            file: shown.to_owned(),
            line,
            column,
            message: message.to_owned(),
        }
    };
    let scenario: Scenario =
        toml::from_str(text).map_err(|error| wrong(error.span(), error.message()))?;
    let parts: Parts =
        toml::from_str(text).map_err(|error| wrong(error.span(), error.message()))?;
    if let Some((part, message)) = check::problem(&scenario) {
        return Err(wrong(parts.span(part), &message));
    }
    Ok(Source {
        name: name.to_owned(),
        text: text.to_owned(),
        scenario,
    })
}

impl Parts {
    fn span(&self, part: Part) -> Option<Range<usize>> {
        match part {
            Part::File => None,
            Part::Nodes => self.nodes.as_ref().map(Spanned::span),
            Part::Job => self.job.as_ref().map(Spanned::span),
            Part::Fault(index) => self.faults.get(index).map(Spanned::span),
            Part::Expect => self.expect.as_ref().map(Spanned::span),
        }
    }
}

/// Line and column, both from 1.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    let column = before.get(line_start..).unwrap_or_default().chars().count();
    (before.matches('\n').count() + 1, column + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Injection, SignalName};

    fn error(text: &str) -> String {
        read_text("x", "x.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn the_shortest_scenario_has_all_defaults() {
        let source = read_text("x", "x.toml", "description = 'nothing happens'").unwrap();
        let scenario = source.scenario;
        assert_eq!((scenario.nodes.count, scenario.nodes.workers), (1, 2));
        assert_eq!(scenario.nodes.etcd_members(), 0);
        assert_eq!(scenario.limit_seconds, 120);
    }

    #[test]
    fn faults_are_read_with_and_without_fields() {
        let text = "description = 'x'\n[[faults]]\ninject = 'power-off'\n[[faults]]\n\
                    inject = { signal = { signal = 'KILL' } }\non = { rank = 1 }\nat = { step = 10 }\n";
        let scenario = read_text("x", "x.toml", text).unwrap().scenario;
        assert_eq!(scenario.faults[0].inject.name(), "power-off");
        assert_eq!(scenario.faults[0].name(0), "power-off-1");
        assert!(matches!(
            scenario.faults[1].inject,
            Injection::Signal {
                signal: SignalName::Kill
            }
        ));
        assert_eq!(scenario.faults[1].on.rank, Some(1));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let text = "description = 'x'\n[nodes]\ncout = 2\n";
        assert!(error(text).starts_with("x.toml:3:1: "), "{}", error(text));
        assert!(error(text).contains("cout"), "{}", error(text));
        let text = "description = 'x'\n\n[[faults]]\ninject = { signal = { signal = 'WINK' } }\n";
        assert!(error(text).starts_with("x.toml:4:"), "{}", error(text));
        let text =
            "description = 'x'\n\n[[faults]]\ninject = 'power-off'\nat = { after = 'nobody' }\n";
        let said = error(text);
        assert!(
            said.starts_with("x.toml:3:1: ") && said.contains("nobody"),
            "{said}"
        );
    }

    #[test]
    fn positions_count_from_one() {
        assert_eq!(position("ab\ncd", 0), (1, 1));
        assert_eq!(position("ab\ncd", 4), (2, 2));
        assert_eq!(position("", 9), (1, 1));
    }
}
