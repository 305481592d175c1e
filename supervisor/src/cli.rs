// SPDX-License-Identifier: Apache-2.0
//! The command line: from the arguments to one [`Invocation`].

mod check;
mod checkpoint;
mod diagnose;
mod health;
mod pages;
mod plan;
mod run;
mod slurm;
mod tree;
mod xid;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::check_command;
use crate::checkpoint_command;
use crate::config::option::Key;
use crate::config::validate;
use crate::config::values::{Value, Values, Written};
use crate::config::{ConfigError, Host, apply_scheduler, show};
use crate::exit_code::ExitCode;
use crate::settings::{Mode, Settings};
use crate::slurm::hostlist::command::{Form, Request};
use crate::torchrun;
use crate::xid_command;

/// The first argument of a process that does work for a check.
pub(crate) const CHECK_WORK: &str = "__check";

/// What the command line asks for, validated.
#[derive(Debug)]
pub(crate) enum Invocation {
    /// Run a job.
    Run(Box<Settings>),
    /// Talk to a running job.
    Control(Control),
    /// Be the agent; the keeper starts it so.
    Agent,
    /// Be a probe of this kind; the agent starts it so.
    Probe(String),
    /// Expand a host list, or make one.
    HostList(Request),
    /// Look at the checkpoints of a directory.
    Checkpoint(checkpoint_command::Request),
    /// Check the node.
    Check(check_command::Request),
    /// Do work for a check, as these words say; the command starts it so.
    CheckWork(Vec<OsString>),
    /// Be the node service, or ask it.
    Health(crate::health_service::Request),
    /// Be one of Slurm's hooks, or help with them.
    Slurm(crate::slurm::hooks::Request),
    /// Say what failure rates imply.
    Plan(crate::plan_command::Request),
    /// Explain errors of GPUs.
    Xid(xid_command::Request),
    /// Explain evidence.
    Diagnose(crate::diagnose::Request),
    /// Print this to standard output; there is nothing else to do.
    Print(String),
}

/// A request to a running job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    /// What is asked for.
    pub(crate) action: Action,
    /// The job's name; absent means the only one that runs.
    pub(crate) job: Option<String>,
    /// Answer in JSON.
    pub(crate) json: bool,
    /// Directory of the control sockets.
    pub(crate) runtime_root: PathBuf,
}

/// What is asked of a running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Say how it is.
    Status,
    /// End in good order.
    Stop,
    /// Stop the workers and start them again.
    Restart,
    /// Take this node out of it.
    Drain,
    /// Make a checkpoint.
    Checkpoint {
        /// How long it is waited for; not at all when absent.
        wait: Option<Duration>,
    },
}

/// Why there is nothing to do, or nothing that can be done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Help or version was asked for, or the command line is not understood.
    Usage(Box<clap::Error>),
    /// The configuration is wrong.
    Config(ConfigError),
    /// A file could not be written; the message says which and why.
    Output(String),
}

impl Failure {
    /// Tells the user, and gives the exit code: 0 after help and version, 78 otherwise (1 where writing failed).
    pub(crate) fn report(&self) -> u8 {
        use std::io::Write as _;
        let mut stderr = std::io::stderr().lock();
        // There is nowhere left to say that standard error cannot be written.
        let (written, code) = match self {
            Self::Usage(error) if !error.use_stderr() => (error.print(), ExitCode::Success as u8),
            Self::Usage(error) => (error.print(), ExitCode::Configuration as u8),
            Self::Config(error) => (
                stderr.write_all(error.render().as_bytes()),
                ExitCode::Configuration as u8,
            ),
            Self::Output(message) => (writeln!(stderr, "error: {message}"), 1),
        };
        drop(written);
        code
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        Self::Usage(Box::new(error))
    }
}

