// SPDX-License-Identifier: Apache-2.0
//! From TOML to rules.

use std::path::Path;

use regex::bytes::{Regex, RegexBuilder};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Blame, Role, Rule, RuleError};
use crate::answer::{Action, Class};

const FIELDS: [&str; 14] = [
    "id",
    "class",
    "role",
    "strength",
    "blames",
    "confidence",
    "action",
    "action_if_some",
    "class_if_some",
    "ambiguous",
    "recovers",
    "match",
    "meaning",
    "next",
];

const ROLES: [(&str, Role); 7] = [
    ("cause", Role::Cause),
    ("sign", Role::Sign),
    ("consequence", Role::Consequence),
    ("summary", Role::Summary),
    ("recovered", Role::Recovered),
    ("finished", Role::Finished),
    ("ignore", Role::Ignore),
];

const BLAMES: [(&str, Blame); 5] = [
    ("speaker", Blame::Speaker),
    ("node", Blame::Node),
    ("named", Blame::Named),
    ("peer", Blame::Peer),
    ("none", Blame::Nobody),
];

/// How much a cause says whose rule does not say it.
const USUAL_STRENGTH: u8 = 75;

type Item<'a> = Spanned<DeValue<'a>>;

/// Where in the file something stands.
struct Place<'a> {
    file: &'a Path,
    text: &'a str,
    /// The rule that is being read.
    id: String,
}

/// Compiles an expression as all of them are compiled: bytes, not characters.
pub(super) fn expression(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).unicode(false).build()
}

pub(super) fn parse(file: &Path, text: &str) -> Result<Vec<Rule>, RuleError> {
    let table = DeTable::parse(text).map_err(|error| RuleError::Syntax {
        file: file.to_owned(),
        line: line_of(text, error.span().map_or(0, |span| span.start)),
        reason: error.message().replace('\n', ", "),
    })?;
    let mut place = Place {
        file,
        text,
        id: String::new(),
    };
    let mut rules = Vec::new();
    for (name, value) in table.get_ref() {
        let at = name.span().start;
        let list = value.get_ref().as_array();
        let Some(list) = list.filter(|_| name.get_ref() == "rule") else {
            let reason = "unknown; the only table is `[[rule]]`";
            return Err(place.wrong(at, name.get_ref(), reason));
        };
        for item in list {
            let at = item.span().start;
            let Some(fields) = item.get_ref().as_table() else {
                return Err(place.wrong(at, "rule", "is no table; write `[[rule]]`"));
            };
            place.id.clear();
            rules.push(place.rule(at, fields)?);
        }
    }
    Ok(rules)
}

