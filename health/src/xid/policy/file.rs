// SPDX-License-Identifier: Apache-2.0
//! From TOML to rules.

use std::path::Path;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Policy, PolicyError, Rule};
use crate::xid::terms::{Action, Kind};

/// The most events that a rule counts.
const MAX_COUNT: u32 = 10_000;

const FIELDS: [&str; 4] = ["action", "count", "window", "before"];

type Item<'a> = Spanned<DeValue<'a>>;

/// Where in the file something stands.
struct Place<'a> {
    file: &'a Path,
    text: &'a str,
}

pub(super) fn parse(file: &Path, text: &str) -> Result<Policy, PolicyError> {
    let table = DeTable::parse(text).map_err(|error| PolicyError::Syntax {
        file: file.to_owned(),
        line: line_of(text, error.span().map_or(0, |span| span.start)),
        reason: error.message().replace('\n', ", "),
    })?;
    let place = Place { file, text };
    let mut policy = Policy::default();
    for (name, codes) in table.get_ref() {
        let at = name.span().start;
        let name: &str = name.get_ref();
        let Some(kind) = Kind::from_name(name) else {
            let reason = "unknown; the tables are `[xid.CODE]` and `[sxid.CODE]`";
            return Err(place.wrong(at, name, reason));
        };
        for (code, fields) in place.table(at, name, codes)? {
            let at = code.span().start;
            let code: &str = code.get_ref();
            let name = format!("{name}.{code}");
            let number = code.parse().map_err(|_| {
                let reason = format!(
                    "`{code}` is not a code: it takes a number from 0 to {}",
                    u32::MAX
                );
                place.wrong(at, &name, reason)
            })?;
            let rule = place.rule(at, &name, place.table(at, &name, fields)?)?;
            policy.rules.insert((kind, number), rule);
        }
    }
    Ok(policy)
}

impl Place<'_> {
    fn wrong(&self, at: usize, field: &str, reason: impl Into<String>) -> PolicyError {
        PolicyError::Field {
            file: self.file.to_owned(),
            line: line_of(self.text, at),
            field: field.to_owned(),
            reason: reason.into(),
        }
    }

    fn table<'v, 'a>(
        &self,
        at: usize,
        name: &str,
        value: &'v Item<'a>,
    ) -> Result<&'v DeTable<'a>, PolicyError> {
        value.get_ref().as_table().ok_or_else(|| {
            let reason = "is no table; write `[xid.43]` and `action = \"...\"` below it";
            self.wrong(at, name, reason)
        })
    }

    fn rule(&self, at: usize, name: &str, fields: &DeTable<'_>) -> Result<Rule, PolicyError> {
        let (mut action, mut count, mut window, mut before) = (None, None, None, None);
        for (key, value) in fields {
            let place = key.span().start;
            let key: &str = key.get_ref();
            let name = format!("{name}.{key}");
            match key {
                "action" => action = Some(self.action(place, &name, value)?),
                "before" => before = Some((place, self.action(place, &name, value)?)),
                "count" => count = Some((place, self.count(place, &name, value)?)),
                "window" => window = Some((place, self.window(place, &name, value)?)),
                _ => return Err(self.wrong(place, &name, unknown_field(key))),
            }
        }
        let action = action.ok_or_else(|| self.wrong(at, name, "has no `action`"))?;
        let several = count.filter(|(_, count)| *count > 1);
        match (several, window, before) {
            (Some((place, _)), None, _) => {
                let reason = "a count above 1 needs a `window`, such as `window = \"10m\"`";
                return Err(self.wrong(place, &format!("{name}.count"), reason));
            }
            (None, Some((place, _)), _) => {
                let reason = "a window needs a `count` of 2 or more";
                return Err(self.wrong(place, &format!("{name}.window"), reason));
            }
            (None, None, Some((place, _))) => {
                let reason = "needs a `count` of 2 or more";
                return Err(self.wrong(place, &format!("{name}.before"), reason));
            }
            _ => {}
        }
        Ok(Rule {
            action,
            count: several.map_or(1, |(_, count)| count),
            window: window.map_or(Duration::ZERO, |(_, window)| window),
            before: before.map(|(_, before)| before),
        })
    }

    fn action(&self, at: usize, name: &str, value: &Item<'_>) -> Result<Action, PolicyError> {
        let word = self.text(at, name, value)?;
        Action::from_name(word).ok_or_else(|| {
            let names = Action::ALL.map(Action::name);
            let hint = nearest(word, &names).map_or_else(
                || format!("the actions are {}", names.join(", ")),
                |name| format!("did you mean `{name}`?"),
            );
            self.wrong(at, name, format!("`{word}` is no action; {hint}"))
        })
    }

    fn count(&self, at: usize, name: &str, value: &Item<'_>) -> Result<u32, PolicyError> {
        let number = value.get_ref().as_integer().and_then(|number| {
            let digits = number.as_str().replace('_', "");
            u32::from_str_radix(&digits, number.radix()).ok()
        });
        number
            .filter(|number| (1..=MAX_COUNT).contains(number))
            .ok_or_else(|| self.wrong(at, name, format!("takes a number from 1 to {MAX_COUNT}")))
    }

    fn window(&self, at: usize, name: &str, value: &Item<'_>) -> Result<Duration, PolicyError> {
        let text = self.text(at, name, value)?;
        duration(text).ok_or_else(|| {
            let reason = format!("`{text}` is not a duration such as 90s, 10m or 1h30m");
            self.wrong(at, name, reason)
        })
    }

    fn text<'v>(&self, at: usize, name: &str, value: &'v Item<'_>) -> Result<&'v str, PolicyError> {
        value
            .get_ref()
            .as_str()
            .ok_or_else(|| self.wrong(at, name, "takes a text"))
    }
}

fn unknown_field(key: &str) -> String {
    nearest(key, &FIELDS).map_or_else(
        || format!("unknown; the fields are {}", FIELDS.join(", ")),
        |name| format!("unknown; did you mean `{name}`?"),
    )
}

/// Whole numbers with a unit each (d, h, m, s), the larger ones first or not; more than nothing.
fn duration(text: &str) -> Option<Duration> {
    let (mut total, mut number): (u64, Option<u64>) = (0, None);
    for character in text.chars() {
        if let Some(digit) = character.to_digit(10) {
            let before = number.unwrap_or(0);
            number = Some(before.checked_mul(10)?.checked_add(u64::from(digit))?);
            continue;
        }
        let unit = match character {
            'd' => 86_400,
            'h' => 3_600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        total = total.checked_add(number.take()?.checked_mul(unit)?)?;
    }
    (number.is_none() && total > 0).then(|| Duration::from_secs(total))
}

/// The name that shares its start with a word, or all but a letter or two of it.
fn nearest<'n>(word: &str, names: &[&'n str]) -> Option<&'n str> {
    let shared = |name: &str| {
        let start = name
            .chars()
            .zip(word.chars())
            .take_while(|(a, b)| a == b)
            .count();
        let end = name
            .chars()
            .rev()
            .zip(word.chars().rev())
            .take_while(|(a, b)| a == b)
            .count();
        (start + end).min(name.len())
    };
    let best = names.iter().copied().max_by_key(|name| shared(name))?;
    (shared(best) + 1 >= word.chars().count() && word.chars().count() > 2).then_some(best)
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or(text);
    before.matches('\n').count() + 1
}
