// SPDX-License-Identifier: Apache-2.0
//! The command line of `steadfast diagnose`.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};

use super::tree::json_flag;
use crate::diagnose::Request;

const EXAMPLES: &str = "\
Examples:
  steadfast diagnose LOGS                                  what was at fault, from the logs of all ranks
  steadfast diagnose slurm-4417.out                        the same from one log with all ranks in it
  steadfast diagnose LOGS/incidents/generation-1-stall-1   what was kept of a stall
  steadfast diagnose /tmp/dumps                            flight-recorder dumps of all ranks

Logs of any launcher are read, and beside them kernel logs (kmsg*, dmesg*, syslog*), `df.txt`, and what is known
of the job (context.toml). Your own rules are TOML:

  [[rule]]
  id = \"site.license\"
  class = \"configuration\"
  role = \"cause\"
  match = ['license server .* refused']
  meaning = \"the license server refused the job\"

A dump is a file whose name ends in the number of its rank, as PyTorch writes them (`nccl_trace_rank_7`,
`comm_lib_trace_rank_7`), a pickle or JSON. Nothing in it is ever executed.";

pub(super) fn command() -> Command {
    Command::new("diagnose")
        .about("Say what was at fault, from logs, kernel logs and what else was kept")
        .after_help(EXAMPLES)
        .arg(
            Arg::new("path")
                .value_name("PATH")
                .required(true)
                .value_parser(clap::value_parser!(PathBuf))
                .help("A directory of logs, of evidence or of dumps, or one such file"),
        )
        .arg(
            Arg::new("rules")
                .long("rules")
                .value_name("FILE")
                .value_parser(clap::value_parser!(PathBuf))
                .help("Rules of your own about lines of logs, before the built-in ones (TOML)"),
        )
        .arg(json_flag())
}

pub(super) fn request(matches: &ArgMatches) -> Request {
    Request {
        path: matches.get_one("path").cloned().unwrap_or_default(),
        rules: matches.get_one("rules").cloned(),
        json: matches.get_flag("json"),
    }
}
