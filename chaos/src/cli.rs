// SPDX-License-Identifier: Apache-2.0
//! The command line.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use steadfast_sim::cli::SimArgs;

use crate::bench::recovery::{Fault, LauncherKind};
use crate::bench::{checkpoints, hangs, idle, members, nodes, output, parser, recovery, xid};
use crate::failure::Failure;
use crate::run_command::{self, CODES, Ended, JudgeArgs, RunArgs, StormArgs, ValidateArgs};

/// A rule was broken, or a figure is over its limit.
const BROKEN: u8 = 1;
/// The command line or a file given on it is wrong, or the harness could not do its work.
const USAGE: u8 = 2;
/// The same for the commands that run and judge scenarios, where 2 means that nothing can be said.
const HARNESS: u8 = 3;

#[derive(Debug, Parser)]
#[command(
    name = "steadfast-chaos",
    version,
    about = "Breaks training jobs on purpose, measures and judges the recovery"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run scenarios: real jobs that are broken on purpose, and judged
    #[command(after_help = CODES)]
    Run(RunArgs),
    /// Run a long job through a storm of faults, drawn as large fleets report theirs
    #[command(after_help = CODES)]
    Storm(StormArgs),
    /// Judge histories of runs again
    #[command(after_help = CODES)]
    Judge(JudgeArgs),
    /// Say whether scenario files are right, and where they are not
    Validate(ValidateArgs),
    /// Print the JSON schema of scenario files: every field, and what it means
    Schema,
    /// Say what this machine can do, and what is done instead of what it cannot
    Doctor,
    /// Undo what runs have left behind whose harness was killed
    Clean,
    /// Simulate whole jobs with faults, in virtual time, and check that no rule is broken
    #[command(
        after_help = "Exit codes: 0 no rule was broken, 1 one was, 2 the command line or a file is wrong."
    )]
    Sim(SimArgs),
    /// Measure the real program on this machine
    #[command(subcommand)]
    Bench(BenchCommand),
    /// A process full of members, for `bench members`
    #[command(name = "__members", hide = true)]
    Members(members::GroupOptions),
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// How long from a fault until the job is back, here and under other launchers
    #[command(after_help = BENCH_CODES)]
    Recovery(RecoveryArgs),
    /// What the supervisor costs while nothing happens
    #[command(after_help = BENCH_CODES)]
    Idle(IdleArgs),
    /// How much a worker that writes as fast as it can is slowed down
    #[command(after_help = BENCH_CODES)]
    Output(OutputArgs),
    /// How long a large job takes to agree on what comes after a fault, and what that costs etcd
    #[command(after_help = BENCH_CODES)]
    Members(MembersArgs),
    /// How long a job on several nodes is away when a worker or a node is lost, here and under other launchers
    #[command(after_help = BENCH_CODES)]
    Nodes(NodesArgs),
    /// How long it takes until a hang is explained, and whether the explanation is right
    #[command(after_help = HANGS_CODES)]
    Hangs(HangsArgs),
    /// How long from an error of a GPU until the workers are being stopped
    #[command(after_help = BENCH_CODES)]
    Xid(XidArgs),
    /// How fast lines of a kernel log are understood, and whether broken ones do any harm
    #[command(after_help = PARSER_CODES)]
    Parser(ParserArgs),
    /// How fast checkpoints are looked at, beside reading the same files
    #[command(after_help = BENCH_CODES)]
    Checkpoints(CheckpointsArgs),
}

const PARSER_CODES: &str = "Exit codes: 0 measured, 1 a line brought the reader down, 2 the harness could not do its work.";

const BENCH_CODES: &str = "Exit codes: 0 measured, 1 a limit was broken or output was lost, 2 the harness could not \
                           do its work.";

const HANGS_CODES: &str = "Exit codes: 0 all verdicts were right, 1 one was wrong or something was done that must not be, \
                           2 the harness could not do its work.";

