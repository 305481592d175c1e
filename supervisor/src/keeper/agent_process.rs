// SPDX-License-Identifier: Apache-2.0
//! The agent as the keeper sees it: started, watched, replaced.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use steadfast_process::channel::{Channel, Received};
use steadfast_process::exit::Exit;
use steadfast_process::spawn::{SpawnRequest, spawn};

use super::protocol::{Notice, Request};

/// An agent that was in charge this long before it died does not count as crash-looping.
const STEADY: Duration = Duration::from_secs(30);
/// Deaths in a row that are answered at once.
const FREE_DEATHS: u32 = 3;
/// Longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The agent's process and the line to it.
#[derive(Debug)]
pub(super) struct AgentProcess {
    executable: File,
    environment: Vec<(OsString, OsString)>,
    watchdog: Duration,
    running: Option<Running>,
    next_start: Option<Instant>,
    /// How many agents were started.
    pub(super) incarnation: u32,
    /// Deaths since an agent was last steady.
    pub(super) deaths_in_a_row: u32,
    /// How the last one ended.
    pub(super) last_death: Option<String>,
}

#[derive(Debug)]
struct Running {
    pid: Pid,
    channel: Channel,
    queue: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    last_heard: Instant,
    in_charge_since: Option<Instant>,
    killed_for_silence: bool,
}

impl AgentProcess {
    /// # Errors
    ///
    /// When the program's own file cannot be opened.
    pub(super) fn new(
        environment: Vec<(OsString, OsString)>,
        watchdog: Duration,
    ) -> io::Result<AgentProcess> {
        Ok(AgentProcess {
            // Held open, so that a package update under a running job does not change what a new agent is.
            executable: File::open("/proc/self/exe")?,
            environment,
            watchdog,
            running: None,
            next_start: None,
            incarnation: 0,
            deaths_in_a_row: 0,
            last_death: None,
        })
    }

    pub(super) fn pid(&self) -> Option<Pid> {
        self.running.as_ref().map(|running| running.pid)
    }

