// SPDX-License-Identifier: Apache-2.0
//! The program: keeps a distributed training job running.
//!
//! One binary, four roles: what a person starts parses the command line ([`cli`], [`config`], [`settings`]) and
//! becomes the [`keeper`] of a job; the keeper starts the binary again as the job's [`agent`], and that starts it as a
//! probe ([`probes`]) for what can hang; and [`control`] talks to the agent of a running job.

mod agent;
mod check_command;
mod checkpoint_command;
mod cli;
mod clock;
mod config;
mod console_line;
mod control;
mod detach;
mod diagnose;
mod evidence;
mod exit_code;
mod fault_book;
mod health_service;
mod hook;
mod journal;
mod keeper;
mod managed_etcd;
mod output;
#[expect(
    dead_code,
    reason = "events of streams say when they happened and whom they mean, whether or not anybody asks"
)]
mod peers;
mod plan_command;
mod probes;
mod program_call;
mod redact;
mod settings;
mod slurm;
mod span;
mod summary;
mod torchrun;
mod xid_command;

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use crate::cli::Invocation;
use crate::console_line::say;
use crate::keeper::KeeperError;

fn main() -> ExitCode {
    let host = match config::Host::current() {
        Ok(host) => host,
        Err(error) => return ExitCode::from(cli::Failure::from(error).report()),
    };
    let arguments: Vec<_> = std::env::args_os().collect();
    match cli::parse(&host, &arguments) {
        Ok(Invocation::Run(settings)) => match keeper::run(*settings) {
            Ok(code) => ExitCode::from(code),
            Err(error @ KeeperError::RuntimeDir(_)) => {
                fail(&error, exit_code::ExitCode::Configuration)
            }
            Err(error @ KeeperError::System { .. }) => {
                fail(&error, exit_code::ExitCode::Infrastructure)
            }
        },
        Ok(Invocation::Agent) => match agent::run() {
            Ok(()) => ExitCode::SUCCESS,
            // For the keeper alone to see.
            Err(error) => fail(&error, exit_code::ExitCode::Infrastructure),
        },
        Ok(Invocation::Probe(kind)) => match probes::run(&kind) {
            Ok(()) => ExitCode::SUCCESS,
            // For the agent alone to see.
            Err(error) => fail(&error, exit_code::ExitCode::Infrastructure),
        },
        Ok(Invocation::Control(request)) => control::command::run(&request),
        Ok(Invocation::HostList(request)) => {
            ExitCode::from(slurm::hostlist::command::run(&request))
        }
        Ok(Invocation::Check(request)) => ExitCode::from(check_command::run(&request)),
        Ok(Invocation::CheckWork(words)) => ExitCode::from(check_command::do_work(&words)),
        Ok(Invocation::Checkpoint(request)) => ExitCode::from(checkpoint_command::run(&request)),
        Ok(Invocation::Health(request)) => ExitCode::from(health_service::run(&host, &request)),
        Ok(Invocation::Slurm(request)) => ExitCode::from(slurm::hooks::run(&host, &request)),
        Ok(Invocation::Diagnose(request)) => ExitCode::from(diagnose::run(&request)),
        Ok(Invocation::Plan(request)) => ExitCode::from(plan_command::run(&request)),
        Ok(Invocation::Xid(request)) => ExitCode::from(xid_command::run(&request)),
        Ok(Invocation::Print(text)) => {
            // A reader that went away (`| head`) is no failure.
            drop(std::io::stdout().write_all(text.as_bytes()));
            ExitCode::SUCCESS
        }
        Err(failure) => ExitCode::from(failure.report()),
    }
}

/// Says an error with all that led to it.
fn fail(error: &dyn Error, code: exit_code::ExitCode) -> ExitCode {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    say(&format!("error: {text}"));
    ExitCode::from(code as u8)
}
