// SPDX-License-Identifier: Apache-2.0
//! The command line of `steadfast checkpoint`.

use std::time::Duration;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};
use steadfast_checkpoints::Depth;

use super::tree::{json_flag, with_job};
use crate::checkpoint_command::{Action, Request};
use crate::config::{Host, as_name, duration};
use crate::settings::LayoutChoice;

/// What a job's supervisor on this node is called.
const NODE_NAME: &str = "STEADFAST_NODE_NAME";

const EXAMPLES: &str = "\
Examples:
  steadfast checkpoint --wait                          make a checkpoint now; 1 if none was made
  steadfast checkpoint list /data/run1                 what is there, and which are whole
  steadfast checkpoint verify /data/run1               why the torn ones are torn; 1 if there are any
  steadfast checkpoint verify /data/run1 step-400      this one alone
  steadfast checkpoint verify --verify full /data/run1 every byte, against what was there the first time
  steadfast checkpoint diff /data/run1                 which files of the newest two differ; 1 if any do
  steadfast checkpoint diff --verify full DIR A B      A and B, byte by byte
  steadfast checkpoint list --layout rule.toml DIR     checkpoints of a program with a layout of its own

`verify` leaves a manifest of each whole checkpoint in DIR/.steadfast; what is missing or shorter later is
found by it, and with `--verify full` what has changed.";

pub(super) fn command() -> Command {
    with_job(Command::new("checkpoint"))
        .about("Ask a running job for a checkpoint, or tell whole checkpoints from torn ones")
        .alias("checkpoints")
        .override_usage("steadfast checkpoint [--wait] [OPTIONS]\n       steadfast checkpoint list [OPTIONS] DIR\n       steadfast checkpoint verify [OPTIONS] DIR [NAME]...\n       steadfast checkpoint diff [OPTIONS] DIR [NAME NAME]")
        .after_help(EXAMPLES)
        .args_conflicts_with_subcommands(true)
        .arg(
            Arg::new("wait")
                .long("wait")
                .action(ArgAction::SetTrue)
                .help("Wait until the checkpoint is there, on stable storage"),
        )
        .arg(
            Arg::new("timeout")
                .long("timeout")
                .value_name("DURATION")
                .default_value("10m")
                .value_parser(ValueParser::new(|text: &str| duration::parse(text)))
                .help("How long to wait for it at most"),
        )
        .subcommand(with_directory(Command::new("list").about("List the checkpoints of a directory")))
        .subcommand(
            with_directory(Command::new("verify").about("Look into checkpoints and say what is wrong with them"))
                .arg(
                    Arg::new("name")
                        .value_name("NAME")
                        .num_args(0..)
                        .help("These alone, by the names that `list` shows"),
                )
                .arg(depth()),
        )
        .subcommand(
            with_directory(Command::new("diff").about("Say which files of two checkpoints differ, and how"))
                .arg(
                    Arg::new("name")
                        .value_name("NAME")
                        .num_args(2)
                        .help("These two, by the names that `list` shows [default: the newest two]"),
                )
                .arg(depth()),
        )
}

fn depth() -> Arg {
    Arg::new("verify")
        .long("verify")
        .value_name("metadata|full")
        .default_value("metadata")
        .value_parser(["metadata", "full"])
        .help("How closely they are looked at")
}

fn with_directory(command: Command) -> Command {
    command
        .arg(
            Arg::new("dir")
                .value_name("DIR")
                .required(true)
                .value_parser(ValueParser::path_buf())
                .help("The directory that the checkpoints are in"),
        )
        .arg(
            Arg::new("layout")
                .long("layout")
                .value_name("auto|NAME|FILE")
                .default_value("auto")
                .help("How they are laid out, as for `run --checkpoint-layout`"),
        )
        .arg(json_flag())
}

/// How long a checkpoint of a running job is waited for, if it is.
pub(super) fn wait(matches: &ArgMatches) -> Option<Duration> {
    let waits = matches.get_flag("wait");
    matches.get_one("timeout").copied().filter(|_| waits)
}

pub(super) fn request(host: &Host, matches: &ArgMatches) -> Result<Request, clap::Error> {
    let missing = || {
        command().error(
            ErrorKind::MissingSubcommand,
            "`list`, `verify` or `diff` is needed",
        )
    };
    let (name, matches) = matches.subcommand().ok_or_else(missing)?;
    let layout = matches
        .get_one::<String>("layout")
        .map_or("auto", String::as_str);
    let layout = LayoutChoice::parse(layout, &host.working_dir).map_err(|reason| {
        command().error(
            ErrorKind::InvalidValue,
            format!("`--layout {layout}`: {reason}"),
        )
    })?;
    let directory: &std::path::PathBuf = matches.get_one("dir").ok_or_else(missing)?;
    let names = |matches: &ArgMatches| -> Vec<String> {
        matches
            .get_many("name")
            .unwrap_or_default()
            .cloned()
            .collect()
    };
    let depth = |matches: &ArgMatches| match matches.get_one::<String>("verify") {
        Some(depth) if depth == "full" => Depth::Full,
        _ => Depth::Metadata,
    };
    let action = match name {
        "list" => Action::List,
        "diff" => Action::Diff {
            names: <[String; 2]>::try_from(names(matches)).ok(),
            depth: depth(matches),
        },
        _ => Action::Verify {
            names: names(matches),
            depth: depth(matches),
        },
    };
    Ok(Request {
        action,
        directory: host.working_dir.join(directory),
        node: as_name(host.variable(NODE_NAME).unwrap_or(&host.hostname), 253),
        layout,
        json: matches.get_flag("json"),
    })
}
