// SPDX-License-Identifier: Apache-2.0
//! The etcd process on this node: started for the place that this node has in the cluster, and again when it dies.
//!
//! The keeper owns the process. What this task knows of it comes from the keeper, so a new agent goes on where its
//! predecessor stopped.

mod death;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use steadfast_process::exit::Exit;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::command::Server;
use super::events::Events;
use super::files::{Files, Place};
use super::layout::Layout;
use super::log::ServerLog;
use crate::keeper::protocol::{CompanionView, Request};
use death::Death;

/// How often the log is carried over, and the data looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between SIGTERM and SIGKILL. etcd hands over its leadership meanwhile.
const GRACE: Duration = Duration::from_secs(3);
/// One that lived as long as this is not in a crash loop.
const STEADY: Duration = Duration::from_secs(30);
/// Deaths in a row that are answered at once.
const FREE_DEATHS: u32 = 2;
/// Longest pause before it is started again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// So many deaths in a row mean that it cannot live with its data.
const HOPELESS: u32 = 6;

/// How the process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Condition {
    /// There is none, or it is about to be started.
    Down,
    /// It runs, for the place with this number.
    Running {
        /// [`Place::number`].
        place: u32,
        /// Whether it has written data.
        has_data: bool,
    },
    /// The data for the place with this number are gone, or of no use.
    DataLost {
        /// [`Place::number`].
        place: u32,
    },
}

/// What the task needs.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) layout: Arc<Layout>,
    pub(super) program: PathBuf,
    pub(super) cluster_token: String,
    pub(super) heartbeat_ms: u32,
    pub(super) files: Files,
    pub(super) log: ServerLog,
    pub(super) events: Events,
    /// The process as the keeper told it last.
    pub(super) view: Option<CompanionView>,
    pub(super) starts: Starts,
}

/// What is remembered from one start to the next.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// The launch that was asked for and not answered yet.
    asked: Option<u64>,
    /// The launch that was asked to stop.
    stopping: Option<u64>,
    last: Option<Instant>,
    next: Option<Instant>,
    deaths_in_a_row: u32,
}

impl Process {
    /// Runs until the agent ends.
    pub(super) async fn run(
        mut self,
        mut views: mpsc::UnboundedReceiver<CompanionView>,
        mut place: watch::Receiver<Option<Place>>,
        condition: watch::Sender<Condition>,
    ) {
        loop {
            let wanted = place.borrow_and_update().clone();
            let now_is = self.step(wanted.as_ref());
            condition.send_if_modified(|before| {
                let changed = *before != now_is;
                *before = now_is;
                changed
            });
            tokio::select! {
                view = views.recv() => match view {
                    Some(view) => self.observe(view),
                    None => return,
                },
                changed = place.changed() => if changed.is_err() { return },
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }

    fn observe(&mut self, view: CompanionView) {
        self.starts.asked = None;
        let was_running = self.running() == Some(view.launch);
        let first_heard = self
            .view
            .as_ref()
            .is_none_or(|known| known.launch < view.launch);
        let ended = view.exit;
        self.view = Some(view);
        if let Some(exit) = ended
            && (was_running || first_heard)
        {
            self.died(exit);
        }
    }

    fn died(&mut self, exit: Exit) {
        let Some(view) = &self.view else { return };
        let wanted = self.starts.stopping.take() == Some(view.launch);
        if wanted {
            self.starts.next = None;
            return;
        }
        let now = Instant::now();
        let steady = self.starts.last.is_none_or(|at| now - at >= STEADY);
        self.starts.deaths_in_a_row = if steady {
            1
        } else {
            self.starts.deaths_in_a_row + 1
        };
        let pause = pause_before_start(self.starts.deaths_in_a_row);
        self.starts.next = Some(now + pause);
        let death = Death::explain(exit, view.spawn_error.as_deref(), &self.log.last_lines());
        self.events.news(
            "etcd.server.died",
            format!(
                "etcd on this node {death}; it is started again{}. Its log: {}",
                if pause.is_zero() { "" } else { " in a moment" },
                self.log.target().display()
            ),
        );
    }

    /// Does what is due, and says how the process is.
    fn step(&mut self, place: Option<&Place>) -> Condition {
        self.log.carry_over();
        if let Some(launch) = self.running() {
            let number = place_of(launch);
            if place.is_none_or(|place| place.number != number) {
                self.stop(launch);
                return Condition::Down;
            }
            return Condition::Running {
                place: number,
                has_data: place.is_some_and(|place| self.files.has_data(place)),
            };
        }
        let Some(place) = place else {
            return Condition::Down;
        };
        if place.has_had_data {
            let is_hopeless = self.starts.deaths_in_a_row >= HOPELESS && self.layout.servers > 1;
            if !self.files.has_data(place) || is_hopeless {
                return Condition::DataLost {
                    place: place.number,
                };
            }
        }
        self.start(place);
        Condition::Down
    }

    /// The launch that runs.
    fn running(&self) -> Option<u64> {
        let view = self.view.as_ref()?;
        (view.pid != 0 && view.exit.is_none()).then_some(view.launch)
    }

    fn stop(&mut self, launch: u64) {
        if self.starts.stopping.replace(launch) == Some(launch) {
            return;
        }
        let grace_ms = u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX);
        self.events
            .ask(Request::StopCompanion { grace_ms }, Vec::new());
    }

    fn start(&mut self, place: &Place) {
        let now = Instant::now();
        if self.starts.asked.is_some() || self.starts.next.is_some_and(|at| now < at) {
            return;
        }
        let last = self.view.as_ref().map_or(0, |view| view.launch);
        if place_of(last) != place.number {
            self.starts.deaths_in_a_row = 0;
        }
        let launch = (last + 1).max(first_launch(place.number));
        let server = Server {
            program: &self.program,
            own: self.layout.own(),
            cluster_token: &self.cluster_token,
            files: &self.files,
            heartbeat_ms: self.heartbeat_ms,
        };
        match self.log.open() {
            Ok(output) => {
                let request = server.request(launch, place);
                self.starts.asked = Some(launch);
                self.starts.last = Some(now);
                self.events
                    .ask(Request::StartCompanion(request), vec![output]);
            }
            Err(error) => {
                self.starts.next = Some(now + LONGEST_PAUSE);
                self.events.news(
                    "etcd.server.not_started",
                    format!(
                        "etcd cannot be started on this node: its log cannot be opened: {error}"
                    ),
                );
            }
        }
    }
}

/// Launches are numbered so that they grow from place to place, and tell the place that they were for.
const LAUNCHES_PER_PLACE: u64 = 1 << 32;

fn first_launch(place: u32) -> u64 {
    u64::from(place) * LAUNCHES_PER_PLACE
}

fn place_of(launch: u64) -> u32 {
    u32::try_from(launch / LAUNCHES_PER_PLACE).unwrap_or(u32::MAX)
}

fn pause_before_start(deaths_in_a_row: u32) -> Duration {
    let beyond = deaths_in_a_row.saturating_sub(FREE_DEATHS);
    if beyond == 0 {
        return Duration::ZERO;
    }
    (Duration::from_millis(100) * 2_u32.saturating_pow(beyond.min(16))).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests;
