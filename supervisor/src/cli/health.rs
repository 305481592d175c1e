// SPDX-License-Identifier: Apache-2.0
//! The command line of `steadfast health`.

use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::config::{Host, parse};
use crate::fault_book;
use crate::health_service::{Request, Serve, USUAL_SOCKET};

const EXAMPLES: &str = "\
Examples:
  steadfast health serve             as root, best by systemd: read the kernel log for the jobs of all users
  steadfast health serve --detach    the same from a script: returns when the service listens
  steadfast health show              what the service tells this user

Jobs find the service by themselves. Root sees everything; users see what is about the whole node, and about
the GPUs of their own jobs: see docs/guides/gpu-health.md.";

pub(super) fn command() -> Command {
    Command::new("health")
        .about("Watch kernel log and GPUs once for the whole node, for jobs that may not")
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .subcommand(serve())
        .subcommand(
            Command::new("show")
                .about("Show what the service tells this user")
                .arg(socket()),
        )
}

fn serve() -> Command {
    Command::new("serve")
        .about("Be the service")
        .arg(socket())
        .arg(
            path("kernel-log", "FILE", "/dev/kmsg")
                .help("The kernel log, or a named pipe or file that somebody else fills"),
        )
        .arg(
            path("state-dir", "DIR", "/run/steadfast/slurm")
                .help("Where `steadfast slurm prolog` records which job has which GPUs"),
        )
        .arg(
            Arg::new("nvml")
                .long("nvml")
                .value_name("auto|off|FILE")
                .value_parser(|text: &str| parse::nvml(text))
                .default_value("auto")
                .help("NVIDIA's management library"),
        )
        .arg(
            Arg::new("gpu-faults")
                .long("gpu-faults")
                .value_name("FILE")
                .value_parser(ValueParser::path_buf())
                .help(
                    "Where faults of GPUs are remembered over jobs and restarts, for checks and jobs \
                     [env: STEADFAST_GPU_FAULTS] [default: /var/lib/steadfast/gpu-faults.json]",
                ),
        )
        .arg(
            Arg::new("detach")
                .long("detach")
                .action(ArgAction::SetTrue)
                .help("Leave a process behind that serves, and end as soon as it does"),
        )
}

fn socket() -> Arg {
    path("socket", "PATH", USUAL_SOCKET).help("Where the service listens")
}

fn path(name: &'static str, value: &'static str, default: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name(value)
        .value_parser(ValueParser::path_buf())
        .default_value(default)
}

pub(super) fn request(host: &Host, matches: &ArgMatches) -> Result<Request, clap::Error> {
    let missing = || command().error(ErrorKind::MissingSubcommand, "`serve` or `show` is needed");
    let (name, matches) = matches.subcommand().ok_or_else(missing)?;
    let path = |name: &str| {
        let path = matches.get_one::<PathBuf>(name).ok_or_else(missing)?;
        Ok::<PathBuf, clap::Error>(host.working_dir.join(path))
    };
    let socket = path("socket")?;
    if name == "show" {
        return Ok(Request::Show { socket });
    }
    Ok(Request::Serve(Serve {
        socket,
        kernel_log: path("kernel-log")?,
        state_dir: path("state-dir")?,
        gpu_faults: fault_book::place(host, matches.get_one::<PathBuf>("gpu-faults")),
        node: host.hostname.clone(),
        nvml: matches.get_one("nvml").cloned().ok_or_else(missing)?,
        detach: matches.get_flag("detach"),
    }))
}
