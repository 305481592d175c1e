// SPDX-License-Identifier: Apache-2.0
//! From TOML to settings.

use std::path::Path;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{CheckSettings, Command, Common, Setting, Settings, SettingsError, Severity};
use crate::profile::Profile;
use crate::spec::{Number, Spec, Threshold, Unit, Words};
use crate::table::CHECKS;
use crate::units::{parse_duration, parse_size};

type Item<'a> = Spanned<DeValue<'a>>;

/// Keys that every check has.
pub(crate) const COMMON: [&str; 4] = ["enabled", "severity", "deadline", "profiles"];
/// The key of a command that says what it runs.
const RUN: &str = "run";
/// Longest deadline that makes sense.
const LONGEST: Duration = Duration::from_mins(5);

/// Where in the file something stands.
struct Place<'a> {
    file: &'a Path,
    text: &'a str,
}

pub(super) fn parse(file: &Path, text: &str) -> Result<Settings, SettingsError> {
    let table = DeTable::parse(text).map_err(|error| SettingsError::Syntax {
        file: file.to_owned(),
        line: line_of(text, error.span().map_or(0, |span| span.start)),
        reason: error.message().replace('\n', ", "),
    })?;
    let place = Place { file, text };
    let mut settings = Settings::default();
    for (kind, entries) in table.get_ref() {
        let at = kind.span().start;
        let kind: &str = kind.get_ref();
        if !["check", "command"].contains(&kind) {
            let reason = unknown(kind, &["check", "command"], "the tables are");
            return Err(place.wrong(at, kind, reason));
        }
        for (name, fields) in place.table(at, kind, entries)? {
            let at = name.span().start;
            let name: &str = name.get_ref();
            let field = format!("{kind}.{name}");
            let fields = place.table(at, &field, fields)?;
            if kind == "check" {
                let spec = place.spec(at, &field, name)?;
                let check = place.check(spec, &field, fields)?;
                settings.checks.insert(spec.name, check);
            } else {
                settings
                    .commands
                    .push(place.command(at, name, &field, fields)?);
            }
        }
    }
    Ok(settings)
}

