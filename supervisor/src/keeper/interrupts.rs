// SPDX-License-Identifier: Apache-2.0
//! Signals by which somebody wants the job to end, and what the keeper does when no agent takes care of them.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

/// How long an agent may take to begin with the stop that a signal asks for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Launchers around us pass on a Ctrl-C that the terminal has already sent: that is not a second one.
const ECHO: Duration = Duration::from_millis(250);

/// The signals so far.
#[derive(Debug, Default)]
pub(super) struct Interrupts {
    received: Vec<i32>,
    last_at: Option<Instant>,
    unanswered_since: Option<Instant>,
    /// Until when the agent wants to wait with the stop.
    postponed_until: Option<Instant>,
}

/// What a signal means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Begin to stop in good order.
    Stop,
    /// Somebody insists: end everything now.
    KillNow,
    /// The same wish again.
    Repeated,
}

impl Interrupts {
    pub(super) fn receive(&mut self, signal: Signal, now: Instant) -> Meaning {
        let echo = self.last_at.is_some_and(|at| now.duration_since(at) < ECHO);
        let first = self.received.is_empty();
        if !echo || first {
            self.received.push(signal as i32);
            self.last_at = Some(now);
        }
        match signal {
            _ if first => {
                self.unanswered_since = Some(now);
                Meaning::Stop
            }
            // A scheduler may repeat SIGTERM; only a person at a keyboard means "at once" by it.
            Signal::SIGINT if !echo => Meaning::KillNow,
            _ => Meaning::Repeated,
        }
    }

    pub(super) fn received(&self) -> &[i32] {
        &self.received
    }

    /// The agent has begun to stop the workers.
    pub(super) fn answered(&mut self) {
        self.unanswered_since = None;
    }

    /// The agent takes care of it, but waits with the stop until then at the latest. Only the first such word counts: however
    /// often agents are replaced, the stop comes.
    pub(super) fn postponed(&mut self, until: Instant) {
        self.postponed_until.get_or_insert(until);
    }

    /// When the keeper itself must act, if nothing happens until then.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.unanswered_since
            .map(|since| self.postponed_until.unwrap_or(since + PATIENCE))
    }

    /// The first signal, if the agent's time to act on it is over. Says so once.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Option<i32> {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            self.unanswered_since = None;
            return self.received.first().copied();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_second_ctrl_c_that_is_no_echo_kills_at_once() {
        let start = Instant::now();
        let mut interrupts = Interrupts::default();
        assert_eq!(interrupts.receive(Signal::SIGINT, start), Meaning::Stop);
        assert_eq!(
            interrupts.receive(Signal::SIGINT, start + ECHO / 2),
            Meaning::Repeated
        );
        assert_eq!(
            interrupts.receive(Signal::SIGTERM, start + ECHO * 2),
            Meaning::Repeated
        );
        assert_eq!(
            interrupts.receive(Signal::SIGINT, start + ECHO * 4),
            Meaning::KillNow
        );
    }

    #[test]
    fn the_keeper_acts_once_when_no_agent_does() {
        let start = Instant::now();
        let mut interrupts = Interrupts::default();
        interrupts.receive(Signal::SIGTERM, start);
        assert_eq!(interrupts.take_overdue(start + PATIENCE / 2), None);
        assert_eq!(
            interrupts.take_overdue(start + PATIENCE),
            Some(Signal::SIGTERM as i32)
        );
        assert_eq!(interrupts.take_overdue(start + PATIENCE * 2), None);
        interrupts.receive(Signal::SIGTERM, start);
        interrupts.answered();
        assert_eq!(interrupts.deadline(), None);
    }

    #[test]
    fn a_stop_can_be_postponed_once() {
        let start = Instant::now();
        let mut interrupts = Interrupts::default();
        interrupts.receive(Signal::SIGTERM, start);
        interrupts.postponed(start + PATIENCE * 4);
        interrupts.postponed(start + PATIENCE * 8);
        assert_eq!(interrupts.take_overdue(start + PATIENCE * 2), None);
        let sigterm = Some(Signal::SIGTERM as i32);
        assert_eq!(interrupts.take_overdue(start + PATIENCE * 4), sigterm);
    }
}
