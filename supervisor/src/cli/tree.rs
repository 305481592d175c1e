// SPDX-License-Identifier: Apache-2.0
//! The tree of commands, as clap knows it.

use clap::builder::{ValueParser, styling};
use clap::{Arg, ArgAction, Command};

use super::{check, checkpoint, diagnose, health, plan, run, slurm, xid};
use crate::torchrun::flags::{FLAGS, FlagSpec};

const ABOUT: &str =
    "Keeps a training job running: watches its workers and restarts them when one fails";

const EXAMPLES: &str = "\
Examples:
  steadfast run -- python train.py                     one worker, restarted up to 3 times
  steadfast run --nproc-per-node gpu -- python ddp.py  one worker for each GPU
  steadfast torchrun --nproc-per-node 8 train.py       instead of torchrun, with its flags
  steadfast status                                     how the job is

`steadfast help COMMAND` explains a command.";

const RUN_EXAMPLES: &str = "\
Examples:
  steadfast run -- python train.py --lr 3e-4
  steadfast run --nproc-per-node 8 --max-restarts 10 -- python ddp.py
  steadfast run --job llama --log-dir /scratch/logs -- ./train.sh
  steadfast run --progress-regex 'iteration +(\\d+)' -- python train.py
  steadfast run --nnodes 2:4 --coord etcd://h1:2379 --job llama -- python train.py    (on each node)
  srun --ntasks-per-node=1 --no-kill steadfast run -- python train.py

Every option can also be set in the environment and in a configuration file: see
`steadfast config --help`.

Exit codes: 0 the job is done; the failed worker's own code when the program is at fault; 75 the
infrastructure is at fault; 76 this node is; 78 the configuration is wrong and nothing was started.";

const TORCHRUN_EXAMPLES: &str = "\
Examples:
  steadfast torchrun --standalone --nproc-per-node gpu train.py --lr 3e-4
  steadfast torchrun --nproc-per-node 8 --max-restarts 3 -m package.train
  steadfast torchrun --coord etcd://h1:2379 --nnodes 2 --rdzv-id llama train.py       (on each node)

Flags are also read from PET_* variables, as torchrun does. The options of `steadfast run` that
torchrun does not have (such as --restart-grace) can be given too, in full, before the script.
A wrong command line ends with 78 where torchrun ends with 2; a failed job ends with 1, unless
`--exit-code program=pass` asks for the failed worker's own code.";

const CONFIG_EXAMPLES: &str = "\
Examples:
  steadfast config                        what is in force here, and where each value comes from
  steadfast config --max-restarts 5       the same, with this flag given
  steadfast config --sample > site.toml   a file with every key, its meaning and its default

A flag goes before its variable (STEADFAST_MAX_RESTARTS), that before the configuration files, and those
before the default. Files: /etc/steadfast/config.toml, then ~/.config/steadfast/config.toml, then --config.";

const HOSTLIST_EXAMPLES: &str = "\
Examples:
  steadfast hostlist \"$SLURM_JOB_NODELIST\"          the hosts of this allocation, one a line
  steadfast hostlist --json 'gpu[001-004,009]'      the same as a JSON array
  steadfast hostlist --compress gpu3 gpu1 gpu2      gpu[1-3]
  sinfo -hN -o %N | steadfast hostlist --compress - every node of the cluster, as one list

Hosts stay in the order of the list, and a host that is named twice is printed twice.
--compress sorts them and names each once. A list that is wrong or empty is refused with exit
code 78.";

/// The whole tree.
pub(super) fn root() -> Command {
    let root = Command::new("steadfast");
    // Help texts must not depend on the terminal that the tests run in.
    let root = if cfg!(test) {
        root.term_width(100)
    } else {
        root.max_term_width(100)
    };
    root.version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .after_help(EXAMPLES)
        .styles(styles())
        .arg_required_else_help(true)
        .subcommand_required(true)
        .disable_help_subcommand(false)
        .subcommand(run_command())
        .subcommand(torchrun_command())
        .subcommand(control_command("status", "Show how a running job is"))
        .subcommand(control_command("stop", "Stop a running job in good order"))
        .subcommand(control_command(
            "restart",
            "Stop the workers of a running job and start them again",
        ))
        .subcommand(control_command(
            "drain",
            "Take this node out of a running job, which goes on without it if it can",
        ))
        .subcommand(checkpoint::command())
        .subcommand(config_command())
        .subcommand(check::command())
        .subcommand(hostlist_command())
        .subcommand(plan::command())
        .subcommand(xid::command())
        .subcommand(diagnose::command())
        .subcommand(health::command())
        .subcommand(slurm::command())
        .subcommand(completions_command())
        .subcommand(man_command())
}