impl Place<'_> {
    fn wrong(&self, at: usize, field: &str, reason: impl Into<String>) -> SettingsError {
        SettingsError::Field {
            file: self.file.to_owned(),
            line: line_of(self.text, at),
            field: field.to_owned(),
            reason: reason.into(),
        }
    }

    fn table<'v, 'a>(
        &self,
        at: usize,
        field: &str,
        value: &'v Item<'a>,
    ) -> Result<&'v DeTable<'a>, SettingsError> {
        let reason = "is no table; write `[check.NAME]` or `[command.NAME]`, and its keys below";
        value
            .get_ref()
            .as_table()
            .ok_or_else(|| self.wrong(at, field, reason))
    }

    fn spec(&self, at: usize, field: &str, name: &str) -> Result<&'static Spec, SettingsError> {
        let names: Vec<&str> = CHECKS.iter().map(|spec| spec.name).collect();
        let found = CHECKS.iter().find(|spec| spec.name == name);
        found.copied().ok_or_else(|| {
            let reason = unknown(name, &names, "the checks are");
            self.wrong(at, field, reason)
        })
    }

    fn check(
        &self,
        spec: &'static Spec,
        field: &str,
        fields: &DeTable<'_>,
    ) -> Result<CheckSettings, SettingsError> {
        let mut settings = CheckSettings::default();
        for (key, value) in fields {
            let at = key.span().start;
            let key: &str = key.get_ref();
            let field = format!("{field}.{key}");
            if self.common(at, key, &field, value, &mut settings.common)? {
                continue;
            }
            let mut known = spec.thresholds.iter();
            let Some(threshold) = known.find(|threshold| threshold.name() == key) else {
                let thresholds = spec.thresholds.iter().map(|threshold| threshold.name());
                let names: Vec<&str> = thresholds.chain(COMMON).collect();
                return Err(self.wrong(at, &field, unknown(key, &names, "the keys are")));
            };
            let value = self.threshold(at, &field, *threshold, value)?;
            settings.values.insert(threshold.name(), value);
        }
        Ok(settings)
    }

    fn command(
        &self,
        at: usize,
        name: &str,
        field: &str,
        fields: &DeTable<'_>,
    ) -> Result<Command, SettingsError> {
        if CHECKS.iter().any(|spec| spec.name == name) {
            return Err(self.wrong(at, field, "has the name of a check that is built in"));
        }
        let (mut common, mut words) = (Common::default(), None);
        for (key, value) in fields {
            let at = key.span().start;
            let key: &str = key.get_ref();
            let field = format!("{field}.{key}");
            if key == RUN {
                words = Some(self.words(at, &field, value, &[])?);
            } else if !self.common(at, key, &field, value, &mut common)? {
                let names: Vec<&str> = [RUN].into_iter().chain(COMMON).collect();
                return Err(self.wrong(at, &field, unknown(key, &names, "the keys are")));
            }
        }
        match words {
            Some(words) if !words.is_empty() => Ok(Command {
                name: name.to_owned(),
                words,
                common,
            }),
            _ => {
                let reason = "has no `run`, such as `run = [\"/usr/lib/nagios/plugins/check_load\", \"-w\", \"99\"]`";
                Err(self.wrong(at, field, reason))
            }
        }
    }

    /// Takes in a key that every check has. Says whether it is one.
    fn common(
        &self,
        at: usize,
        key: &str,
        field: &str,
        value: &Item<'_>,
        common: &mut Common,
    ) -> Result<bool, SettingsError> {
        match key {
            "enabled" => common.enabled = Some(self.switch(at, field, value)?),
            "severity" => {
                let names = Severity::ALL.map(|(name, _)| name);
                let word = self.choice(at, field, value, &names)?;
                let mut all = Severity::ALL.into_iter();
                common.severity = all.find(|(name, _)| *name == word).map(|(_, found)| found);
            }
            "deadline" => {
                let milliseconds = self.time(at, field, value)?;
                let deadline = Duration::from_millis(milliseconds);
                if deadline.is_zero() || deadline > LONGEST {
                    return Err(self.wrong(at, field, "takes more than nothing, and at most 5m"));
                }
                common.deadline = Some(deadline);
            }
            "profiles" => {
                let names = Profile::ALL.map(Profile::name);
                let words = self.words(at, field, value, &names)?;
                let profiles = words.iter().filter_map(|word| Profile::from_name(word));
                common.profiles = Some(profiles.collect());
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn threshold(
        &self,
        at: usize,
        field: &str,
        threshold: Threshold,
        value: &Item<'_>,
    ) -> Result<Setting, SettingsError> {
        match threshold {
            Threshold::Number(number) => self.number(at, field, number, value),
            Threshold::Words(Words { choices, .. }) => {
                self.words(at, field, value, choices).map(Setting::Words)
            }
            Threshold::Switch(_) => self.switch(at, field, value).map(Setting::Switch),
        }
    }

    fn number(
        &self,
        at: usize,
        field: &str,
        number: &Number,
        value: &Item<'_>,
    ) -> Result<Setting, SettingsError> {
        if value.get_ref().as_str() == Some("off") {
            return Ok(Setting::Off);
        }
        let found = match number.unit {
            Unit::Time => Some(self.time(at, field, value)?),
            Unit::Size => match value.get_ref() {
                DeValue::String(text) => parse_size(text),
                _ => integer(value),
            },
            Unit::Percent => integer(value).filter(|percent| *percent <= 100),
            _ => integer(value),
        };
        found.map(Setting::Number).ok_or_else(|| {
            let reason = format!("takes {}, or \"off\"", number.unit.form());
            self.wrong(at, field, reason)
        })
    }

    fn time(&self, at: usize, field: &str, value: &Item<'_>) -> Result<u64, SettingsError> {
        let found = match value.get_ref() {
            DeValue::String(text) => parse_duration(text),
            _ => integer(value).map(Duration::from_secs),
        };
        found
            .and_then(|duration| u64::try_from(duration.as_millis()).ok())
            .ok_or_else(|| self.wrong(at, field, format!("takes {}", Unit::Time.form())))
    }

    fn switch(&self, at: usize, field: &str, value: &Item<'_>) -> Result<bool, SettingsError> {
        let found = value.get_ref().as_bool();
        found.ok_or_else(|| self.wrong(at, field, "takes true or false"))
    }

    /// One word, or a list of them; all among the choices, if there are any.
    fn words(
        &self,
        at: usize,
        field: &str,
        value: &Item<'_>,
        choices: &[&str],
    ) -> Result<Vec<String>, SettingsError> {
        let Some(items) = value.get_ref().as_array() else {
            return Ok(vec![self.choice(at, field, value, choices)?]);
        };
        items
            .iter()
            .map(|item| self.choice(item.span().start, field, item, choices))
            .collect()
    }

    fn choice(
        &self,
        at: usize,
        field: &str,
        value: &Item<'_>,
        choices: &[&str],
    ) -> Result<String, SettingsError> {
        let Some(word) = value.get_ref().as_str() else {
            let reason = if choices.is_empty() {
                "takes a list of texts".to_owned()
            } else {
                format!("takes {}", choices.join(", "))
            };
            return Err(self.wrong(at, field, reason));
        };
        if !choices.is_empty() && !choices.contains(&word) {
            let reason = format!(
                "cannot be `{word}`: {}",
                unknown(word, choices, "there are")
            );
            return Err(self.wrong(at, field, reason.replace(": is unknown;", ";")));
        }
        Ok(word.to_owned())
    }
}

fn integer(value: &Item<'_>) -> Option<u64> {
    let number = value.get_ref().as_integer()?;
    u64::from_str_radix(&number.as_str().replace('_', ""), number.radix()).ok()
}

fn unknown(word: &str, names: &[&str], all: &str) -> String {
    match nearest(word, names) {
        Some(name) => format!("is unknown; did you mean `{name}`?"),
        None => format!("is unknown; {all} {}", names.join(", ")),
    }
}

/// The name that a word was probably meant to be.
pub(crate) fn nearest<'n>(word: &str, names: &[&'n str]) -> Option<&'n str> {
    let word = word.replace('_', "-");
    let most = (word.chars().count() / 3).clamp(1, 4);
    let near = names.iter().map(|name| {
        let plain = name.replace('_', "-");
        (strsim::damerau_levenshtein(&word, &plain), *name)
    });
    near.filter(|(edits, _)| *edits <= most)
        .min()
        .map(|(_, name)| name)
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or(text);
    before.matches('\n').count() + 1
}
