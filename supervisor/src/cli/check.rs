// SPDX-License-Identifier: Apache-2.0
//! The command line of `steadfast check`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use steadfast_checks::Profile;

use super::tree::json_flag;
use crate::check_command::{Form, Given, Inquiry, Request, Subject};
use crate::config::Host;

const EXAMPLES: &str = "\
Examples:
  steadfast check                              is this node well? (profile health)
  steadfast check --profile prolog --gpus 0,3  may a job with these GPUs start?
  steadfast check gpu-ecc mounts -v            these two, and what they were concluded from
  steadfast check --list                       every check, its thresholds and their defaults
  steadfast check --prometheus --output /var/lib/node_exporter/steadfast.prom
  steadfast check --nagios                     one line; exit codes 0, 1, 2, 3

Profiles: prolog before a job (at most 10 s), epilog after one (10 s), health beside jobs (50 s),
full for everything on an idle node (5 min). Thresholds, and commands of your own, are configured in
/etc/steadfast/checks.toml: see docs/checks.md.

Exit codes: 0 jobs may run here; 76 a check failed; 78 the command line or the configuration is
wrong; 1 the report could not be written. What cannot be looked at, and a check that itself breaks,
are said and fail nothing.";

pub(super) fn command() -> Command {
    Command::new("check")
        .about(
            "Check whether this node is fit for jobs: GPUs, links, mounts, disks, memory, kernel",
        )
        .after_help(EXAMPLES)
        .arg(
            Arg::new("name")
                .value_name("CHECK")
                .num_args(0..)
                .help("Make only these checks, whatever the profile says"),
        )
        .args(what())
        .args(how())
}

/// What is checked.
fn what() -> [Arg; 8] {
    [
        Arg::new("profile")
            .long("profile")
            .value_name("NAME")
            .value_parser(PossibleValuesParser::new(Profile::ALL.map(Profile::name)))
            .default_value(Profile::Health.name())
            .help("The occasion: which checks are made, and how long they may take"),
        Arg::new("skip")
            .long("skip")
            .value_name("CHECK,...")
            .value_delimiter(',')
            .action(ArgAction::Append)
            .help("Do not make these checks"),
        Arg::new("gpus")
            .long("gpus")
            .value_name("GPU,...")
            .value_delimiter(',')
            .action(ArgAction::Append)
            .help("Only these GPUs matter, by index, UUID or PCI address"),
        Arg::new("config")
            .long("config")
            .value_name("FILE")
            .help("Thresholds and own commands [env: STEADFAST_CHECK_CONFIG]"),
        Arg::new("state")
            .long("state")
            .value_name("FILE|off")
            .help("Where counters are kept from one run to the next [env: STEADFAST_CHECK_STATE]"),
        Arg::new("nvml")
            .long("nvml")
            .value_name("auto|off|FILE")
            .help("NVIDIA's management library [env: STEADFAST_NVML]"),
        Arg::new("root")
            .long("root")
            .value_name("DIR")
            .hide(true)
            .help("Look for /proc, /sys and the like below this directory"),
        Arg::new("list")
            .long("list")
            .action(ArgAction::SetTrue)
            .conflicts_with_all(["name", "skip", "gpus", "prometheus", "nagios"])
            .help("Explain every check, with its thresholds"),
    ]
}

/// How it is said.
fn how() -> [Arg; 5] {
    [
        json_flag(),
        Arg::new("prometheus")
            .long("prometheus")
            .action(ArgAction::SetTrue)
            .conflicts_with("json")
            .help("Print metrics, as for the text files of Prometheus' node exporter"),
        Arg::new("nagios")
            .long("nagios")
            .action(ArgAction::SetTrue)
            .conflicts_with_all(["json", "prometheus"])
            .help("Print one line, and end with 0, 1, 2 or 3, as a plugin of Nagios"),
        Arg::new("output")
            .long("output")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Write to this file, which is replaced as a whole"),
        Arg::new("verbose")
            .long("verbose")
            .short('v')
            .action(ArgAction::SetTrue)
            .help("Print what was read, and how long each check took"),
    ]
}

pub(super) fn request(host: &Host, matches: &ArgMatches) -> Request {
    let form = if matches.get_flag("json") {
        Form::Json
    } else if matches.get_flag("prometheus") {
        Form::Prometheus
    } else if matches.get_flag("nagios") {
        Form::Nagios
    } else {
        Form::Text {
            verbose: matches.get_flag("verbose"),
            plain: host.variable("NO_COLOR").is_some(),
        }
    };
    let output: Option<&PathBuf> = matches.get_one("output");
    Request {
        subject: if matches.get_flag("list") {
            Subject::List
        } else {
            Subject::Node(Box::new(inquiry(host, matches)))
        },
        form,
        output: output.map(|file| host.working_dir.join(file)),
    }
}

fn inquiry(host: &Host, matches: &ArgMatches) -> Inquiry {
    let list = |name| {
        let words = matches.get_many::<String>(name);
        words.map(|words| words.cloned().collect::<Vec<String>>())
    };
    let word = |name| matches.get_one::<String>(name).map(String::as_str);
    let given = Given {
        config: word("config"),
        state: word("state"),
        nvml: word("nvml"),
    };
    let profile = word("profile").and_then(Profile::from_name);
    let usual = Inquiry::new(host, profile.unwrap_or(Profile::Health), given);
    Inquiry {
        only: list("name").unwrap_or_default(),
        skip: list("skip").unwrap_or_default(),
        gpus: list("gpus"),
        root: word("root").map_or_else(|| usual.root.clone(), |root| host.working_dir.join(root)),
        ..usual
    }
}
