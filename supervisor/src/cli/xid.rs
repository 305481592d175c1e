// SPDX-License-Identifier: Apache-2.0
//! The command line of `steadfast xid`.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command};
use steadfast_health::xid::{Driver, Kind, find};

use super::tree::json_flag;
use crate::xid_command::{Request, Subject};

const EXAMPLES: &str = "\
Examples:
  steadfast xid 79                       what it means, who is at fault, what to do
  steadfast xid sxid:24007               the same for an error of a switch
  steadfast xid 139 --driver 535.104.05  a code that meant something else in that driver
  dmesg | steadfast xid -                the incidents in a kernel log, the cause first
  journalctl -kf | steadfast xid - --json  one object for each event, as they come
  steadfast xid --list                   every code

`-` reads records of /dev/kmsg and what dmesg, syslog and the journal write. A policy is a TOML file that
changes what is done about a code:

  [xid.92]
  action = \"exclude-node\"
  count = 3
  window = \"10m\"";

pub(super) fn command() -> Command {
    Command::new("xid")
        .about("Explain errors of NVIDIA GPUs (XID) and switches (SXID), or find them in a kernel log")
        .override_usage(
            "steadfast xid [OPTIONS] CODE\n       steadfast xid [OPTIONS] -\n       steadfast xid [OPTIONS] --list",
        )
        .after_help(EXAMPLES)
        .arg(
            Arg::new("subject")
                .value_name("CODE")
                .required_unless_present("list")
                .value_parser(subject)
                .help("The code, such as 79, xid:79 or sxid:24007; `-` reads a kernel log from standard input"),
        )
        .arg(
            Arg::new("list")
                .long("list")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["subject", "driver", "policy"])
                .help("Print every code"),
        )
        .arg(json_flag())
        .arg(
            Arg::new("driver")
                .long("driver")
                .value_name("VERSION")
                .value_parser(|text: &str| Driver::parse(text))
                .help("Read renumbered codes as this driver means them"),
        )
        .arg(
            Arg::new("policy")
                .long("policy")
                .value_name("FILE")
                .value_parser(clap::value_parser!(PathBuf))
                .help("Change what is done about some codes; only with `-`"),
        )
}

pub(super) fn request(matches: &ArgMatches) -> Result<Request, clap::Error> {
    let subject = matches.get_one("subject").copied();
    let request = Request {
        subject: subject.unwrap_or(Subject::All),
        json: matches.get_flag("json"),
        driver: matches.get_one("driver").copied(),
        policy: matches.get_one("policy").cloned(),
    };
    if request.policy.is_some() && request.subject != Subject::Log {
        return Err(command().error(
            clap::error::ErrorKind::ArgumentConflict,
            "`--policy` changes what is done about the events of a log: give it with `-`",
        ));
    }
    Ok(request)
}

/// A bare number is an XID, unless only switches have it.
fn subject(text: &str) -> Result<Subject, String> {
    if text == "-" {
        return Ok(Subject::Log);
    }
    let lower = text.to_ascii_lowercase();
    let named = Kind::ALL
        .into_iter()
        .find_map(|kind| Some((kind, lower.strip_prefix(kind.name())?)));
    let digits = named.map_or(lower.as_str(), |(_, rest)| {
        rest.trim_start_matches([':', ' '])
    });
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let code: u32 = digits
        .parse()
        .ok()
        .filter(|_| is_number)
        .ok_or_else(|| "a code is a number, such as 79, xid:79 or sxid:24007".to_owned())?;
    let kind = named.map_or_else(|| likely_kind(code), |(kind, _)| kind);
    Ok(Subject::Code(kind, code))
}

fn likely_kind(code: u32) -> Kind {
    let known = |kind| find(kind, code, None, "").is_some();
    if known(Kind::Sxid) && !known(Kind::Xid) {
        Kind::Sxid
    } else {
        Kind::Xid
    }
}