impl Place<'_> {
    fn wrong(&self, at: usize, field: &str, reason: impl Into<String>) -> RuleError {
        let field = match (self.id.is_empty(), field == "rule") {
            (true, _) => field.to_owned(),
            (false, true) => self.id.clone(),
            (false, false) => format!("{}.{field}", self.id),
        };
        RuleError::Field {
            file: self.file.to_owned(),
            line: line_of(self.text, at),
            field,
            reason: reason.into(),
        }
    }

    fn rule(&mut self, at: usize, fields: &DeTable<'_>) -> Result<Rule, RuleError> {
        let Some(id) = get(fields, "id") else {
            return Err(self.wrong(at, "rule", "has no `id`"));
        };
        self.id = self.text("id", id)?.to_owned();
        for (key, _) in fields {
            if !FIELDS.contains(&key.get_ref().as_ref()) {
                let reason = format!("unknown; the fields are {}", FIELDS.join(", "));
                return Err(self.wrong(key.span().start, key.get_ref(), reason));
            }
        }
        let missing = |field: &str| self.wrong(at, "rule", format!("has no `{field}`"));
        let role_field = get(fields, "role").ok_or_else(|| missing("role"))?;
        let role = self.word("role", role_field, &ROLES)?;
        let is_verdict = matches!(role, Role::Cause | Role::Sign | Role::Consequence);
        let class = match get(fields, "class") {
            Some(value) => self.class("class", value)?,
            None if matches!(role, Role::Cause | Role::Sign) => return Err(missing("class")),
            None => Class::Unknown,
        };
        let patterns = self.patterns(fields)?;
        if patterns.is_empty() {
            return Err(missing("match"));
        }
        let meaning = get(fields, "meaning").ok_or_else(|| missing("meaning"))?;
        let next = get(fields, "next").map(|value| self.text("next", value));
        let action = self.optional(fields, "action", Self::action)?;
        Ok(Rule {
            id: self.id.clone(),
            class,
            role,
            strength: self
                .optional(fields, "strength", Self::strength)?
                .unwrap_or(if is_verdict { USUAL_STRENGTH } else { 0 }),
            blames: self
                .optional(fields, "blames", |place, field, value| {
                    place.word(field, value, &BLAMES)
                })?
                .unwrap_or(Blame::Speaker),
            confidence: self.optional(fields, "confidence", Self::share)?,
            action: action.unwrap_or(class.usual_action()),
            action_if_some: self.optional(fields, "action_if_some", Self::action)?,
            class_if_some: self.optional(fields, "class_if_some", Self::class)?,
            is_ambiguous: get(fields, "ambiguous")
                .is_some_and(|value| value.get_ref().as_bool() == Some(true)),
            recovers: match get(fields, "recovers") {
                Some(value) => self.list("recovers", value)?,
                None => Vec::new(),
            },
            patterns,
            meaning: self.text("meaning", meaning)?.to_owned(),
            next: next.transpose()?.unwrap_or_default().to_owned(),
        })
    }

    fn optional<T>(
        &self,
        fields: &DeTable<'_>,
        name: &str,
        read: impl Fn(&Self, &str, &Item<'_>) -> Result<T, RuleError>,
    ) -> Result<Option<T>, RuleError> {
        get(fields, name)
            .map(|value| read(self, name, value))
            .transpose()
    }

    fn patterns(&self, fields: &DeTable<'_>) -> Result<Vec<String>, RuleError> {
        let Some(value) = get(fields, "match") else {
            return Ok(Vec::new());
        };
        let patterns = self.list("match", value)?;
        for pattern in &patterns {
            let at = value.span().start;
            let expression = expression(pattern).map_err(|error| {
                let reason = error.to_string();
                let reason = reason.lines().last().unwrap_or_default().trim();
                self.wrong(
                    at,
                    "match",
                    format!("`{pattern}` is no expression: {reason}"),
                )
            })?;
            if expression.is_match(b"") {
                let reason = "an expression that fits every line says nothing";
                return Err(self.wrong(at, "match", reason));
            }
        }
        Ok(patterns)
    }

    fn list(&self, field: &str, value: &Item<'_>) -> Result<Vec<String>, RuleError> {
        let wrong = || self.wrong(value.span().start, field, "takes a list of expressions");
        let array = value.get_ref().as_array().ok_or_else(wrong)?;
        array
            .iter()
            .map(|item| item.get_ref().as_str().map(str::to_owned).ok_or_else(wrong))
            .collect()
    }

    fn word<T: Copy>(
        &self,
        field: &str,
        value: &Item<'_>,
        words: &[(&str, T)],
    ) -> Result<T, RuleError> {
        let word = self.text(field, value)?;
        let found = words.iter().find(|(name, _)| *name == word);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
            let reason = format!("`{word}` is none of {}", names.join(", "));
            self.wrong(value.span().start, field, reason)
        })
    }

    fn class(&self, field: &str, value: &Item<'_>) -> Result<Class, RuleError> {
        self.word(field, value, &Class::ALL.map(|class| (class.name(), class)))
    }

    fn action(&self, field: &str, value: &Item<'_>) -> Result<Action, RuleError> {
        self.word(
            field,
            value,
            &Action::ALL.map(|action| (action.name(), action)),
        )
    }

    fn strength(&self, field: &str, value: &Item<'_>) -> Result<u8, RuleError> {
        let number = value.get_ref().as_integer();
        number
            .and_then(|number| number.as_str().parse().ok())
            .filter(|number| *number <= 100)
            .ok_or_else(|| self.wrong(value.span().start, field, "takes a number from 0 to 100"))
    }

    fn share(&self, field: &str, value: &Item<'_>) -> Result<f64, RuleError> {
        let number = value.get_ref().as_float();
        number
            .and_then(|number| number.as_str().parse().ok())
            .filter(|number| (0.0..=1.0).contains(number))
            .ok_or_else(|| self.wrong(value.span().start, field, "takes a number from 0 to 1"))
    }

    fn text<'v>(&self, field: &str, value: &'v Item<'_>) -> Result<&'v str, RuleError> {
        value
            .get_ref()
            .as_str()
            .ok_or_else(|| self.wrong(value.span().start, field, "takes a text"))
    }
}

fn get<'v, 'a>(fields: &'v DeTable<'a>, name: &str) -> Option<&'v Item<'a>> {
    fields
        .iter()
        .find(|(key, _)| key.get_ref() == name)
        .map(|(_, value)| value)
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()
        .iter()
        .take(at)
        .filter(|&&byte| byte == b'\n')
        .count()
        + 1
}
