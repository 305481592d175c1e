// SPDX-License-Identifier: Apache-2.0
//! Reads torchrun's command line as Python's argparse does.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use super::flags::{FLAGS, Flag, FlagSpec};
use crate::config::nearest;
use crate::config::option::{Key, Kind};
use crate::config::table;
use crate::config::values::Value;
use crate::config::{ConfigError, TorchrunError};

/// A command line, as typed.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    /// torchrun's flags.
    pub(crate) flags: BTreeMap<Flag, Value>,
    /// Options of steadfast that torchrun does not have.
    pub(crate) extras: Vec<(Key, Value)>,
    /// `--config`.
    pub(crate) config: Option<String>,
    /// Whether help was asked for.
    pub(crate) help: bool,
    /// The script (or module, or program) and everything after it.
    pub(crate) script: Vec<OsString>,
}

/// What a long flag turned out to be.
#[derive(Clone, Copy)]
enum Target {
    Torchrun(&'static FlagSpec),
    Extra(Key),
    /// `--no-NAME` of a switch of steadfast.
    Negated(Key),
    Config,
    Help,
}

/// Reads the arguments after `steadfast torchrun`.
pub(crate) fn read(arguments: &[OsString]) -> Result<Arguments, ConfigError> {
    read_all(arguments).map_err(ConfigError::Torchrun)
}

fn read_all(arguments: &[OsString]) -> Result<Arguments, TorchrunError> {
    let mut result = Arguments::default();
    let mut rest = arguments;
    while let Some((argument, tail)) = rest.split_first() {
        if argument == "--" {
            result.script = tail.to_vec();
            break;
        }
        if !is_flag(argument) {
            result.script = rest.to_vec();
            break;
        }
        let text = argument.to_str().ok_or_else(|| not_text(argument))?;
        rest = match text.strip_prefix("--") {
            Some(long) => result.read_long(long, tail)?,
            None => result.read_short(&text[1..], tail)?,
        };
    }
    Ok(result)
}

impl Arguments {
    fn read_long<'a>(
        &mut self,
        long: &str,
        rest: &'a [OsString],
    ) -> Result<&'a [OsString], TorchrunError> {
        let (name, inline) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        let target = find(name)?;
        self.take(target, &format!("--{name}"), inline, rest)
    }

    /// One-letter flags: several without a value may stand together, and a value may follow at once.
    fn read_short<'a>(
        &mut self,
        letters: &str,
        rest: &'a [OsString],
    ) -> Result<&'a [OsString], TorchrunError> {
        let mut letters = letters.chars();
        while let Some(letter) = letters.next() {
            let spelled = format!("-{letter}");
            if letter == 'h' {
                self.help = true;
                continue;
            }
            let spec = FLAGS
                .iter()
                .find(|spec| spec.short == Some(letter))
                .ok_or_else(|| TorchrunError::UnknownFlag {
                    flag: spelled.clone(),
                    nearest: None,
                })?;
            if spec.value_name.is_some() {
                let attached = letters.as_str();
                let inline =
                    (!attached.is_empty()).then(|| attached.strip_prefix('=').unwrap_or(attached));
                return self.take(Target::Torchrun(spec), &spelled, inline, rest);
            }
            self.take(Target::Torchrun(spec), &spelled, None, &[])?;
        }
        Ok(rest)
    }

    /// Stores the flag with its value, and gives back what is left to read.
    fn take<'a>(
        &mut self,
        target: Target,
        spelled: &str,
        inline: Option<&str>,
        rest: &'a [OsString],
    ) -> Result<&'a [OsString], TorchrunError> {
        let takes_value = match target {
            Target::Torchrun(spec) => spec.value_name.is_some(),
            Target::Extra(key) => table::spec(key).kind != Kind::Switch,
            Target::Config => true,
            Target::Help | Target::Negated(_) => false,
        };
        let (value, rest) = match (inline, takes_value) {
            (Some(value), true) => (value.to_owned(), rest),
            // As with `steadfast run`, a switch of our own may say which way.
            (Some(value), false) if matches!(target, Target::Extra(_)) => (value.to_owned(), rest),
            (Some(value), false) => {
                return Err(TorchrunError::UnexpectedValue {
                    flag: spelled.to_owned(),
                    value: value.to_owned(),
                });
            }
            (None, true) => separate_value(spelled, rest)?,
            (None, false) => ("true".to_owned(), rest),
        };
        match target {
            Target::Torchrun(spec) => {
                self.flags.insert(spec.flag, Value::flag(spelled, value));
            }
            Target::Extra(key) => self.extras.push((key, Value::flag(spelled, value))),
            Target::Negated(key) => self.extras.push((key, Value::flag(spelled, "false"))),
            Target::Config => self.config = Some(value),
            Target::Help => self.help = true,
        }
        Ok(rest)
    }
}

/// Finds a long flag: exactly, as an option of ours, or as an unambiguous beginning of a flag of torchrun.
fn find(name: &str) -> Result<Target, TorchrunError> {
    let dashed = name.replace('_', "-");
    if let Some(spec) = FLAGS.iter().find(|spec| spec.name == dashed) {
        return Ok(Target::Torchrun(spec));
    }
    if let Some(option) = table::by_name(&dashed) {
        return Ok(Target::Extra(option.key));
    }
    if let Some(option) = table::by_negation(&dashed) {
        return Ok(Target::Negated(option.key));
    }
    match name {
        "help" => return Ok(Target::Help),
        "config" => return Ok(Target::Config),
        _ => {}
    }
    let shortened: Vec<&FlagSpec> = FLAGS
        .iter()
        .filter(|spec| spec.name.starts_with(&dashed))
        .collect();
    let flag = format!("--{name}");
    match shortened[..] {
        [spec] => Ok(Target::Torchrun(spec)),
        [] if "help".starts_with(name) => Ok(Target::Help),
        [] => {
            let known = FLAGS
                .iter()
                .map(|spec| spec.name)
                .chain(table::OPTIONS.iter().map(|option| option.name));
            Err(TorchrunError::UnknownFlag {
                flag,
                nearest: nearest(&dashed, known).map(|name| format!("--{name}")),
            })
        }
        _ => {
            let names: Vec<String> = shortened
                .iter()
                .map(|spec| format!("--{}", spec.name))
                .collect();
            Err(TorchrunError::AmbiguousFlag {
                flag,
                candidates: names.join(", "),
            })
        }
    }
}

fn separate_value<'a>(
    spelled: &str,
    rest: &'a [OsString],
) -> Result<(String, &'a [OsString]), TorchrunError> {
    match rest.split_first() {
        Some((value, tail)) if value != "--" && !is_flag(value) => {
            let value = value.to_str().ok_or_else(|| not_text(value))?;
            Ok((value.to_owned(), tail))
        }
        _ => Err(TorchrunError::MissingValue {
            flag: spelled.to_owned(),
        }),
    }
}

/// argparse takes what begins with a dash for a flag, unless it is a lone dash, a negative number, or has a space.
fn is_flag(argument: &OsStr) -> bool {
    let text = argument.to_string_lossy();
    match text.strip_prefix('-') {
        None | Some("") => false,
        Some(rest) => {
            let number = rest
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.');
            let name = text.split('=').next().unwrap_or_default();
            !number && !name.contains(' ')
        }
    }
}

fn not_text(argument: &OsStr) -> TorchrunError {
    TorchrunError::NotText {
        argument: argument.to_string_lossy().into_owned(),
    }
}
