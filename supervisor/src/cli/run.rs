// SPDX-License-Identifier: Apache-2.0
//! `steadfast run`: its flags, made from the table of options, and what they come to.

use std::ffi::OsString;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches};

use crate::config::option::{Default, Kind, OptionSpec};
use crate::config::table::OPTIONS;
use crate::config::validate::{self, Request};
use crate::config::values::{Value, Values, Written};
use crate::config::{ConfigError, Host, apply_scheduler, disarm_one_loop, program};
use crate::settings::{Mode, Settings, WorkerCommand};

/// The flags of every option, and `--config`.
pub(super) fn flags() -> Vec<Arg> {
    let mut flags: Vec<Arg> = OPTIONS.iter().map(flag).collect();
    flags.extend(OPTIONS.iter().filter_map(negation));
    flags.push(config_flag());
    flags
}

/// `--config FILE`.
pub(super) fn config_flag() -> Arg {
    Arg::new("config")
        .long("config")
        .value_name("FILE")
        .help("Configuration file [env: STEADFAST_CONFIG]")
        .help_heading("Supervisor")
}

/// What the flags say.
pub(super) fn written(matches: &ArgMatches) -> Written {
    let flags = OPTIONS
        .iter()
        .filter_map(|option| {
            // clap has seen to it that the later one of the two holds.
            let negation = option.negation();
            if let Some(negation) = negation.filter(|negation| matches.get_flag(negation)) {
                return Some((option.key, Value::flag(format!("--{negation}"), "false")));
            }
            let text = matches.get_one::<String>(option.name)?;
            Some((option.key, Value::flag(format!("--{}", option.name), text)))
        })
        .collect();
    Written {
        config: matches.get_one("config").cloned(),
        flags,
        ..Written::default()
    }
}

/// The settings of the job.
pub(super) fn settings(host: &Host, matches: &ArgMatches) -> Result<Settings, ConfigError> {
    let mut values = Values::resolve(Mode::Run, host, written(matches))?;
    let slurm = apply_scheduler(host, &mut values)?;
    let argv: Vec<OsString> = matches
        .get_many("command")
        .map(|words| words.cloned().collect())
        .unwrap_or_default();
    let Some(first) = argv.first() else {
        return Err(ConfigError::NoCommand);
    };
    let working_dir = validate::working_dir(host, &values)?;
    let program = program::resolve(host, first, &working_dir)?;
    let mut notes = Vec::new();
    let inner_launcher = disarm_one_loop(&argv, &mut values, &mut notes)?;
    let command = WorkerCommand {
        program,
        argv,
        substitute_local_rank: false,
    };
    validate::settings(
        host,
        Request {
            mode: Mode::Run,
            values,
            command,
            inner_launcher,
            run_id: None,
            slurm,
            notes,
        },
    )
}

fn flag(option: &OptionSpec) -> Arg {
    let default = match option.default {
        Default::Value(value) => format!(" [default: {value}]"),
        Default::Described(_) | Default::Unset => String::new(),
    };
    let arg = Arg::new(option.name)
        .long(option.name)
        .value_name(option.value_name)
        .value_parser(ValueParser::string())
        .action(ArgAction::Set)
        .help(format!("{}{default}", option.summary()))
        .long_help(long_help(option))
        .help_heading(option.group.title());
    let arg = match option.short {
        Some(short) => arg.short(short),
        None => arg,
    };
    match option.kind {
        Kind::Switch => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        _ => arg,
    }
}

/// `--no-NAME` for a switch that is on by default. The help text of the switch tells of it.
fn negation(option: &OptionSpec) -> Option<Arg> {
    let name = option.negation()?;
    let arg = Arg::new(name.clone()).long(name);
    Some(
        arg.action(ArgAction::SetTrue)
            .overrides_with(option.name)
            .hide(true),
    )
}

fn long_help(option: &OptionSpec) -> String {
    let default = match option.default {
        Default::Value(text) | Default::Described(text) => format!("[default: {text}] "),
        Default::Unset => String::new(),
    };
    format!("{}\n\n{default}[env: {}]", option.doc, option.environment())
}
