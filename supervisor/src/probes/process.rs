// SPDX-License-Identifier: Apache-2.0
//! A probe as its agent sees it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde::Serialize;
use steadfast_process::channel::{Channel, Received};
use steadfast_process::exit::{Exit, reap};
use steadfast_process::spawn::{SpawnRequest, spawn};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::page::Page;

/// What a probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeKind {
    /// Watching GPUs through the driver's library.
    Nvml,
}

/// A probe that was started. Dropping it closes the line, which asks it to end.
#[derive(Debug)]
pub(crate) struct Probe {
    pid: Pid,
    channel: AsyncFd<Channel>,
    page: Page,
}

impl ProbeKind {
    pub(super) const ALL: [Self; 1] = [Self::Nvml];

    /// What stands on the probe's command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Nvml => "nvml",
        }
    }
}

impl Probe {
    /// Starts a probe; `setup` is the first thing that it reads. To be called on the agent's main thread, whose end the
    /// parent-death signal follows, within its runtime.
    ///
    /// # Errors
    ///
    /// When the process cannot be created.
    pub(crate) fn start(kind: ProbeKind, setup: &impl Serialize) -> io::Result<Probe> {
        let (ours, theirs) = Channel::pair()?;
        let page = Page::create()?;
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        let executable = File::open("/proc/self/exe")?;
        let program = {
            use std::os::fd::AsRawFd;
            format!("/proc/self/fd/{}", executable.as_raw_fd())
        };
        let arguments = ["steadfast".into(), "__probe".into(), kind.name().into()];
        let environment: Vec<_> = std::env::vars_os().collect();
        let spawned = spawn(&SpawnRequest {
            program: Path::new(&program),
            arguments: &arguments,
            environment: &environment,
            directory: Some(Path::new("/")),
            stdio: [page.as_file().as_fd(), null.as_fd(), null.as_fd()],
            descriptor_three: Some(theirs.as_fd()),
            // The terminal's signals are for the job.
            own_session: true,
            parent_death_signal: Some(Signal::SIGKILL),
            core_limit: Some(0),
            cgroup: None,
        })
        .map_err(io::Error::other)?;
        #[expect(
            deprecated,
            reason = "its replacement is unsafe for types that could change their descriptor; ours owns one for good"
        )]
        let channel = AsyncFd::with_interest(ours, Interest::READABLE)?;
        let probe = Probe {
            pid: spawned.pid,
            channel,
            page,
        };
        probe.send(setup);
        Ok(probe)
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn page(&self) -> &Page {
        &self.page
    }

    /// Waits for what the probe says next. `None` means that it is gone. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    ///
    /// When the line cannot be read.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let mut guard = self.channel.readable().await?;
            match guard.get_inner().receive()? {
                Received::Message(message) => return Ok(Some(message.body)),
                Received::Closed => return Ok(None),
                Received::Nothing => guard.clear_ready(),
            }
        }
    }

    /// Tells the probe something. One that does not read (it may be stopped) misses it.
    pub(crate) fn send(&self, message: &impl Serialize) {
        let Ok(body) = serde_json::to_vec(message) else {
            return;
        };
        // That it is gone is told by `next`.
        let _missed = self.channel.get_ref().send(&body, &[]);
    }
}

/// Reaps a probe that was let go, if it has ended.
pub(crate) fn has_ended(pid: Pid) -> Option<Exit> {
    // What cannot be waited for is not waited for.
    reap(pid).unwrap_or(Some(Exit::Code(0)))
}
