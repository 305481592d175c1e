// SPDX-License-Identifier: Apache-2.0
//! The command line.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::failure::Failure;
use crate::sim::{self, Plant};

/// A rule was broken, or a figure is over its limit.
const BROKEN: u8 = 1;
/// The command line or a file given on it is wrong, or the harness could not do its work.
const USAGE: u8 = 2;

#[derive(Debug, Parser)]
#[command(name = "steadfast-chaos", version, about = "Breaks training jobs on purpose, measures and judges the recovery")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Simulate whole jobs with faults, in virtual time, and check that no rule is broken
    #[command(after_help = "Exit codes: 0 no rule was broken, 1 one was, 2 the command line or a file is wrong.")]
    Sim(SimArgs),
}

#[derive(Debug, Args)]
struct SimArgs {
    /// Number of schedules, each from its own seed
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    schedules: u64,
    /// The first seed; the following schedules have the following ones
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of nodes [default: 1 to 5, drawn]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    nodes: Option<u32>,
    /// Run the schedule in this file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["schedules", "seed", "nodes"])]
    replay: Option<PathBuf>,
    /// Write the smallest schedule that breaks a rule to this file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Print every event of the one schedule that --seed or --replay names
    #[arg(long)]
    trace: bool,
    /// Put a bug into the world, to see it caught
    #[arg(long, value_name = "BUG", hide = true)]
    plant: Option<Plant>,
}

/// Reads the command line, does what it says and gives the exit code.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; clap knows which stream is whose.
            let code = if error.use_stderr() { USAGE } else { 0 };
            return if error.print().is_ok() { code.into() } else { USAGE.into() };
        }
    };
    let mut out = io::stdout().lock();
    match run(cli.command, &mut out) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => BROKEN.into(),
        Err(failure) => {
            // Nobody is left to tell if even this cannot be written.
            drop(writeln!(io::stderr(), "steadfast-chaos: {failure}"));
            USAGE.into()
        }
    }
}

fn run(command: Command, out: &mut impl Write) -> Result<bool, Failure> {
    match command {
        Command::Sim(args) => sim::run(
            &sim::Options {
                schedules: args.schedules,
                seed: args.seed,
                nodes: args.nodes,
                replay: args.replay,
                save: args.save,
                trace: args.trace,
                plant: args.plant,
            },
            out,
        ),
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
}
