// SPDX-License-Identifier: Apache-2.0
//! Signals to a training process.

use nix::sys::signal::Signal;
use steadfast_process::tree::Process;

use super::{Active, Order};
use crate::failure::Failure;
use crate::scenario::SignalName;
use crate::world::World;

/// Processes that were sent a signal.
#[derive(Debug)]
pub(super) struct Signalled {
    signal: Signal,
    processes: Vec<Process>,
}

/// Sends a signal to the worker.
pub(super) fn inject(signal: SignalName, order: Order<'_>) -> Result<Signalled, Failure> {
    Signalled::send(signal, vec![order.process()?])
}

impl Signalled {
    /// Sends a signal to processes, of which one at least must be there.
    pub(super) fn send(signal: SignalName, processes: Vec<Process>) -> Result<Self, Failure> {
        let signal = system_signal(signal);
        let sent = processes
            .iter()
            .filter(|process| process.signal(signal))
            .count();
        if sent == 0 {
            return Err(Failure::Unexpected(format!(
                "{signal} could not be sent: the process has just ended"
            )));
        }
        Ok(Self { signal, processes })
    }

    fn states(&self) -> Vec<(i32, Option<char>)> {
        let state = |process: &Process| {
            let now = Process::read(process.pid)?;
            (now.start_ticks == process.start_ticks).then_some(now.state)
        };
        self.processes
            .iter()
            .map(|process| (process.pid, state(process)))
            .collect()
    }
}

impl Active for Signalled {
    fn evidence(&mut self, _world: &mut World) -> Result<Option<String>, Failure> {
        let states = self.states();
        let pids: Vec<String> = states.iter().map(|(pid, _)| pid.to_string()).collect();
        let pids = pids.join(", ");
        let all = |such: fn(&Option<char>) -> bool| states.iter().all(|(_, state)| such(state));
        Ok(match self.signal {
            Signal::SIGSTOP => {
                all(|state| matches!(state, Some('T'))).then(|| format!("{pids}: state T"))
            }
            Signal::SIGKILL | Signal::SIGSEGV | Signal::SIGABRT | Signal::SIGBUS => {
                all(|state| matches!(state, None | Some('Z' | 'X')))
                    .then(|| format!("{pids}: dead after {}", self.signal))
            }
            // What a program does upon these is its own affair.
            _ => Some(format!("{} was sent to {pids}", self.signal)),
        })
    }

    fn heal(&mut self, _world: &mut World) -> Result<Option<String>, Failure> {
        if self.signal != Signal::SIGSTOP {
            return Ok(None);
        }
        let going_on = self
            .processes
            .iter()
            .filter(|process| process.signal(Signal::SIGCONT))
            .count();
        Ok(Some(format!(
            "SIGCONT to {going_on} of {}",
            self.processes.len()
        )))
    }
}

/// A signal as the system knows it.
pub(super) fn system_signal(signal: SignalName) -> Signal {
    match signal {
        SignalName::Kill => Signal::SIGKILL,
        SignalName::Term => Signal::SIGTERM,
        SignalName::Int => Signal::SIGINT,
        SignalName::Stop => Signal::SIGSTOP,
        SignalName::Segv => Signal::SIGSEGV,
        SignalName::Abrt => Signal::SIGABRT,
        SignalName::Bus => Signal::SIGBUS,
        SignalName::Usr1 => Signal::SIGUSR1,
        SignalName::Usr2 => Signal::SIGUSR2,
        SignalName::Quit => Signal::SIGQUIT,
    }
}
