// SPDX-License-Identifier: Apache-2.0
//! The keeper: the small, single-threaded process that owns the workers.
//!
//! It creates, signals and reaps; it holds the workers' pipes and exit records so that nothing is lost while the agent is
//! replaced; it keeps an agent alive. It decides nothing about the job. The exceptions are a wish to stop that
//! no agent answers in time, which it carries out by itself, and the fence.
//!
//! Invariants:
//! - KE-1: no worker outlives the keeper, and none is stopped because the agent died.
//! - KE-2: an exit record is repeated to every new agent until it was acknowledged.
//! - KE-3: a generation starts only when nothing of an older one is left on this node, but for processes that were
//!   reported as unkillable.
//! - KE-4: nothing here waits: not for `execve`, a log disk, a terminal or the agent.
//! - KE-5: where there is a fence, no worker lives on when the lease has run out and its steps are too old, and none
//!   starts; agent or no agent.

mod agent_process;
pub(crate) mod companion;
mod fence;
mod interrupts;
mod ladder;
mod log_dir;
mod lookout;
mod probes;
pub(crate) mod protocol;
mod rescue;
pub(crate) mod runtime_dir;
mod sight;
mod state;
mod workers;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use steadfast_process::memory_file;
use steadfast_process::signals::Signals;

use self::runtime_dir::{RuntimeDir, RuntimeDirError};
use self::state::Keeper;
use crate::settings::Settings;

/// A step of the loop that took longer than planned by this much means that the keeper was not running.
const LAPSE: Duration = Duration::from_secs(1);

/// Why the keeper could not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeeperError {
    /// No runtime directory.
    #[error(transparent)]
    RuntimeDir(#[from] RuntimeDirError),
    /// The system refused something that every process may have.
    #[error("could not {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// Runs a job to its end. Returns the exit code of `steadfast`.
///
/// # Errors
///
/// [`KeeperError`], before anything was started.
pub(crate) fn run(mut settings: Settings) -> Result<u8, KeeperError> {
    // First of all: a signal that comes earlier just ends a process that has left no trace yet.
    let signals =
        Signals::take_over(&wanted_signals(&settings)).map_err(system("take over the signals"))?;
    log_dir::choose(&mut settings);
    let settings = &settings;
    let runtime_dir = RuntimeDir::create(&settings.runtime_root, &settings.job, &settings.node)?;
    let handed_over = hand_over(settings).map_err(system("write the settings for the agent"))?;
    nix::sys::prctl::set_child_subreaper(true)
        .map_err(|errno| system("become the reaper of orphans")(errno.into()))?;
    let mut keeper =
        Keeper::new(settings, runtime_dir, handed_over).map_err(system("prepare the agent"))?;
    let exit_code = supervise(&mut keeper, &signals);
    keeper.clean_up();
    Ok(exit_code)
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> KeeperError {
    move |source| KeeperError::System { what, source }
}

fn hand_over(settings: &Settings) -> io::Result<File> {
    let text = serde_json::to_vec(settings).map_err(io::Error::other)?;
    memory_file::with_content("steadfast-settings", &text)
}

fn wanted_signals(settings: &Settings) -> Vec<Signal> {
    let mut wanted = vec![
        Signal::SIGCHLD,
        Signal::SIGTSTP,
        Signal::SIGCONT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ];
    wanted.extend(
        settings
            .signals
            .iter()
            .filter_map(|&number| Signal::try_from(number).ok()),
    );
    wanted
}

fn supervise(keeper: &mut Keeper, signals: &Signals) -> u8 {
    let mut planned = Instant::now();
    loop {
        let now = Instant::now();
        if now.saturating_duration_since(planned) > LAPSE {
            keeper.was_away(now.duration_since(planned), now);
        }
        if let Some(exit_code) = keeper.step(now) {
            return exit_code;
        }
        let deadline = keeper.next_deadline();
        planned = deadline.max(now);
        wait(keeper, signals, deadline.saturating_duration_since(now));
        keeper.hold_fence(Instant::now());
        while let Ok(Some(arrived)) = signals.next() {
            keeper.on_signal(arrived.signal, Instant::now());
            // A suspended job stops in there.
            keeper.hold_fence(Instant::now());
        }
        keeper.on_requests(Instant::now());
        if Instant::now() < planned {
            planned = Instant::now();
        }
    }
}

/// Sleeps until a signal, a packet of the agent, or the deadline.
fn wait(keeper: &Keeper, signals: &Signals, timeout: Duration) {
    let mut descriptors = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    if let Some((channel, wants_to_write)) = keeper.agent_channel() {
        let flags = if wants_to_write {
            PollFlags::POLLIN | PollFlags::POLLOUT
        } else {
            PollFlags::POLLIN
        };
        descriptors.push(PollFd::new(channel, flags));
    }
    // Rounded up: a poll that returns just before the deadline would spin.
    let milliseconds = timeout.as_millis().saturating_add(1).min(60_000);
    let timeout = PollTimeout::try_from(i32::try_from(milliseconds).unwrap_or(60_000))
        .unwrap_or(PollTimeout::ZERO);
    // An interrupted or failed poll is a short sleep: the loop looks at everything anyway.
    let _looked_at_anyway = poll(&mut descriptors, timeout);
}
