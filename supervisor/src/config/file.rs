// SPDX-License-Identifier: Apache-2.0
//! Configuration files: which are read, and how TOML becomes option values.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::host::Host;
use super::option::{Key, OptionSpec};
use super::suggest::nearest;
use super::table::OPTIONS;

/// One value of a configuration file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileValue {
    /// The option.
    pub(crate) key: Key,
    /// The value, written as on the command line.
    pub(crate) text: String,
    /// Line of the key, from 1.
    pub(crate) line: usize,
}

/// A file that may be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// How the user named it; absent for the files that are read if they are there.
    pub(crate) named_by: Option<String>,
}

/// The files to read, the least important first: the machine's, the user's, and the one that was named.
pub(crate) fn candidates(host: &Host, flag: Option<&str>) -> Vec<Candidate> {
    let mut files = vec![Candidate {
        path: host.root.join("etc/steadfast/config.toml"),
        named_by: None,
    }];
    let user = host
        .variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| Some(Path::new(host.variable("HOME")?).join(".config")));
    if let Some(directory) = user {
        files.push(Candidate {
            path: directory.join("steadfast/config.toml"),
            named_by: None,
        });
    }
    let named = match (flag, host.variable("STEADFAST_CONFIG")) {
        (Some(path), _) => Some((path, "--config")),
        (None, Some(path)) => Some((path, "STEADFAST_CONFIG")),
        (None, None) => None,
    };
    if let Some((path, by)) = named {
        files.push(Candidate {
            path: host.working_dir.join(path),
            named_by: Some(by.to_owned()),
        });
    }
    files
}

/// Reads one file. A file that nobody named may be absent.
pub(crate) fn read(candidate: &Candidate) -> Result<Vec<FileValue>, ConfigError> {
    let text = match std::fs::read_to_string(&candidate.path) {
        Ok(text) => text,
        Err(error) => {
            let absent = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
            return match &candidate.named_by {
                None if absent => Ok(Vec::new()),
                named_by => Err(ConfigError::FileRead {
                    file: candidate.path.clone(),
                    given: named_by
                        .clone()
                        .unwrap_or_else(|| "read if it is there".to_owned()),
                    reason: error,
                }),
            };
        }
    };
    parse(&candidate.path, &text)
}

/// Reads the text of `file`.
pub(crate) fn parse(file: &Path, text: &str) -> Result<Vec<FileValue>, ConfigError> {
    let table = DeTable::parse(text).map_err(|error| ConfigError::FileSyntax {
        file: file.to_owned(),
        line: line_of(text, error.span().map_or(0, |span| span.start)),
        reason: error.message().replace('\n', ", "),
    })?;
    let mut values = Vec::new();
    for (key, value) in table.get_ref() {
        let line = line_of(text, key.span().start);
        let name: &str = key.get_ref();
        let Some(spec) = OPTIONS.iter().find(|spec| spec.file_key() == name) else {
            let known: Vec<String> = OPTIONS.iter().map(OptionSpec::file_key).collect();
            let wanted = name.replace('-', "_");
            return Err(ConfigError::UnknownKey {
                file: file.to_owned(),
                line,
                key: name.to_owned(),
                nearest: nearest(&wanted, known.iter().map(String::as_str)).map(str::to_owned),
            });
        };
        let text = as_text(value).map_err(|found| ConfigError::FileValue {
            file: file.to_owned(),
            line,
            key: name.to_owned(),
            found,
        })?;
        values.push(FileValue {
            key: spec.key,
            text,
            line,
        });
    }
    Ok(values)
}

/// The value as it would be written on the command line, or what it is instead.
fn as_text(value: &Spanned<DeValue<'_>>) -> Result<String, &'static str> {
    match value.get_ref() {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => {
            let (digits, radix) = (number.as_str().replace('_', ""), number.radix());
            i64::from_str_radix(&digits, radix)
                .map(|number| number.to_string())
                .map_err(|_| "a number that is too large")
        }
        DeValue::Float(number) => Ok(number.as_str().replace('_', "")),
        DeValue::Boolean(value) => Ok(value.to_string()),
        DeValue::Array(items) => {
            let items: Vec<String> = items.iter().map(list_item).collect::<Result<_, _>>()?;
            Ok(items.join(","))
        }
        DeValue::Table(_) => Err("a table"),
        DeValue::Datetime(_) => Err("a date"),
    }
}

fn list_item(item: &Spanned<DeValue<'_>>) -> Result<String, &'static str> {
    match item.get_ref() {
        DeValue::Array(_) => Err("a list of lists"),
        _ => as_text(item).and_then(|text| {
            if text.contains(',') {
                Err("a list with a comma in one of its items")
            } else {
                Ok(text)
            }
        }),
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or(text);
    before.matches('\n').count() + 1
}
