// SPDX-License-Identifier: Apache-2.0
//! What a site has configured.

mod error;
mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

pub use error::SettingsError;
pub(crate) use file::nearest;

use crate::outcome::Status;
use crate::profile::Profile;
use crate::spec::{Number, Switch, Words};

/// Thresholds that differ from the defaults, and commands of the site's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub(crate) checks: BTreeMap<&'static str, CheckSettings>,
    pub(crate) commands: Vec<Command>,
}

/// What every check has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Common {
    pub(crate) enabled: Option<bool>,
    pub(crate) severity: Option<Severity>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) profiles: Option<Vec<Profile>>,
}

/// What was configured of one check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckSettings {
    pub(crate) common: Common,
    pub(crate) values: BTreeMap<&'static str, Setting>,
}

/// The value of a threshold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// In the unit of the threshold.
    Number(u64),
    /// It is not to be looked at.
    Off,
    Words(Vec<String>),
    Switch(bool),
}

/// How bad everything is that a check finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// Nothing that it finds keeps jobs away.
    Warn,
    /// Whatever it finds keeps jobs away.
    Fail,
}

/// A program of the site's own that checks something, in the manner of Nagios.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) name: String,
    pub(crate) words: Vec<String>,
    pub(crate) common: Common,
}

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`SettingsError`], which names the file, the line and the field.
    pub fn read(file: &Path) -> Result<Self, SettingsError> {
        let text = std::fs::read_to_string(file).map_err(|reason| SettingsError::Read {
            file: file.to_owned(),
            reason,
        })?;
        Self::parse(file, &text)
    }

    /// The same for a file that need not be there.
    ///
    /// # Errors
    ///
    /// As [`Settings::read`].
    pub fn read_if_there(file: &Path) -> Result<Self, SettingsError> {
        match Self::read(file) {
            Err(SettingsError::Read { reason, .. }) if reason.kind() == ErrorKind::NotFound => {
                Ok(Self::default())
            }
            other => other,
        }
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// As [`Settings::read`].
    pub fn parse(file: &Path, text: &str) -> Result<Self, SettingsError> {
        file::parse(file, text)
    }

    pub(crate) fn common(&self, check: &str) -> Common {
        let settings = self.checks.get(check);
        settings
            .map(|settings| settings.common.clone())
            .unwrap_or_default()
    }

    pub(crate) fn number(&self, check: &str, number: &Number) -> Option<u64> {
        match self.value(check, number.name) {
            Some(Setting::Number(value)) => Some(*value),
            Some(_) => None,
            None => number.default,
        }
    }

    pub(crate) fn words(&self, check: &str, words: &Words) -> Vec<String> {
        match self.value(check, words.name) {
            Some(Setting::Words(values)) => values.clone(),
            _ => words
                .default
                .iter()
                .map(|word| (*word).to_owned())
                .collect(),
        }
    }

    pub(crate) fn switch(&self, check: &str, switch: &Switch) -> bool {
        match self.value(check, switch.name) {
            Some(Setting::Switch(value)) => *value,
            _ => switch.default,
        }
    }

    fn value(&self, check: &str, name: &str) -> Option<&Setting> {
        self.checks.get(check)?.values.get(name)
    }
}

impl Severity {
    const ALL: [(&'static str, Self); 2] = [("warn", Self::Warn), ("fail", Self::Fail)];

    pub(crate) const fn apply(self, status: Status) -> Status {
        match (self, status) {
            (Self::Warn, Status::Fail) => Status::Warn,
            (Self::Fail, Status::Warn) => Status::Fail,
            (_, other) => other,
        }
    }
}
