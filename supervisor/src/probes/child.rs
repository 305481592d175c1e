// SPDX-License-Identifier: Apache-2.0
//! The probe's own side.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use steadfast_health::nvml::{Command, Outlet, Probe, ProbeSettings, Report};
use steadfast_process::channel::{Channel, Received};

use super::page::Page;
use super::process::ProbeKind;
use crate::clock;

/// Between two heartbeats, in milliseconds.
const BEAT_MS: u16 = 1000;
/// How often a report that the agent has no room for is tried again before it is given up, and the pause between.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// How the GPUs are to be watched.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NvmlSetup {
    /// The library; absent for the one that is installed.
    pub(crate) library: Option<PathBuf>,
    /// How often each GPU is looked at.
    pub(crate) every: Duration,
}

/// Why a probe could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// There is no such probe.
    #[error("`{0}` is no probe")]
    Kind(String),
    /// The line to the agent is not there, or speaks another language.
    #[error("failed to talk to the agent")]
    Line(#[source] io::Error),
    /// A thread was refused.
    #[error("failed to start the probe's threads")]
    Threads(#[source] io::Error),
}

/// Runs until the agent closes the line.
///
/// # Errors
///
/// [`ProbeError`]
pub(crate) fn run(kind: &str) -> Result<(), ProbeError> {
    let channel = Channel::inherited().map_err(ProbeError::Line)?;
    let page = Page::inherited().map_err(ProbeError::Line)?;
    let known = ProbeKind::ALL
        .into_iter()
        .find(|known| known.name() == kind);
    let kind = known.ok_or_else(|| ProbeError::Kind(kind.to_owned()))?;
    // For `ps` and `top`.
    let _only_a_name = nix::sys::prctl::set_name(c"steadfast-probe");
    let line = Arc::new(Line { channel, page });
    match kind {
        ProbeKind::Nvml => nvml(&line),
    }
}

fn nvml(line: &Arc<Line>) -> Result<(), ProbeError> {
    let Some(setup) = line.next::<NvmlSetup>().map_err(ProbeError::Line)? else {
        return Ok(());
    };
    let settings = ProbeSettings {
        library: setup.library,
        every: setup.every,
        clock: clock::monotonic_ns,
    };
    let outlet: Arc<dyn Outlet> = Arc::<Line>::clone(line);
    let probe = Probe::start(settings, outlet).map_err(ProbeError::Threads)?;
    while let Some(command) = line.next::<Command>().map_err(ProbeError::Line)? {
        probe.command(&command);
    }
    // Its threads end with the process, wherever they are.
    Ok(())
}

/// The line to the agent.
struct Line {
    channel: Channel,
    page: Page,
}

impl Line {
    /// Waits for the agent's next word, while the heart beats. `None` when the agent is gone or wants no more.
    fn next<Message: DeserializeOwned>(&self) -> io::Result<Option<Message>> {
        loop {
            self.page.beat(clock::monotonic_ns());
            match self.channel.receive()? {
                Received::Message(message) => {
                    return serde_json::from_slice(&message.body).map_err(io::Error::other);
                }
                Received::Closed => return Ok(None),
                Received::Nothing => {
                    let mut ready = [PollFd::new(self.channel.as_fd(), PollFlags::POLLIN)];
                    // An interrupted poll is a short one.
                    let _looked_at_anyway = poll(&mut ready, PollTimeout::from(BEAT_MS));
                }
            }
        }
    }
}

impl Outlet for Line {
    fn report(&self, report: &Report) {
        let Ok(body) = serde_json::to_vec(report) else {
            return;
        };
        for _ in 0..TRIES {
            match self.channel.send(&body, &[]) {
                Ok(false) => std::thread::park_timeout(PAUSE),
                // An agent that is gone takes this process with it.
                Ok(true) | Err(_) => return,
            }
        }
    }

    fn begin(&self, slot: usize, call: &'static str) {
        self.page.begin(slot, call, clock::monotonic_ns());
    }

    fn end(&self, slot: usize) {
        self.page.end(slot);
    }
}
