// SPDX-License-Identifier: Apache-2.0
//! The simulator by itself: the same as `steadfast-chaos sim`, quicker to build.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use steadfast_sim::cli::SimArgs;

/// The command line or a file given on it is wrong.
const USAGE: u8 = 2;

#[derive(Debug, Parser)]
#[command(
    name = "steadfast-sim",
    version,
    about = "Simulates whole jobs with faults, in virtual time, and checks that no rule is broken",
    after_help = "Exit codes: 0 no rule was broken, 1 one was, 2 the command line or a file is wrong."
)]
struct Cli {
    #[command(flatten)]
    sim: SimArgs,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match steadfast_sim::cli::run(&cli.sim, &mut io::stdout().lock()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            // Nobody is left to tell if even this cannot be written.
            drop(writeln!(io::stderr(), "steadfast-sim: {failure}"));
            USAGE.into()
        }
    }
}
