// SPDX-License-Identifier: Apache-2.0
//! The command line of `steadfast plan`.

use std::time::Duration;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command};

use super::tree::json_flag;
use crate::config::duration;
use crate::plan_command::Request;

const EXAMPLES: &str = "\
Examples:
  steadfast plan --nodes 128 --checkpoint-cost 30s
  steadfast plan --nodes 64,128,256 --mttf 200d --checkpoint-cost 5s --restart-time 90s
  steadfast plan --nodes 128 --checkpoint-cost 30s --interval 1h    what another interval costs
  steadfast plan --nodes 128 --checkpoint-cost 30s --json

What a checkpoint costs, and how often a job fails, `steadfast status` says of one that runs.
INTERVAL is the time of training between two checkpoints with which most is kept (Daly's optimum);
KEPT the part of all time that is training and is not lost; SPARES how many are enough in 99 of
100 cases, when a node that has failed is away for --repair-time.";

pub(super) fn command() -> Command {
    Command::new("plan")
        .about(
            "Say how often to save, how many spares to keep, and what part of the time is trained",
        )
        .after_help(EXAMPLES)
        .arg(
            Arg::new("nodes")
                .long("nodes")
                .value_name("N,...")
                .required(true)
                .value_delimiter(',')
                .value_parser(clap::value_parser!(u32).range(1..=1_000_000))
                .help("How many nodes the job takes; several numbers are compared"),
        )
        .arg(time(
            "mttf",
            "150d",
            "After how long one node fails, on average",
        ))
        .arg(
            Arg::new("checkpoint-cost")
                .long("checkpoint-cost")
                .value_name("DURATION")
                .required(true)
                .value_parser(ValueParser::new(|text: &str| duration::parse(text)))
                .help("For how long one checkpoint keeps the training from going on"),
        )
        .arg(time(
            "restart-time",
            "2m",
            "From a failure until training goes on from the last checkpoint",
        ))
        .arg(time(
            "repair-time",
            "1d",
            "How long a node that has failed is away",
        ))
        .arg(
            Arg::new("interval")
                .long("interval")
                .value_name("DURATION")
                .value_parser(ValueParser::new(|text: &str| duration::parse(text)))
                .help("Save after so much training, instead of the best time"),
        )
        .arg(json_flag())
}

fn time(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("DURATION")
        .default_value(default)
        .value_parser(ValueParser::new(|text: &str| duration::parse(text)))
        .help(help)
}

pub(super) fn request(matches: &ArgMatches) -> Result<Request, clap::Error> {
    let read = |name: &str| matches.get_one::<Duration>(name).copied();
    let positive = |name: &'static str| {
        read(name).filter(|time| !time.is_zero()).ok_or_else(|| {
            let message = format!("`--{name}` must be more than 0");
            command().error(ErrorKind::InvalidValue, message)
        })
    };
    Ok(Request {
        nodes: matches
            .get_many("nodes")
            .unwrap_or_default()
            .copied()
            .collect(),
        node_mttf: positive("mttf")?,
        checkpoint_cost: positive("checkpoint-cost")?,
        restart_time: read("restart-time").unwrap_or_default(),
        repair_time: read("repair-time").unwrap_or_default(),
        interval: read("interval").map(|_| positive("interval")).transpose()?,
        json: matches.get_flag("json"),
    })
}
