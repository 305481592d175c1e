// SPDX-License-Identifier: Apache-2.0
//! Breaks training jobs on purpose: simulations of the decision core, and measurements of the real
//! program.

mod bench;
mod cli;
mod failure;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