/// Reads the arguments, the program's name included.
pub(crate) fn parse(host: &Host, arguments: &[OsString]) -> Result<Invocation, Failure> {
    // torchrun's line follows argparse's rules, and the agent's is the keeper's: neither is clap's to read.
    match arguments.get(1).and_then(|word| word.to_str()) {
        Some("torchrun") => return torchrun(host, &arguments[2..]),
        Some("__agent") => return Ok(Invocation::Agent),
        Some(CHECK_WORK) => return Ok(Invocation::CheckWork(arguments[2..].to_vec())),
        Some("__probe") => {
            let kind = arguments.get(2).map(|word| word.to_string_lossy());
            return Ok(Invocation::Probe(kind.unwrap_or_default().into_owned()));
        }
        _ => {}
    }
    let matches = tree::root().try_get_matches_from(arguments)?;
    match matches.subcommand() {
        Some(("run", matches)) => Ok(Invocation::Run(Box::new(run::settings(host, matches)?))),
        Some(("config", matches)) => Ok(Invocation::Print(config(host, matches)?)),
        Some(("status", matches)) => {
            Ok(Invocation::Control(control(host, Action::Status, matches)?))
        }
        Some(("stop", matches)) => Ok(Invocation::Control(control(host, Action::Stop, matches)?)),
        Some(("restart", matches)) => Ok(Invocation::Control(control(
            host,
            Action::Restart,
            matches,
        )?)),
        Some(("hostlist", matches)) => Ok(Invocation::HostList(host_list(matches))),
        Some(("drain", matches)) => Ok(Invocation::Control(control(host, Action::Drain, matches)?)),
        Some(("checkpoint", matches)) if matches.subcommand().is_none() => {
            let wait = checkpoint::wait(matches);
            let action = Action::Checkpoint { wait };
            Ok(Invocation::Control(control(host, action, matches)?))
        }
        Some(("checkpoint", matches)) => {
            Ok(Invocation::Checkpoint(checkpoint::request(host, matches)?))
        }
        Some(("check", matches)) => Ok(Invocation::Check(check::request(host, matches))),
        Some(("health", matches)) => Ok(Invocation::Health(health::request(host, matches)?)),
        Some(("slurm", matches)) => Ok(Invocation::Slurm(slurm::request(host, matches)?)),
        Some(("diagnose", matches)) => Ok(Invocation::Diagnose(diagnose::request(matches))),
        Some(("plan", matches)) => Ok(Invocation::Plan(plan::request(matches)?)),
        Some(("xid", matches)) => Ok(Invocation::Xid(xid::request(matches)?)),
        Some(("completions", matches)) => pages::completions(matches).map(Invocation::Print),
        Some(("man", matches)) => pages::man(host, matches).map(Invocation::Print),
        _ => Err(tree::root()
            .error(
                clap::error::ErrorKind::MissingSubcommand,
                "no command was given",
            )
            .into()),
    }
}

fn torchrun(host: &Host, arguments: &[OsString]) -> Result<Invocation, Failure> {
    match torchrun::parse(host, arguments)? {
        torchrun::Asked::Job(settings) => Ok(Invocation::Run(settings)),
        torchrun::Asked::Help => {
            let words: [OsString; 3] = ["steadfast".into(), "torchrun".into(), "--help".into()];
            match tree::root().try_get_matches_from(words) {
                Err(help) => Err(help.into()),
                // Cannot happen: `--help` always ends the parse.
                Ok(_) => Ok(Invocation::Print(String::new())),
            }
        }
    }
}

fn config(host: &Host, matches: &clap::ArgMatches) -> Result<String, ConfigError> {
    if matches.get_flag("sample") {
        return Ok(show::sample());
    }
    let mut values = Values::resolve(Mode::Run, host, run::written(matches))?;
    let slurm = apply_scheduler(host, &mut values)?;
    validate::check_values(host, &values, slurm)?;
    validate::work_out_defaults(host, &mut values)?;
    Ok(if matches.get_flag("json") {
        show::json(&values)
    } else {
        show::text(&values)
    })
}

fn host_list(matches: &clap::ArgMatches) -> Request {
    let form = if matches.get_flag("compress") {
        Form::HostList
    } else if matches.get_flag("json") {
        Form::Json
    } else {
        Form::Lines
    };
    Request {
        lists: matches
            .get_many("list")
            .map(|lists| lists.cloned().collect())
            .unwrap_or_default(),
        form,
    }
}

fn control(
    host: &Host,
    action: Action,
    matches: &clap::ArgMatches,
) -> Result<Control, ConfigError> {
    let mut written = Written {
        config: matches.get_one("config").cloned(),
        ..Written::default()
    };
    for (key, name) in [(Key::Job, "job"), (Key::RuntimeDir, "runtime-dir")] {
        if let Some(text) = matches.get_one::<String>(name) {
            written
                .flags
                .push((key, Value::flag(format!("--{name}"), text)));
        }
    }
    let values = Values::resolve(Mode::Run, host, written)?;
    Ok(Control {
        action,
        job: validate::job(&values)?,
        json: matches.get_flag("json"),
        runtime_root: validate::runtime_root(host, &values),
    })
}
