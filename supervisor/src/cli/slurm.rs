// SPDX-License-Identifier: Apache-2.0
//! The command line of `steadfast slurm`.

use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::config::Host;
use crate::slurm::hooks::{Hook, Install, Request, Requeue, USUAL_FILE};

const EXAMPLES: &str = "\
Examples:
  steadfast slurm install --dry-run      what to add to slurm.conf, and the scripts that it points at
  steadfast slurm requeue                in a batch script: run this job again, at once
  steadfast slurm requeue --job 71       the same for another job
  journalctl -u slurmd | grep steadfast  what the hooks have said; also in /var/log/steadfast/slurm.log

`prolog`, `epilog`, `health` and `task-prolog` are started by slurmd. They end with 76 when this node is
proven to be at fault, and with 0 otherwise: a wrong configuration, a controller that does not answer or a
log that cannot be read drains nobody. Their settings are in /etc/steadfast/slurm.toml, if it is there.";

pub(super) fn command() -> Command {
    Command::new("slurm")
        .about("Be what slurm.conf points at: prolog, epilog, health check; requeue a job at once")
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .subcommand(hook(
            Hook::Prolog,
            "Before a job: refuse to start it on a node that is proven sick",
        ))
        .subcommand(hook(
            Hook::Epilog,
            "After a job: kill what it has left, tell what happened to its GPUs, drain a sick node",
        ))
        .subcommand(hook(
            Hook::Health,
            "From time to time: drain a sick node, resume what was drained here and is well",
        ))
        .subcommand(hook(
            Hook::TaskProlog,
            "Before each task: print variables for it",
        ))
        .subcommand(requeue())
        .subcommand(install())
}

fn hook(hook: Hook, about: &'static str) -> Command {
    Command::new(hook.name()).about(about).arg(config())
}

fn requeue() -> Command {
    Command::new("requeue")
        .about("End a job and start it again as soon as there is room, rather than in two minutes")
        .arg(
            Arg::new("job")
                .long("job")
                .value_name("ID")
                .value_parser(job_id)
                .help("The job [default: the one that this runs in]"),
        )
        .arg(
            Arg::new("hasten-only")
                .long("hasten-only")
                .action(ArgAction::SetTrue)
                .help("Only wait for somebody else to put it back, and have it start at once then"),
        )
        .arg(
            Arg::new("at-most")
                .long("at-most")
                .value_name("COUNT")
                .value_parser(clap::value_parser!(u32))
                .help("Do nothing for a job that was put back more often than this"),
        )
        .arg(config())
}

fn install() -> Command {
    Command::new("install")
        .about("Write the scripts that slurm.conf points at, and print what to add to it")
        .arg(
            Arg::new("dry-run")
                .long("dry-run")
                .action(ArgAction::SetTrue)
                .help("Write nothing"),
        )
        .arg(
            Arg::new("dir")
                .long("dir")
                .value_name("DIR")
                .value_parser(ValueParser::path_buf())
                .default_value("/etc/steadfast/slurm.d")
                .help("Where the scripts go"),
        )
        .arg(config())
}

fn config() -> Arg {
    Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(ValueParser::path_buf())
        .help(format!(
            "Settings of the hooks [default: {USUAL_FILE}, if it is there]"
        ))
}

pub(super) fn request(host: &Host, matches: &ArgMatches) -> Result<Request, clap::Error> {
    let missing = || command().error(ErrorKind::MissingSubcommand, "no hook was named");
    let (name, matches) = matches.subcommand().ok_or_else(missing)?;
    let config = matches
        .get_one::<PathBuf>("config")
        .map(|file| host.working_dir.join(file));
    if let Some(hook) = Hook::ALL.into_iter().find(|hook| hook.name() == name) {
        return Ok(Request::Hook { hook, config });
    }
    if name == "requeue" {
        return Ok(Request::Requeue(Requeue {
            job: matches.get_one("job").cloned(),
            hasten_only: matches.get_flag("hasten-only"),
            at_most: matches.get_one("at-most").copied(),
            config,
        }));
    }
    Ok(Request::Install(Install {
        dry_run: matches.get_flag("dry-run"),
        directory: matches
            .get_one::<PathBuf>("dir")
            .cloned()
            .ok_or_else(missing)?,
        config,
    }))
}

/// A number, or a task of a job array (`71_3`).
fn job_id(text: &str) -> Result<String, String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (job, task) = text.split_once('_').unwrap_or((text, "0"));
    if is_number(job) && is_number(task) {
        Ok(text.to_owned())
    } else {
        Err("the number of a job, such as 71 or 71_3".to_owned())
    }
}
