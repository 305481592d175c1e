// SPDX-License-Identifier: Apache-2.0
//! What there is to say about a check before it is made. The configuration file, `--list` and the reference page all come
//! from this.

use std::time::Duration;

use crate::context::Context;
use crate::outcome::Outcome;
use crate::profile::Profile;
use crate::units::{show_duration, show_size};

/// A check.
#[derive(Debug)]
pub struct Spec {
    /// Its name, in small letters with hyphens.
    pub name: &'static str,
    /// What it looks at, and what it makes of that. One or two sentences.
    pub doc: &'static str,
    /// When it is made.
    pub profiles: &'static [Profile],
    /// How long it may take.
    pub deadline: Duration,
    /// What can be configured.
    pub thresholds: &'static [Threshold],
    /// Whether it needs what the driver says of the GPUs.
    pub(crate) needs_gpus: bool,
    /// The check itself.
    pub(crate) look: fn(&Context<'_>) -> Outcome,
}

/// What can be configured of a check.
#[derive(Clone, Copy, Debug)]
pub enum Threshold {
    /// A number.
    Number(&'static Number),
    /// A list of words.
    Words(&'static Words),
    /// Yes or no.
    Switch(&'static Switch),
}

/// A number that can be configured.
#[derive(Debug)]
pub struct Number {
    /// Its key.
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// Unless configured; absent means that it is not looked at.
    pub default: Option<u64>,
    /// What it does.
    pub doc: &'static str,
}

/// A list that can be configured.
#[derive(Debug)]
pub struct Words {
    /// Its key.
    pub name: &'static str,
    /// Unless configured.
    pub default: &'static [&'static str],
    /// The words that there are; empty when any will do.
    pub choices: &'static [&'static str],
    /// What it does.
    pub doc: &'static str,
}

/// Yes or no, to be configured.
#[derive(Debug)]
pub struct Switch {
    /// Its key.
    pub name: &'static str,
    /// Unless configured.
    pub default: bool,
    /// What it does.
    pub doc: &'static str,
}

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Hundredths, from 0 to 100.
    Percent,
    /// Bytes; written `500MiB`.
    Size,
    /// Milliseconds; written `1m30s`.
    Time,
    /// Things in an hour.
    PerHour,
    /// Degrees Celsius.
    Celsius,
    /// Gbit/s.
    Gigabits,
    /// Microseconds.
    Microseconds,
}

impl Unit {
    /// A number of this unit, in words.
    pub fn show(self, number: u64) -> String {
        match self {
            Self::Count => number.to_string(),
            Self::Percent => format!("{number} %"),
            Self::Size => show_size(number),
            Self::Time => show_duration(Duration::from_millis(number)),
            Self::PerHour => format!("{number} per hour"),
            Self::Celsius => format!("{number} °C"),
            Self::Gigabits => format!("{number} Gbit/s"),
            Self::Microseconds => format!("{number} µs"),
        }
    }

    /// How it is written in a file.
    pub const fn form(self) -> &'static str {
        match self {
            Self::Count => "a whole number",
            Self::Percent => "a number from 0 to 100",
            Self::Size => "a size such as \"500MiB\"",
            Self::Time => "a duration such as \"1m30s\"",
            Self::PerHour => "a whole number (per hour)",
            Self::Celsius => "a whole number (°C)",
            Self::Gigabits => "a whole number (Gbit/s)",
            Self::Microseconds => "a whole number (µs)",
        }
    }
}

impl Threshold {
    /// Its key.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Number(number) => number.name,
            Self::Words(words) => words.name,
            Self::Switch(switch) => switch.name,
        }
    }

    /// What it does.
    pub const fn doc(self) -> &'static str {
        match self {
            Self::Number(number) => number.doc,
            Self::Words(words) => words.doc,
            Self::Switch(switch) => switch.doc,
        }
    }

    /// How it is written in a file.
    pub fn form(self) -> String {
        match self {
            Self::Number(number) => format!("{}, or \"off\"", number.unit.form()),
            Self::Words(words) if words.choices.is_empty() => "a list of texts".to_owned(),
            Self::Words(words) => format!("a list of: {}", words.choices.join(", ")),
            Self::Switch(_) => "true or false".to_owned(),
        }
    }

    /// What holds unless it is configured, in words.
    pub fn default_in_words(self) -> String {
        match self {
            Self::Number(number) => number
                .default
                .map_or_else(|| "off".to_owned(), |default| number.unit.show(default)),
            Self::Words(words) if words.default.is_empty() => "none".to_owned(),
            Self::Words(words) => words.default.join(", "),
            Self::Switch(switch) => if switch.default { "yes" } else { "no" }.to_owned(),
        }
    }
}

/// A number that is judged unless it is turned off.
pub(crate) const fn number(
    name: &'static str,
    unit: Unit,
    default: u64,
    doc: &'static str,
) -> Number {
    Number {
        name,
        unit,
        default: Some(default),
        doc,
    }
}

/// A number that is judged only where it is configured.
pub(crate) const fn optional(name: &'static str, unit: Unit, doc: &'static str) -> Number {
    Number {
        name,
        unit,
        default: None,
        doc,
    }
}

/// A list of anything.
pub(crate) const fn words(
    name: &'static str,
    default: &'static [&'static str],
    doc: &'static str,
) -> Words {
    Words {
        name,
        default,
        choices: &[],
        doc,
    }
}
