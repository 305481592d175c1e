// SPDX-License-Identifier: Apache-2.0
//! The workers of the generation that runs on this node, as the agent sees them.

use std::collections::BTreeMap;

use steadfast_process::exit::Exit;
use steadfast_proto::v1;

use crate::keeper::protocol::{ExitRecord, WorkerView};

/// The newest generation that was started on this node.
#[derive(Debug, Default)]
pub(super) struct Generation {
    /// Its number; 0 before the first one.
    pub(super) number: u64,
    /// Its workers, by local rank.
    pub(super) workers: BTreeMap<u32, Worker>,
    /// Whether this node has been told to stop it.
    pub(super) stopping: bool,
    /// Whether nothing of it runs any more.
    pub(super) stopped: bool,
    /// Whether the user has been told of its first failure.
    pub(super) failure_told: bool,
    /// The highest step that was seen in it.
    pub(super) step: Option<u64>,
}

/// A worker.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) view: WorkerView,
    pub(super) record: Option<ExitRecord>,
    pub(super) step: Option<u64>,
    pub(super) dying: bool,
    pub(super) unkillable: bool,
}

impl Generation {
    /// Takes in a worker of this or of a newer generation; those of older ones are of no interest any more.
    pub(super) fn attach(&mut self, view: WorkerView) {
        if view.generation > self.number {
            *self = Generation {
                number: view.generation,
                ..Generation::default()
            };
        }
        if view.generation == self.number {
            let worker = Worker {
                view: view.clone(),
                record: None,
                step: None,
                dying: false,
                unkillable: false,
            };
            self.workers
                .entry(worker.view.local_rank)
                .or_insert(worker)
                .view = view;
        }
    }

    /// Takes in the end of a worker. Returns whether it is news about this generation.
    pub(super) fn ended(&mut self, record: &ExitRecord) -> bool {
        let worker = self.workers.get_mut(&record.local_rank);
        let Some(worker) = worker.filter(|worker| worker.view.generation == record.generation)
        else {
            return false;
        };
        worker.view.exit = Some(record.exit);
        worker.view.ended_ns = Some(record.at_ns);
        worker.record.replace(record.clone()).is_none()
    }

    /// Takes in a step. Returns whether it is the highest of the generation so far.
    pub(super) fn stepped(&mut self, generation: u64, local_rank: u32, step: u64) -> bool {
        if generation != self.number {
            return false;
        }
        if let Some(worker) = self.workers.get_mut(&local_rank) {
            worker.step = Some(step);
        }
        let news = self.step.is_none_or(|highest| step > highest);
        if news {
            self.step = Some(step);
        }
        news
    }

    /// When the worker of a record was started, on the monotonic clock; 0 for one that is not known.
    pub(super) fn started_ns(&self, record: &ExitRecord) -> u64 {
        let worker = self.workers.get(&record.local_rank);
        worker
            .filter(|worker| worker.view.generation == record.generation)
            .map_or(0, |worker| worker.view.started_ns)
    }

    /// Whether its workers run, and nobody has begun to stop them.
    pub(super) fn is_active(&self) -> bool {
        self.number > 0 && !self.stopping && !self.stopped
    }

    /// The workers for a status reply.
    pub(super) fn status(&self) -> Vec<v1::Worker> {
        self.workers.values().map(Worker::status).collect()
    }
}

impl Worker {
    /// How it ended, if it has. A record that an earlier agent has acknowledged is not repeated by the keeper, but what
    /// it said is known from the welcome.
    pub(super) fn exit_record(&self) -> Option<ExitRecord> {
        let view = &self.view;
        let from_welcome = || {
            Some(ExitRecord {
                sequence: 0,
                generation: view.generation,
                rank: view.rank,
                local_rank: view.local_rank,
                pid: view.pid,
                exit: view.exit?,
                spawn_error: view.spawn_error.clone(),
                while_stopping: false,
                at_ns: view.ended_ns?,
            })
        };
        self.record.clone().or_else(from_welcome)
    }

    fn status(&self) -> v1::Worker {
        let (exit_code, signal) = match self.view.exit {
            Some(Exit::Code(code)) => (Some(code), None),
            Some(Exit::Signal { signal, .. }) => (None, Some(signal)),
            None => (None, None),
        };
        let state = match self.view.exit {
            Some(Exit::Code(_)) => "exited",
            Some(Exit::Signal { .. }) => "killed",
            None if self.unkillable => "unkillable",
            None if self.dying => "dying",
            None => "running",
        };
        v1::Worker {
            rank: self.view.rank,
            local_rank: self.view.local_rank,
            pid: u32::try_from(self.view.pid).unwrap_or(0),
            state: state.to_owned(),
            exit_code,
            signal,
            step: self.step,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(generation: u64, local_rank: u32) -> WorkerView {
        WorkerView {
            generation,
            rank: local_rank,
            local_rank,
            pid: 100,
            started_ns: 0,
            exit: None,
            ended_ns: None,
            spawn_error: None,
        }
    }

    #[test]
    fn a_newer_generation_replaces_the_older_one_and_not_the_other_way_round() {
        let mut generation = Generation::default();
        generation.attach(view(1, 0));
        assert!(generation.stepped(1, 0, 50));
        generation.attach(view(2, 0));
        assert_eq!(
            (generation.number, generation.step),
            (2, None),
            "nothing is carried over"
        );
        generation.attach(view(1, 1));
        assert_eq!(generation.workers.len(), 1);
        assert!(
            !generation.stepped(1, 0, 60),
            "steps of older generations are late news"
        );
    }

    #[test]
    fn only_the_highest_step_is_news() {
        let mut generation = Generation::default();
        generation.attach(view(1, 0));
        assert!(generation.stepped(1, 0, 5));
        assert!(!generation.stepped(1, 0, 5));
        assert!(generation.stepped(1, 0, 6));
        assert_eq!(generation.status()[0].step, Some(6));
    }
}