#[derive(Debug, Args)]
struct RecoveryArgs {
    /// Workers of the job
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=512))]
    workers: u32,
    /// Number of faults
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// How a worker is brought down
    #[arg(long, value_enum, default_value_t = Fault::Kill)]
    fault: Fault,
    #[command(flatten)]
    common: CommonArgs,
    /// Python for steadfast's workers; best the one that the others use [default: python3]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Measure this launcher too; torchrun or `ft_launcher` [default: those on PATH]
    #[arg(long, value_name = "NAME=PATH", value_parser = peer)]
    beside: Vec<(LauncherKind, PathBuf)>,
    /// Measure no other launchers
    #[arg(long, conflicts_with = "beside")]
    alone: bool,
    /// Exit with 1 if the median of the last new worker's first instruction is later than this
    #[arg(long, value_name = "MILLISECONDS")]
    at_most_ms: Option<f64>,
    /// Chooses the victims and the moments
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Args)]
struct IdleArgs {
    /// Workers of the job
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=512))]
    workers: u32,
    /// Lines that each worker prints
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    lines_per_second: u32,
    /// How long to watch
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    #[command(flatten)]
    common: CommonArgs,
    /// Exit with 1 if a limit is broken
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Args)]
struct OutputArgs {
    /// How much the worker writes
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    megabytes: u32,
    /// How often it does, each way
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct CheckpointsArgs {
    /// Shards of the checkpoint that is looked at by its headers
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    shards: u32,
    /// Files of the checkpoint of which every byte is read
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    files: u32,
    /// Size of each of them, in MiB
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    megabytes: u32,
    /// How often each is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// Write the files below this directory, whose disk is measured [default: the system's temporary one]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    common: CommonArgs,
    /// Exit with 1 if a limit is broken
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Args)]
struct MembersArgs {
    /// Members of the job
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    members: u32,
    /// Processes that they are spread over
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    processes: u32,
    /// Number of faults
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// Seconds after which etcd forgets a member that is not heard of; each renews its lease three times as often
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=3600))]
    lease: u64,
    /// Use this etcd, such as `etcd://HOST:2379`, without TLS [default: one is started, and removed]
    #[arg(long, value_name = "URI")]
    etcd: Option<String>,
    /// The etcd to start [default: the one on PATH]
    #[arg(long, value_name = "PATH", conflicts_with = "etcd")]
    etcd_program: Option<PathBuf>,
    /// Exit with 1 if the 99th percentile, in the median over all faults, is later than this
    #[arg(long, value_name = "MILLISECONDS")]
    at_most_ms: Option<f64>,
    /// Chooses the members that fail
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct NodesArgs {
    /// What happens [default: everything, one after the other]
    #[arg(long, value_enum, value_delimiter = ',')]
    case: Vec<nodes::Case>,
    /// Number of faults of each kind
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// Workers on each node
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    nproc_per_node: u32,
    #[command(flatten)]
    common: CommonArgs,
    /// Python with PyTorch, for steadfast's workers [default: python3]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// The torchrun to measure too [default: the one on PATH]
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    torchrun: Option<PathBuf>,
    /// The `ft_launcher` to measure too [default: the one on PATH]
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    ft_launcher: Option<PathBuf>,
    /// Measure no other launchers
    #[arg(long, conflicts_with_all = ["torchrun", "ft_launcher"])]
    alone: bool,
    /// How long a job may take to train again after a fault
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    give_up_after: u64,
    /// The etcd to start [default: the one on PATH]
    #[arg(long, value_name = "PATH")]
    etcd_program: Option<PathBuf>,
    /// Chooses the victims and the moments
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Args)]
struct HangsArgs {
    /// What is done to the job [default: everything, one after the other]
    #[arg(long, value_enum, value_delimiter = ',')]
    fault: Vec<hangs::Fault>,
    /// Number of nodes that the four ranks are spread over
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u32).range(1..=2))]
    nodes: Vec<u32>,
    /// What the ranks do
    #[arg(long, value_enum, default_value_t = hangs::Training::Toy)]
    training: hangs::Training,
    /// Number of faults of each kind
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// Least time that a step takes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2)]
    step_time: f64,
    /// How long each job is watched in which nothing must be done; an hour of `--fault uneven` shows whether there are false
    /// alarms
    #[arg(long, value_name = "SECONDS", default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=604_800))]
    watch: u64,
    #[command(flatten)]
    common: CommonArgs,
    /// Python for the workers; `--training ddp` needs one with PyTorch [default: python3]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// The etcd to start, for two nodes [default: the one on PATH]
    #[arg(long, value_name = "PATH")]
    etcd_program: Option<PathBuf>,
    /// Chooses the victims and the moments
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Args)]
struct XidArgs {
    /// Number of errors for each way in
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    #[command(flatten)]
    common: CommonArgs,
    /// The fake of NVIDIA's library [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    fake_nvml: Option<PathBuf>,
    /// The etcd to start [default: the one on PATH]
    #[arg(long, value_name = "PATH")]
    etcd_program: Option<PathBuf>,
    /// Exit with 1 if the drain is published later than this, in the median
    #[arg(long, value_name = "MILLISECONDS")]
    at_most_ms: Option<f64>,
}

