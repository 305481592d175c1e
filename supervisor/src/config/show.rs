// SPDX-License-Identifier: Apache-2.0
//! What `steadfast config` prints: the values in force with their origin, and the sample file.

use serde::Serialize;

use super::option::{Default, Group, Kind, OptionSpec};
use super::table::OPTIONS;
use super::values::{Origin, Values};
use crate::settings::Mode;

/// Version of the JSON form; raised when a field changes its meaning or goes away.
const JSON_VERSION: u32 = 1;

const SAMPLE_HEAD: &str = "\
# Configuration of steadfast. A line is in force once the `#` at its start is gone.
# Flags go before environment variables, those before this file, and this file before the defaults.
";

/// The values in force as a table.
pub(crate) fn text(values: &Values) -> String {
    let rows: Vec<[String; 3]> = OPTIONS.iter().map(|option| row(option, values)).collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let (first, second) = (width(0), width(1).min(40));
    let mut lines = Vec::new();
    for [key, value, origin] in &rows {
        lines.push(format!("{key:first$} = {value:second$}  # {origin}\n"));
    }
    lines.concat()
}

/// The values in force as JSON.
pub(crate) fn json(values: &Values) -> String {
    let options = OPTIONS
        .iter()
        .map(|option| {
            let value = values.get(option.key);
            let origin = value.map_or(&Origin::Default, |value| &value.origin);
            let (origin, place) = match origin {
                Origin::Flag(flag) => ("flag", Some(flag.clone())),
                Origin::Environment(name) => ("environment", Some(name.clone())),
                Origin::File(path, line) => ("file", Some(format!("{}:{line}", path.display()))),
                Origin::Slurm(variable) => ("slurm", Some((*variable).to_owned())),
                Origin::Default => ("default", None),
            };
            JsonOption {
                key: option.file_key(),
                value: value.map(|value| value.text.clone()),
                origin,
                place,
            }
        })
        .collect();
    let report = JsonReport {
        version: JSON_VERSION,
        options,
    };
    let mut text = serde_json::to_string_pretty(&report).unwrap_or_default();
    text.push('\n');
    text
}

/// A configuration file with every option, its meaning and its default, all commented out.
pub(crate) fn sample() -> String {
    let mut parts = vec![SAMPLE_HEAD.to_owned()];
    let mut group: Option<Group> = None;
    for option in &OPTIONS {
        if group != Some(option.group) {
            group = Some(option.group);
            parts.push(format!("\n# {}\n", option.group.title()));
        }
        parts.push(sample_entry(option));
    }
    parts.concat()
}

/// The default of an option in words, for help texts; absent when there is none.
pub(crate) fn default_in_words(option: &OptionSpec, mode: Mode) -> Option<&'static str> {
    match option.default_for(mode) {
        Default::Value(value) => Some(value),
        Default::Described(words) => Some(words),
        Default::Unset => None,
    }
}

/// `text` as a TOML value of this kind.
pub(crate) fn toml_value(kind: Kind, text: &str) -> String {
    match kind {
        Kind::Integer | Kind::Switch => text.to_owned(),
        Kind::List => {
            let items: Vec<String> = text
                .split(',')
                .map(|item| toml::Value::from(item).to_string())
                .collect();
            format!("[{}]", items.join(", "))
        }
        Kind::Text | Kind::Duration => toml::Value::from(text).to_string(),
    }
}

#[derive(Serialize)]
struct JsonReport {
    version: u32,
    options: Vec<JsonOption>,
}

#[derive(Serialize)]
struct JsonOption {
    key: String,
    value: Option<String>,
    origin: &'static str,
    place: Option<String>,
}

fn row(option: &OptionSpec, values: &Values) -> [String; 3] {
    let Some(value) = values.get(option.key) else {
        let words = default_in_words(option, Mode::Run).unwrap_or("not set");
        return [
            option.file_key(),
            format!("({words})"),
            Origin::Default.to_string(),
        ];
    };
    [
        option.file_key(),
        toml_value(option.kind, &value.text),
        value.origin.to_string(),
    ]
}

fn sample_entry(option: &OptionSpec) -> String {
    let mut lines = vec![String::new()];
    lines.extend(
        wrap(option.doc, 98)
            .into_iter()
            .map(|line| format!("# {line}")),
    );
    let key = option.file_key();
    lines.push(match option.default {
        Default::Value(value) => format!("#{key} = {}", toml_value(option.kind, value)),
        Default::Described(words) => {
            format!("# Default: {words}.\n#{key} = {}", placeholder(option.kind))
        }
        Default::Unset => format!("#{key} = {}", placeholder(option.kind)),
    });
    lines.push(String::new());
    lines.join("\n")
}

fn placeholder(kind: Kind) -> &'static str {
    match kind {
        Kind::Integer => "0",
        Kind::Switch => "false",
        Kind::List => "[]",
        Kind::Text | Kind::Duration => "\"\"",
    }
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