    pub(super) fn is_in_charge(&self) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| running.in_charge_since.is_some())
    }

    /// Starts a new agent. `settings` is handed over as its standard input.
    ///
    /// # Errors
    ///
    /// When the process cannot be created.
    pub(super) fn start(&mut self, settings: &File, now: Instant) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let (ours, theirs) = Channel::pair()?;
        let program = format!("/proc/self/fd/{}", self.executable.as_raw_fd());
        let arguments = ["steadfast".into(), "__agent".into()];
        let (stdout, stderr) = (io::stdout(), io::stderr());
        let spawned = spawn(&SpawnRequest {
            program: Path::new(&program),
            arguments: &arguments,
            environment: &self.environment,
            directory: None,
            stdio: [settings.as_fd(), stdout.as_fd(), stderr.as_fd()],
            descriptor_three: Some(theirs.as_fd()),
            own_session: false,
            // The agent must survive the keeper's death, to end what the kernel does not end by itself.
            parent_death_signal: None,
            core_limit: Some(0),
            cgroup: None,
        })
        .map_err(io::Error::other)?;
        self.incarnation += 1;
        self.next_start = None;
        self.running = Some(Running {
            pid: spawned.pid,
            channel: ours,
            queue: VecDeque::new(),
            last_heard: now,
            in_charge_since: None,
            killed_for_silence: false,
        });
        Ok(())
    }

    /// Takes note that the agent's process was reaped, and plans the next start.
    pub(super) fn died(&mut self, exit: Exit, now: Instant) {
        let Some(running) = self.running.take() else {
            return;
        };
        let steady = running
            .in_charge_since
            .is_some_and(|since| now.duration_since(since) >= STEADY);
        self.deaths_in_a_row = if steady {
            1
        } else {
            self.deaths_in_a_row.saturating_add(1)
        };
        self.last_death = Some(match exit {
            _ if running.killed_for_silence => {
                format!(
                    "was silent for {:.1} s and was replaced",
                    self.watchdog.as_secs_f64()
                )
            }
            Exit::Code(code) => format!("exited with code {code}"),
            Exit::Signal { signal, .. } => format!("was killed by signal {signal}"),
        });
        self.next_start = Some(now + pause_before_start(self.deaths_in_a_row));
    }

    /// A start failed: try again later.
    pub(super) fn start_failed(&mut self, reason: String, now: Instant) {
        self.deaths_in_a_row = self.deaths_in_a_row.saturating_add(1);
        self.last_death = Some(reason);
        self.next_start = Some(now + pause_before_start(self.deaths_in_a_row));
    }

    /// Whether a start is due.
    pub(super) fn should_start(&self, now: Instant) -> bool {
        self.running.is_none() && self.next_start.is_none_or(|at| now >= at)
    }

    /// When something is due: a start, or the end of the agent's silence.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match &self.running {
            Some(running) if !running.killed_for_silence => {
                Some(running.last_heard + self.watchdog)
            }
            Some(_) => None,
            None => self.next_start,
        }
    }

    /// Kills an agent that has been silent for too long.
    pub(super) fn watch(&mut self, now: Instant) {
        let Some(running) = &mut self.running else {
            return;
        };
        if !running.killed_for_silence && now >= running.last_heard + self.watchdog {
            running.killed_for_silence = true;
            // An error means that it is gone already: its reaping follows.
            let _gone_already = kill(running.pid, Signal::SIGKILL);
        }
    }

    /// When something was last heard of the agent that is in charge.
    pub(super) fn heard_in_charge(&self) -> Option<Instant> {
        let running = self.running.as_ref()?;
        running.in_charge_since.map(|_| running.last_heard)
    }

    /// Silence before now does not count: the keeper itself was not running.
    pub(super) fn forgive_silence(&mut self, now: Instant) {
        if let Some(running) = &mut self.running {
            running.last_heard = now;
        }
    }

    pub(super) fn mark_in_charge(&mut self, now: Instant) {
        if let Some(running) = &mut self.running {
            running.in_charge_since.get_or_insert(now);
        }
    }

    pub(super) fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|running| running.channel.as_fd())
    }

    /// Whether notices wait for room in the socket.
    pub(super) fn has_backlog(&self) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| !running.queue.is_empty())
    }

    /// Everything that the agent has asked for. Packets that cannot be understood make it an agent to be replaced.
    pub(super) fn requests(&mut self, now: Instant) -> Vec<(Request, Vec<OwnedFd>)> {
        let mut requests = Vec::new();
        let Some(running) = &mut self.running else {
            return requests;
        };
        loop {
            let message = match running.channel.receive() {
                Ok(Received::Message(message)) => message,
                // Its death is told by the reaping.
                Ok(Received::Nothing | Received::Closed) => return requests,
                Err(_) => break,
            };
            running.last_heard = now;
            match serde_json::from_slice(&message.body) {
                Ok(request) => requests.push((request, message.descriptors)),
                Err(_) => break,
            }
        }
        let _gone_already = kill(running.pid, Signal::SIGKILL);
        requests
    }

    /// Tells the agent something, now or as soon as it reads. Without an agent nothing is kept: the welcome of the next
    /// one says it all.
    pub(super) fn tell(&mut self, notice: &Notice, descriptors: &[BorrowedFd<'_>]) {
        let Some(running) = &mut self.running else {
            return;
        };
        let Ok(body) = serde_json::to_vec(notice) else {
            return;
        };
        if running.queue.is_empty() && matches!(running.channel.send(&body, descriptors), Ok(true))
        {
            return;
        }
        let copies: io::Result<Vec<OwnedFd>> = descriptors
            .iter()
            .map(BorrowedFd::try_clone_to_owned)
            .collect();
        match copies {
            Ok(copies) => running.queue.push_back((body, copies)),
            // Out of descriptors: an agent that misses a notice must be replaced by one that gets a welcome.
            Err(_) => {
                let _gone_already = kill(running.pid, Signal::SIGKILL);
            }
        }
    }

    /// Sends what waited for room.
    pub(super) fn flush(&mut self) {
        let Some(running) = &mut self.running else {
            return;
        };
        while let Some((body, descriptors)) = running.queue.front() {
            let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            match running.channel.send(body, &borrowed) {
                Ok(true) => drop(running.queue.pop_front()),
                Ok(false) => return,
                Err(_) => return running.queue.clear(),
            }
        }
    }
}

fn pause_before_start(deaths_in_a_row: u32) -> Duration {
    let beyond = deaths_in_a_row.saturating_sub(FREE_DEATHS);
    if beyond == 0 {
        return Duration::ZERO;
    }
    (Duration::from_millis(100) * 2_u32.saturating_pow(beyond.min(16))).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_deaths_are_answered_at_once_and_a_crash_loop_is_slowed_down() {
        assert_eq!(pause_before_start(1), Duration::ZERO);
        assert_eq!(pause_before_start(FREE_DEATHS), Duration::ZERO);
        assert_eq!(
            pause_before_start(FREE_DEATHS + 1),
            Duration::from_millis(200)
        );
        assert_eq!(pause_before_start(1_000_000), LONGEST_PAUSE);
    }
}