#[derive(Debug, Args)]
struct ParserArgs {
    /// Broken lines to read
    #[arg(long, default_value_t = 1_000_000)]
    inputs: u64,
    /// Chooses how lines are broken
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CommonArgs {
    /// The steadfast to measure [default: the one beside this program, else the one on PATH]
    #[arg(long, value_name = "PATH")]
    steadfast: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Reads the command line, does what it says and gives the exit code.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; clap knows which stream is whose.
            let code = if error.use_stderr() { usage() } else { 0 };
            return if error.print().is_ok() {
                code.into()
            } else {
                usage().into()
            };
        }
    };
    let usage = usage();
    let mut out = io::stdout();
    match run(cli.command, &mut out) {
        Ok(Ended::Well) => ExitCode::SUCCESS,
        Ok(Ended::Failed) => BROKEN.into(),
        Ok(Ended::Invalid) => USAGE.into(),
        Ok(Ended::Harness) => HARNESS.into(),
        Err(failure) => {
            // Nobody is left to tell if even this cannot be written.
            drop(writeln!(io::stderr(), "steadfast-chaos: {failure}"));
            usage.into()
        }
    }
}

/// The code for a wrong command line, or a harness that could not do its work.
fn usage() -> u8 {
    let first = std::env::args().nth(1);
    match first.as_deref() {
        None | Some("sim" | "bench" | "__members") => USAGE,
        Some(_) => HARNESS,
    }
}

fn run(command: Command, out: &mut (impl Write + Send)) -> Result<Ended, Failure> {
    match command {
        Command::Run(args) => run_command::run(&args, out),
        Command::Storm(args) => run_command::storm(&args, out),
        Command::Judge(args) => run_command::judge(&args, out),
        Command::Validate(args) => run_command::validate(&args, out),
        Command::Schema => run_command::schema(out),
        Command::Doctor => run_command::examine(out),
        Command::Clean => run_command::clean(out),
        Command::Sim(args) => Ok(measured(steadfast_sim::cli::run(&args, out)?)),
        Command::Bench(BenchCommand::Recovery(args)) => {
            Ok(measured(recovery::run(&args.into(), out)?))
        }
        Command::Bench(BenchCommand::Xid(args)) => Ok(measured(xid::run(&args.into(), out)?)),
        Command::Bench(BenchCommand::Parser(args)) => Ok(measured(parser::run(&args.into(), out)?)),
        Command::Bench(BenchCommand::Idle(args)) => Ok(measured(idle::run(&args.into(), out)?)),
        Command::Bench(BenchCommand::Output(args)) => Ok(measured(output::run(&args.into(), out)?)),
        Command::Bench(BenchCommand::Members(args)) => {
            Ok(measured(members::run(&args.into(), out)?))
        }
        Command::Bench(BenchCommand::Nodes(args)) => Ok(measured(nodes::run(&args.into(), out)?)),
        Command::Bench(BenchCommand::Hangs(args)) => Ok(measured(hangs::run(&args.into(), out)?)),
        Command::Bench(BenchCommand::Checkpoints(args)) => {
            Ok(measured(checkpoints::run(&args.into(), out)?))
        }
        Command::Members(options) => {
            members::run_group(&options)?;
            Ok(Ended::Well)
        }
    }
}

/// What a measurement comes to: whether its limits were kept.
fn measured(held: bool) -> Ended {
    if held { Ended::Well } else { Ended::Failed }
}

