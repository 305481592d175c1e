// SPDX-License-Identifier: Apache-2.0
//! The values in force, each with where it comes from: flag over environment over file over default.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::error::ConfigError;
use super::file;
use super::host::Host;
use super::option::{Default, Key};
use super::table::{OPTIONS, spec};
use crate::settings::Mode;

/// The options that have a value. Those that have none, and those whose default is worked out, are absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Values(BTreeMap<Key, Value>);

/// A value as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    /// The text, in the form of the command line.
    pub(crate) text: String,
    /// Where it was written.
    pub(crate) origin: Origin,
}

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// On the command line, as this flag.
    Flag(String),
    /// In this environment variable.
    Environment(String),
    /// In this file, at this line.
    File(PathBuf, usize),
    /// Nowhere, but it follows from this variable of Slurm.
    Slurm(&'static str),
    /// Nowhere.
    Default,
}

/// A value and its place, in the words of the user: `` `--tee 7` ``, or `` FILE:3: `tee = 7` ``.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given(pub(crate) String);

/// What was written on the command line and in the environment.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// `--config`.
    pub(crate) config: Option<String>,
    /// Values from flags, in their order: the last of an option counts.
    pub(crate) flags: Vec<(Key, Value)>,
    /// Values from environment variables that are not ours, such as torchrun's; ours go before them.
    pub(crate) environment: Vec<(Key, Value)>,
}

impl Values {
    /// Lays the sources over each other.
    pub(crate) fn resolve(mode: Mode, host: &Host, written: Written) -> Result<Self, ConfigError> {
        let mut values = BTreeMap::new();
        for option in &OPTIONS {
            if let Default::Value(text) = option.default_for(mode) {
                values.insert(
                    option.key,
                    Value {
                        text: text.to_owned(),
                        origin: Origin::Default,
                    },
                );
            }
        }
        for candidate in file::candidates(host, written.config.as_deref()) {
            for found in file::read(&candidate)? {
                let origin = Origin::File(candidate.path.clone(), found.line);
                values.insert(
                    found.key,
                    Value {
                        text: found.text,
                        origin,
                    },
                );
            }
        }
        values.extend(written.environment);
        for option in &OPTIONS {
            let name = option.environment();
            if let Some(text) = host.variable(&name) {
                values.insert(
                    option.key,
                    Value {
                        text: text.to_owned(),
                        origin: Origin::Environment(name),
                    },
                );
            }
        }
        values.extend(written.flags);
        Ok(Self(values))
    }

    /// The value of an option.
    pub(crate) fn get(&self, key: Key) -> Option<&Value> {
        self.0.get(&key)
    }

    /// The text of an option's value.
    pub(crate) fn text(&self, key: Key) -> Option<&str> {
        self.get(key).map(|value| value.text.as_str())
    }

    /// Replaces the value of an option.
    pub(crate) fn set(&mut self, key: Key, value: Value) {
        self.0.insert(key, value);
    }

    /// Takes the value of an option away.
    pub(crate) fn remove(&mut self, key: Key) {
        self.0.remove(&key);
    }

    /// Whether the option's value was written anywhere.
    pub(crate) fn is_written(&self, key: Key) -> bool {
        self.get(key)
            .is_some_and(|value| value.origin != Origin::Default)
    }

    /// Whether the option's value was written for this very job: on the command line or in the environment.
    pub(crate) fn is_explicit(&self, key: Key) -> bool {
        self.get(key)
            .is_some_and(|value| matches!(value.origin, Origin::Flag(_) | Origin::Environment(_)))
    }

    /// How to name the value of an option in a message.
    pub(crate) fn given(&self, key: Key) -> Given {
        match self.get(key) {
            Some(value) => value.given(key),
            None => Given(format!("`--{}`", spec(key).name)),
        }
    }

    /// Reads the value of an option, if it has one.
    pub(crate) fn parse<T>(
        &self,
        key: Key,
        parser: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        parser(&value.text)
            .map(Some)
            .map_err(|reason| ConfigError::Value {
                given: value.given(key),
                reason,
            })
    }

    /// Reads the value of an option that has a default in the table.
    pub(crate) fn require<T>(
        &self,
        key: Key,
        parser: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        self.parse(key, parser)?.ok_or_else(|| ConfigError::Value {
            given: self.given(key),
            reason: "a value is needed".to_owned(),
        })
    }
}

impl Value {
    /// A value from the command line.
    pub(crate) fn flag(flag: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            origin: Origin::Flag(flag.into()),
        }
    }

    /// How to name this value of `key` in a message.
    pub(crate) fn given(&self, key: Key) -> Given {
        let text = &self.text;
        Given(match &self.origin {
            Origin::Flag(flag) => format!("`{flag} {text}`"),
            Origin::Environment(name) => format!("`{name}={text}`"),
            Origin::File(path, line) => format!(
                "{}:{line}: `{} = {text}`",
                path.display(),
                spec(key).file_key()
            ),
            Origin::Slurm(variable) => {
                format!("`--{} {text}` (from {variable})", spec(key).name)
            }
            Origin::Default => format!("`--{} {text}` (the default)", spec(key).name),
        })
    }
}

impl fmt::Display for Given {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(formatter, "flag {flag}"),
            Self::Environment(name) => write!(formatter, "environment {name}"),
            Self::File(path, line) => write!(formatter, "{}:{line}", path.display()),
            Self::Slurm(variable) => write!(formatter, "Slurm {variable}"),
            Self::Default => formatter.write_str("default"),
        }
    }
}
