// SPDX-License-Identifier: Apache-2.0
//! The agent: everything clever on this node, in a process that may die at any moment.
//!
//! One task, the [`dispatcher`], owns all state; it turns what comes in (notices of the keeper, effects of the decision
//! core, output, requests over the control socket, timers) into requests, records and messages. What it must not
//! forget is in the keeper's hands: workers, exit records, pipes, and the memory file under the embedded store.
//!
//! Invariants:
//! - AG-1: nothing that can hang runs on this task: log files, the journal and the console have threads of their own.
//! - AG-2: an agent that starts anew finds out what is the case before it does anything; it repeats what its predecessor
//!   may not have done, and the keeper does nothing twice.
//! - AG-3: when the keeper is dead, the agent ends what is left of the job and follows.

mod avenger;
mod checkpoints;
mod clocks;
mod control;
mod decisions;
mod dispatcher;
mod dying;
mod ending;
mod exits;
mod fencing;
mod generation;
mod jury;
mod kernel_log;
mod launch;
mod link;
mod machine;
mod membership;
mod node_watch;
pub(crate) mod nvml_watch;
mod pages;
mod peering;
mod ports;
mod resume;
mod saving;
mod saving_costs;
mod self_check;
mod stall;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::sys::signal::Signal;
use steadfast_process::channel::Channel;
use steadfast_process::{memory_file, signals};

use crate::settings::Settings;

/// The keeper's settings fit many times over.
const LARGEST_SETTINGS: u64 = 64 * 1024 * 1024;
/// What a terminal or an impatient user sends to the whole process group is for the keeper.
const FOR_THE_KEEPER: [Signal; 9] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Why an agent could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    /// The line to the keeper is not there, or speaks another language.
    #[error("failed to talk to the keeper")]
    Link(#[source] io::Error),
    /// The settings that the keeper hands over cannot be read.
    #[error("failed to read the settings from the keeper")]
    Settings(#[source] io::Error),
    /// The memory under the job's store cannot be used.
    #[error("failed to open the job's store in the keeper's memory")]
    Store(#[source] Box<steadfast_coord::StoreError>),
    /// The job's own etcd cannot be run on this node.
    #[error("failed to run the job's own etcd")]
    ManagedEtcd(#[source] crate::managed_etcd::ManagedEtcdError),
    /// The decision core's session has ended before the job.
    #[error("the decision core has stopped")]
    Session(#[source] Option<Box<steadfast_coord::SessionError>>),
    /// Something that every process may have was refused.
    #[error("failed to {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The output of the workers cannot be taken on.
    #[error("failed to take on the workers' output")]
    Output(#[source] crate::output::OutputError),
}

/// Runs until the job is over. The keeper starts a new agent when this returns for any other reason.
///
/// # Errors
///
/// [`AgentError`]; the training does not notice.
pub(crate) fn run() -> Result<(), AgentError> {
    let channel = Channel::inherited().map_err(AgentError::Link)?;
    signals::ignore(&FOR_THE_KEEPER).map_err(|source| AgentError::System {
        what: "leave signals to the keeper",
        source,
    })?;
    // For `ps` and `top`. Executed through a descriptor, it would show as a number.
    let _only_a_name = nix::sys::prctl::set_name(c"steadfast-agent");
    let settings = read_settings().map_err(AgentError::Settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()
        .map_err(|source| AgentError::System {
            what: "start the runtime",
            source,
        })?;
    let result = runtime.block_on(dispatcher::run(settings, channel));
    // A thread that hangs on a dead disk must not keep the agent from ending.
    runtime.shutdown_background();
    result
}

fn read_settings() -> io::Result<Settings> {
    let mut file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let text = memory_file::read_all(&mut file, LARGEST_SETTINGS)?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}
