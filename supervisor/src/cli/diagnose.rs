// SPDX-License-Identifier: Apache-2.0
//! The command line of `steadfast diagnose`.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};

use super::tree::json_flag;
use crate::diagnose::Request;

const EXAMPLES: &str = "\
Examples:
  steadfast diagnose LOGS/incidents/generation-1-stall-1   what was kept of a stall
  steadfast diagnose /tmp/dumps                            flight-recorder dumps of all ranks

A dump is a file whose name ends in the number of its rank, as PyTorch writes them (`nccl_trace_rank_7`,
`comm_lib_trace_rank_7`), a pickle or JSON. Nothing in it is ever executed.";

pub(super) fn command() -> Command {
    Command::new("diagnose")
        .about("Explain what was kept of a stall, or dumps of PyTorch's flight recorder")
        .after_help(EXAMPLES)
        .arg(
            Arg::new("path")
                .value_name("PATH")
                .required(true)
                .value_parser(clap::value_parser!(PathBuf))
                .help("A directory of evidence or of dumps, or a single dump"),
        )
        .arg(json_flag())
}

pub(super) fn request(matches: &ArgMatches) -> Request {
    Request {
        path: matches.get_one("path").cloned().unwrap_or_default(),
        json: matches.get_flag("json"),
    }
}
