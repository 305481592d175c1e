// SPDX-License-Identifier: Apache-2.0
//! `steadfast torchrun`: torchrun's command line, taken as it is.
//!
//! [`flags`] lists every flag of torchrun and what it comes to here; [`arguments`] reads the line by argparse's rules;
//! [`rendezvous`] and [`command`] work out the meeting address and the workers' command. The result is the same
//! [`Settings`] that `steadfast run` makes.

mod arguments;
mod command;
pub(crate) mod flags;
mod rendezvous;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;

use self::arguments::Arguments;
use self::command::How;
use self::flags::{FLAGS, Flag};
use crate::config::option::Key;
use crate::config::validate::{self, Request};
use crate::config::values::{self, Origin, Value, Values, Written};
use crate::config::{ConfigError, Host, TorchrunError, apply_scheduler, as_name, meets_others};
use crate::settings::{Mode, Settings};

/// What a command line of torchrun asks for.
#[derive(Debug)]
pub(crate) enum Asked {
    /// A job.
    Job(Box<Settings>),
    /// The help text.
    Help,
}

/// Reads the arguments after `steadfast torchrun`.
pub(crate) fn parse(host: &Host, arguments: &[OsString]) -> Result<Asked, ConfigError> {
    let arguments = arguments::read(arguments)?;
    if arguments.help {
        return Ok(Asked::Help);
    }
    let Arguments {
        flags,
        extras,
        config,
        script,
        ..
    } = arguments;
    let given = Given::with_environment(flags, host);
    if given.get(Flag::PrintCompletion).is_some() {
        return Err(ConfigError::Torchrun(TorchrunError::PrintCompletion));
    }
    let mut notes = given.notes()?;
    let mut values = Values::resolve(Mode::Torchrun, host, given.written(host, extras, config)?)?;
    rendezvous::stand_alone(&given, &mut values)?;
    let slurm = apply_scheduler(host, &mut values)?;
    let run_id = rendezvous::apply(host, &given, &mut values, &mut notes)?;
    name_job(host, &given, &mut values)?;
    let how = given.how()?;
    let working_dir = validate::working_dir(host, &values)?;
    let command = command::build(host, how, script, &working_dir)?;
    let request = Request {
        mode: Mode::Torchrun,
        values,
        command,
        inner_launcher: None,
        run_id: Some(run_id),
        slurm,
        notes,
    };
    validate::settings(host, request).map(|settings| Asked::Job(Box::new(settings)))
}

/// `--max-restarts` of a command line of torchrun, as it is written there and as a number.
pub(crate) fn max_restarts(arguments: &[OsString]) -> Option<(String, u32)> {
    let arguments = arguments::read(arguments).ok()?;
    let value = arguments.flags.get(&Flag::MaxRestarts)?;
    let count = value.text.trim().parse().ok()?;
    let Origin::Flag(flag) = &value.origin else {
        return None;
    };
    Some((format!("{flag} {count}"), count))
}

/// The flags of a command line of torchrun that say where its nodes meet, as they are written there.
pub(crate) fn rendezvous_flags(arguments: &[OsString]) -> Vec<(Flag, String)> {
    let Ok(arguments) = arguments::read(arguments) else {
        return Vec::new();
    };
    let flags = arguments.flags.iter();
    flags
        .filter(|(flag, _)| rendezvous::FLAGS.contains(flag))
        .map(|(flag, value)| match &value.origin {
            Origin::Flag(spelled) if flags::spec(*flag).value_name.is_none() => {
                (*flag, spelled.clone())
            }
            _ => (*flag, describe(*flag, value).0.trim_matches('`').to_owned()),
        })
        .collect()
}

/// torchrun's flags as they were given, on the command line or in the environment.
#[derive(Debug)]
pub(crate) struct Given(BTreeMap<Flag, Value>);

impl Given {
    fn with_environment(mut flags: BTreeMap<Flag, Value>, host: &Host) -> Self {
        for spec in FLAGS.iter().filter(|spec| spec.environment) {
            let variable = spec.variable();
            if let Some(text) = host.variable(&variable) {
                let value = || Value {
                    text: text.to_owned(),
                    origin: Origin::Environment(variable.clone()),
                };
                flags.entry(spec.flag).or_insert_with(value);
            }
        }
        Self(flags)
    }

    fn get(&self, flag: Flag) -> Option<&Value> {
        self.0.get(&flag)
    }