fn run_command() -> Command {
    Command::new("run")
        .about("Run a command, and restart it when it fails")
        .override_usage("steadfast run [OPTIONS] -- COMMAND [ARGUMENTS]...")
        .after_help(RUN_EXAMPLES)
        .args_override_self(true)
        .args(run::flags())
        .arg(
            Arg::new("command")
                .value_name("COMMAND")
                .help("The command and its arguments")
                .num_args(1..)
                .trailing_var_arg(true)
                .value_parser(ValueParser::os_string()),
        )
}

/// Only for help texts, completions and manual pages: [`crate::torchrun`] reads the line itself.
fn torchrun_command() -> Command {
    Command::new("torchrun")
        .about("Take torchrun's command line, and run it with steadfast's supervision")
        .override_usage("steadfast torchrun [FLAGS] SCRIPT [ARGUMENTS]...")
        .after_help(TORCHRUN_EXAMPLES)
        .args(FLAGS.iter().map(torchrun_flag))
        .arg(
            Arg::new("script")
                .value_name("SCRIPT")
                .help("The training script, and its arguments")
                .num_args(1..)
                .trailing_var_arg(true)
                .value_parser(ValueParser::os_string()),
        )
}

fn torchrun_flag(spec: &'static FlagSpec) -> Arg {
    let arg = Arg::new(spec.name).long(spec.name).help(spec.doc);
    let arg = match spec.short {
        Some(short) => arg.short(short),
        None => arg,
    };
    match spec.value_name {
        Some(name) => arg.value_name(name),
        None => arg.action(ArgAction::SetTrue),
    }
}

fn control_command(name: &'static str, about: &'static str) -> Command {
    with_job(Command::new(name).about(about))
}

/// The flags that say which running job is meant.
pub(super) fn with_job(command: Command) -> Command {
    command
        .arg(
            Arg::new("job")
                .long("job")
                .value_name("NAME")
                .help("The job; may be left out when only one runs [env: STEADFAST_JOB]"),
        )
        .arg(
            Arg::new("runtime-dir")
                .long("runtime-dir")
                .value_name("DIR")
                .help("Directory of the control sockets [env: STEADFAST_RUNTIME_DIR]"),
        )
        .arg(run::config_flag().help_heading(None))
        .arg(json_flag())
}

fn config_command() -> Command {
    Command::new("config")
        .about("Show the options in force and where they come from")
        .after_help(CONFIG_EXAMPLES)
        .args_override_self(true)
        .arg(json_flag().conflicts_with("sample"))
        .arg(
            Arg::new("sample")
                .long("sample")
                .action(ArgAction::SetTrue)
                .help("Print a commented configuration file with every default"),
        )
        .args(run::flags())
}

fn hostlist_command() -> Command {
    Command::new("hostlist")
        .about("Expand a Slurm host list, or make one")
        .override_usage(
            "steadfast hostlist [--json] LIST...\n       steadfast hostlist --compress HOST...",
        )
        .after_help(HOSTLIST_EXAMPLES)
        .arg(
            Arg::new("list")
                .value_name("LIST")
                .required(true)
                .num_args(1..)
                .value_parser(ValueParser::os_string())
                .help("Hosts, in Slurm's notation; `-` reads standard input"),
        )
        .arg(json_flag().conflicts_with("compress"))
        .arg(
            Arg::new("compress")
                .long("compress")
                .action(ArgAction::SetTrue)
                .help("Print one short list that names each of the hosts once"),
        )
}

fn completions_command() -> Command {
    Command::new("completions")
        .about("Print a completion script")
        .arg(
            Arg::new("shell")
                .value_name("SHELL")
                .required(true)
                .value_parser(clap::value_parser!(clap_complete::Shell))
                .help("The shell that it is for"),
        )
}

fn man_command() -> Command {
    Command::new("man")
        .about("Print the manual page, or write all of them to a directory")
        .arg(
            Arg::new("dir")
                .long("dir")
                .value_name("DIR")
                .help("Write one page for each command to this directory"),
        )
}

pub(super) fn json_flag() -> Arg {
    Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print JSON")
}

fn styles() -> styling::Styles {
    styling::Styles::styled()
        .header(styling::AnsiColor::Green.on_default().bold())
        .usage(styling::AnsiColor::Green.on_default().bold())
        .literal(styling::AnsiColor::Cyan.on_default().bold())
        .placeholder(styling::AnsiColor::Cyan.on_default())
}
