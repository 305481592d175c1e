// SPDX-License-Identifier: Apache-2.0
//! Breaks training jobs on purpose: simulations of the decision core, and measurements of the real
//! program.

mod bench;
mod cli;
mod doctor;
mod engine;
mod failure;
mod history;
mod inject;
mod judge;
mod library;
mod report;
mod run_command;
mod scenario;
mod scratch;
mod storm;
mod suite;
mod tools;
mod undo;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