/// Reads `NAME=PATH`.
fn peer(text: &str) -> Result<(LauncherKind, PathBuf), String> {
    let (name, path) = text
        .split_once('=')
        .ok_or("write NAME=PATH, such as torchrun=/opt/venv/bin/torchrun")?;
    let path = absolute(path)?;
    let kind = LauncherKind::from_str(name, false)
        .map_err(|_| format!("{name} is neither torchrun nor ft_launcher"))?;
    Ok((kind, path))
}

/// Programs are started in other directories than this one.
fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| error.to_string())
}

impl From<XidArgs> for xid::Options {
    fn from(args: XidArgs) -> Self {
        Self {
            rounds: args.reps,
            steadfast: args.common.steadfast,
            fake_nvml: args.fake_nvml,
            etcd_program: args.etcd_program,
            at_most_ms: args.at_most_ms,
            json: args.common.json,
        }
    }
}

impl From<ParserArgs> for parser::Options {
    fn from(args: ParserArgs) -> Self {
        Self {
            inputs: args.inputs,
            seed: args.seed,
            json: args.json,
        }
    }
}

impl From<RecoveryArgs> for recovery::Options {
    fn from(args: RecoveryArgs) -> Self {
        Self {
            workers: args.workers,
            faults: args.reps,
            fault: args.fault,
            steadfast: args.common.steadfast,
            python: args.python,
            beside: args.beside,
            alone: args.alone,
            at_most_ms: args.at_most_ms,
            seed: args.seed,
            json: args.common.json,
        }
    }
}

impl From<IdleArgs> for idle::Options {
    fn from(args: IdleArgs) -> Self {
        Self {
            workers: args.workers,
            lines_per_second: args.lines_per_second,
            seconds: args.seconds,
            steadfast: args.common.steadfast,
            check: args.check,
            json: args.common.json,
        }
    }
}

impl From<OutputArgs> for output::Options {
    fn from(args: OutputArgs) -> Self {
        Self {
            megabytes: args.megabytes,
            rounds: args.reps,
            steadfast: args.common.steadfast,
            json: args.common.json,
        }
    }
}

impl From<CheckpointsArgs> for checkpoints::Options {
    fn from(args: CheckpointsArgs) -> Self {
        Self {
            shards: args.shards,
            files: args.files,
            megabytes: args.megabytes,
            rounds: args.reps,
            directory: args.directory,
            steadfast: args.common.steadfast,
            check: args.check,
            json: args.common.json,
        }
    }
}

impl From<MembersArgs> for members::Options {
    fn from(args: MembersArgs) -> Self {
        Self {
            members: args.members,
            processes: args.processes,
            faults: args.reps,
            lease: args.lease,
            etcd: args.etcd,
            etcd_program: args.etcd_program,
            at_most_ms: args.at_most_ms,
            seed: args.seed,
            json: args.json,
        }
    }
}

impl From<NodesArgs> for nodes::Options {
    fn from(args: NodesArgs) -> Self {
        Self {
            cases: args.case,
            reps: args.reps,
            workers_per_node: args.nproc_per_node,
            steadfast: args.common.steadfast,
            python: args.python,
            torchrun: args.torchrun,
            ft_launcher: args.ft_launcher,
            alone: args.alone,
            give_up_after: Duration::from_secs(args.give_up_after),
            etcd_program: args.etcd_program,
            seed: args.seed,
            json: args.common.json,
        }
    }
}

impl From<HangsArgs> for hangs::Options {
    fn from(args: HangsArgs) -> Self {
        Self {
            faults: args.fault,
            nodes: args.nodes,
            training: args.training,
            reps: args.reps,
            step_seconds: args.step_time,
            watch: Duration::from_secs(args.watch),
            steadfast: args.common.steadfast,
            python: args.python,
            etcd_program: args.etcd_program,
            seed: args.seed,
            json: args.common.json,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn peers_are_read_by_name_and_path() {
        assert_eq!(
            peer("torchrun=/a/b").unwrap(),
            (LauncherKind::Torchrun, "/a/b".into())
        );
        assert_eq!(peer("ft_launcher=/x").unwrap().0, LauncherKind::FtLauncher);
        assert!(peer("steadfast=/x").is_err() && peer("torchrun").is_err());
    }
}