    fn text(&self, flag: Flag) -> Option<&str> {
        self.get(flag).map(|value| value.text.as_str())
    }

    /// A flag without a value. In the environment torchrun wants a number for it: 0 is off.
    fn switch(&self, flag: Flag) -> Result<bool, ConfigError> {
        let Some(value) = self.get(flag) else {
            return Ok(false);
        };
        match value.text.as_str() {
            "true" => Ok(true),
            number => number
                .trim()
                .parse::<i64>()
                .map(|number| number != 0)
                .map_err(|_| ConfigError::Value {
                    given: describe(flag, value),
                    reason: "must be 0 or 1".to_owned(),
                }),
        }
    }

    fn how(&self) -> Result<How, ConfigError> {
        let (module, program) = (self.switch(Flag::Module)?, self.switch(Flag::NoPython)?);
        if self.switch(Flag::RunPath)? {
            return Ok(How::RunPath);
        }
        match (module, program) {
            (true, true) => Err(ConfigError::Torchrun(TorchrunError::ModuleWithoutPython)),
            (true, false) => Ok(How::Module),
            (false, true) => Ok(How::Program),
            (false, false) => Ok(How::Script),
        }
    }

    /// What to tell about flags that have no effect here; wrong values of such flags are errors all the same.
    fn notes(&self) -> Result<Vec<String>, ConfigError> {
        let mut notes = Vec::new();
        for spec in &FLAGS {
            let Some(value) = self.get(spec.flag) else {
                continue;
            };
            if !spec.choices.is_empty() && !spec.choices.contains(&value.text.as_str()) {
                return Err(ConfigError::Value {
                    given: describe(spec.flag, value),
                    reason: format!("must be one of {}", spec.choices.join(", ")),
                });
            }
            if let Some(why) = spec.no_effect {
                notes.push(format!(
                    "{} has no effect: {why}",
                    describe(spec.flag, value)
                ));
            }
        }
        Ok(notes)
    }

    /// The options that the flags set, with the variables that torchrun reads besides `PET_*`.
    fn written(
        &self,
        host: &Host,
        extras: Vec<(Key, Value)>,
        config: Option<String>,
    ) -> Result<Written, ConfigError> {
        let mut written = Written {
            config,
            flags: Vec::new(),
            environment: Vec::new(),
        };
        for (name, key) in [
            ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", Key::StopGrace),
            (
                "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
                Key::LogLinePrefixTemplate,
            ),
        ] {
            if let Some(text) = host.variable(name) {
                let origin = Origin::Environment(name.to_owned());
                written.environment.push((
                    key,
                    Value {
                        text: text.to_owned(),
                        origin,
                    },
                ));
            }
        }
        for spec in &FLAGS {
            let (Some(value), Some(key)) = (self.get(spec.flag), spec.option) else {
                continue;
            };
            let mut value = value.clone();
            if spec.value_name.is_none() {
                value.text = self.switch(spec.flag)?.to_string();
            }
            match value.origin {
                Origin::Flag(_) => written.flags.push((key, value)),
                _ => written.environment.push((key, value)),
            }
        }
        written.flags.extend(extras);
        Ok(written)
    }
}

/// A run id that the user chose names the job. Where no other node has to find the job by its name, random characters
/// go after it, since torchrun lets several jobs share a run id.
fn name_job(host: &Host, given: &Given, values: &mut Values) -> Result<(), ConfigError> {
    let standalone = given.get(Flag::Standalone).is_some();
    if values.get(Key::Job).is_some() || standalone {
        return Ok(());
    }
    let Some(id) = given.get(Flag::RdzvId) else {
        return Ok(());
    };
    let text = if meets_others(values)? {
        as_name(&id.text, 64)
    } else {
        match as_name(&id.text, 50).as_str() {
            "" => String::new(),
            name => format!("{name}-{}", host.random_name(0, 6)),
        }
    };
    if !text.is_empty() {
        let origin = id.origin.clone();
        values.set(Key::Job, Value { text, origin });
    }
    Ok(())
}

fn describe(flag: Flag, value: &Value) -> values::Given {
    values::Given(match &value.origin {
        Origin::Environment(name) => format!("`{name}={}`", value.text),
        Origin::Flag(spelled) => format!("`{spelled} {}`", value.text),
        _ => format!("`--{}`", flags::spec(flag).name),
    })
}
