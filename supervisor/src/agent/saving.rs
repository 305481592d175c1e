// SPDX-License-Identifier: Apache-2.0
//! Asking the workers for a checkpoint: what was asked, who waits for the answer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use steadfast_core::{SaveMeans, SaveOrder, SaveOutcome};
use steadfast_process::tree::Process;
use steadfast_proto::v1::CheckpointReply;
use tokio::sync::oneshot;

use super::generation::Generation;
use crate::settings::{Checkpoints, Settings};

/// How long workers that have saved are held back longer than the checkpoint is waited for: the stop must reach them.
const REACH: Duration = Duration::from_secs(2);
/// The same once the stop is on its way.
pub(super) const STOP_ARRIVES: Duration = Duration::from_millis(300);

/// What was asked of the workers.
#[derive(Debug, Default)]
pub(super) struct SaveDesk {
    /// What the decision core was told last of whether they can be asked, and in which generation.
    told: (u64, Option<SaveMeans>),
    /// What is wanted now.
    pub(super) wanted: Option<Wanted>,
    /// Number of the last wish that came over the control socket.
    last_number: u64,
    /// Whoever waits for the answer to one.
    waiting: Vec<(u64, oneshot::Sender<CheckpointReply>)>,
    /// Checkpoints that were made and are not yet known to be on stable storage, with the generation that made them.
    made: BTreeMap<PathBuf, u64>,
}

/// A checkpoint that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The generation that is to make it.
    pub(super) generation: u64,
    /// The first step that will do; 0: any new one.
    pub(super) step: u64,
    /// Whether the decision core has been told that it is there.
    pub(super) is_there: bool,
    /// Whether a worker has said that it is done.
    pub(super) is_said_done: bool,
}

impl SaveDesk {
    /// Looks how the workers can be asked. Returns whether that is news for the decision core.
    pub(super) fn look(&mut self, generation: &Generation, settings: &Settings) -> bool {
        let known = settings.checkpoints.as_ref();
        let needs_no_word = known.is_some_and(Checkpoints::can_ask);
        let means = if needs_no_word && generation.has_trained() {
            Some(SaveMeans::AtOnce)
        } else if generation.all_ask() {
            Some(SaveMeans::AtStep)
        } else {
            None
        };
        let now = (generation.number, means);
        let before = std::mem::replace(&mut self.told, now);
        before != now && (means.is_some() || before.0 == now.0)
    }

    /// Takes in that a generation has made a checkpoint.
    pub(super) fn note_made(&mut self, generation: u64, path: PathBuf) {
        self.made.retain(|_, by| *by == generation);
        self.made.insert(path, generation);
    }

    /// A checkpoint is on stable storage: the generation that made it, if that is the one in hand.
    pub(super) fn made_by(&mut self, generation: u64, path: &Path) -> Option<u64> {
        self.made.remove(path).filter(|by| *by == generation)
    }

    /// How the workers could be asked at the last look.
    pub(super) fn means(&self) -> Option<SaveMeans> {
        self.told.1
    }

    /// Whether the workers of this generation can be asked.
    pub(super) fn can_ask(&self, generation: u64) -> bool {
        self.told.0 == generation && self.told.1.is_some()
    }

    /// A number for another wish.
    pub(super) fn next_number(&mut self, now_ns: u64) -> u64 {
        self.last_number = now_ns.max(self.last_number + 1);
        self.last_number
    }

    /// Keeps whoever waits for the answer to a wish.
    pub(super) fn keep(&mut self, number: u64, reply: oneshot::Sender<CheckpointReply>) {
        self.waiting.push((number, reply));
    }

    /// Answers those who wait for this.
    pub(super) fn answer(&mut self, outcome: &SaveOutcome) {
        let reply = CheckpointReply {
            step: outcome.made,
            message: match outcome.made {
                Some(step) => format!("a checkpoint of step {step} was made"),
                None => "no checkpoint was made in time".to_owned(),
            },
        };
        for (_, waiting) in self.take(|number| number == outcome.number) {
            // Whoever asked may be gone by now.
            drop(waiting.send(reply.clone()));
        }
    }

    /// The workers are being stopped: answers all who still wait.
    pub(super) fn answer_all(&mut self, message: &str) {
        for (_, waiting) in self.take(|_| true) {
            drop(waiting.send(CheckpointReply {
                step: None,
                message: message.to_owned(),
            }));
        }
    }

    fn take(
        &mut self,
        which: impl Fn(u64) -> bool,
    ) -> Vec<(u64, oneshot::Sender<CheckpointReply>)> {
        let all = std::mem::take(&mut self.waiting);
        let (taken, kept) = all.into_iter().partition(|(number, _)| which(*number));
        self.waiting = kept;
        taken
    }
}

/// Until when workers that have saved make no further step, on the monotonic clock; 0: they go on.
pub(super) fn hold_until_ns(order: &SaveOrder, now_ns: u64) -> u64 {
    if order.ends {
        let time = order.within() + REACH;
        now_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    } else {
        0
    }
}

/// Sends the signal upon which the program saves to every rank. Returns how many got it.
pub(super) fn signal_ranks(generation: &Generation, signal: i32) -> usize {
    let Ok(signal) = nix::sys::signal::Signal::try_from(signal) else {
        return 0;
    };
    let pids = generation.training_processes();
    let sent = pids.into_iter().filter(|pid| {
        let process = Process::read(*pid);
        process.is_some_and(|process| process.signal(signal))
    });
    sent.count()
}
