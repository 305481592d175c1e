// SPDX-License-Identifier: Apache-2.0
//! The workers of the generation that runs on this node, as the agent sees them.

use std::collections::BTreeMap;

use steadfast_core::{Instant, LocalRank, LossWatch, StallSettings, StallWatch};
use steadfast_health::Lockstep;
use steadfast_health::progress_page::{Page, PagePhase};
use steadfast_process::exit::Exit;
use steadfast_proto::v1;

use super::dispatcher::activity;
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
    /// What is wrong with its loss, in words, as the user was told.
    pub(super) loss_trouble: Option<String>,
    /// The highest step that was seen in it.
    pub(super) step: Option<u64>,
    /// Which steps all workers of this node have made.
    pub(super) lockstep: Lockstep,
    /// Whether it gets on.
    pub(super) stall: StallWatch,
    stall_bounds: StallSettings,
    /// Where that was seen: of several sources, the best so far alone counts.
    step_source: StepSource,
}

/// Where steps are seen, from the worst source to the best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum StepSource {
    #[default]
    Nowhere,
    /// Counted by a process since it began, so that a restart begins anew.
    CountedPage,
    /// Step numbers in the output.
    Output,
    /// The number that the program itself goes by, from its page.
    Page,
}

/// A worker.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) view: WorkerView,
    pub(super) record: Option<ExitRecord>,
    pub(super) step: Option<u64>,
    /// What it is busy with, if it shows that.
    pub(super) phase: Option<PagePhase>,
    /// The process with its leading page, and the signal upon which that writes its stacks.
    pub(super) trains: Option<(u32, Option<u32>)>,
    step_source: StepSource,
    /// Whether the program asks whether a checkpoint is wanted, and at which step it is.
    asks: bool,
    /// Step of the last checkpoint that it has said is done.
    checkpoint_done: Option<u64>,
    pub(super) dying: bool,
    pub(super) unkillable: bool,
    /// Whether its loss is as a loss should be.
    pub(super) losses: LossWatch,
}

impl Generation {
    /// No generation yet; in those to come, these bounds hold.
    pub(super) fn with_bounds(stall_bounds: StallSettings) -> Generation {
        Generation {
            stall_bounds,
            ..Generation::default()
        }
    }

    /// Takes in a worker of this or of a newer generation; those of older ones are of no interest any more.
    pub(super) fn attach(&mut self, view: WorkerView) {
        if view.generation > self.number {
            let bounds = std::mem::take(&mut self.stall_bounds);
            *self = Generation {
                number: view.generation,
                stall: StallWatch::new(bounds.clone(), Instant::from_nanos(view.started_ns)),
                ..Generation::with_bounds(bounds)
            };
        }
        if view.generation == self.number {
            self.stall.joins(LocalRank(view.local_rank));
            let worker = Worker {
                view: view.clone(),
                record: None,
                step: None,
                phase: None,
                trains: None,
                step_source: StepSource::Nowhere,
                asks: false,
                checkpoint_done: None,
                dying: false,
                unkillable: false,
                losses: LossWatch::default(),
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
        self.stall.ended(LocalRank(record.local_rank));
        worker.view.exit = Some(record.exit);
        worker.view.ended_ns = Some(record.at_ns);
        worker.record.replace(record.clone()).is_none()
    }

    /// Takes in a step that a worker has printed. Returns it if it is the highest of the generation so far.
    ///
    /// `at_ns` is when it was made at the earliest, on the monotonic clock.
    pub(super) fn printed(
        &mut self,
        generation: u64,
        local_rank: u32,
        step: u64,
        at_ns: u64,
    ) -> Option<u64> {
        self.stepped(generation, local_rank, (step, at_ns), StepSource::Output)
    }

    /// Takes in a worker's progress page. Returns the step that it shows if that is the highest of the generation so far.
    pub(super) fn shown(&mut self, generation: u64, local_rank: u32, page: &Page) -> Option<u64> {
        if generation != self.number {
            return None;
        }
        if let Some(worker) = self.workers.get_mut(&local_rank) {
            worker.phase = Some(page.phase);
            worker.trains = Some((page.pid, page.stack_signal));
            let is_at = page.step.is_some_and(|step| step.source.is_absolute());
            worker.asks = page.asked_ns.is_some() && is_at;
            worker.checkpoint_done = page.checkpoint_done;
            self.stall.shows(
                LocalRank(local_rank),
                activity(page.phase),
                Instant::from_nanos(page.phase_ns),
                Instant::from_nanos(page.changed_ns),
            );
        }
        let step = page.step?;
        let source = if step.source.is_absolute() {
            StepSource::Page
        } else {
            StepSource::CountedPage
        };
        self.stepped(generation, local_rank, (step.number, step.at_ns), source)
    }

    fn stepped(
        &mut self,
        generation: u64,
        local_rank: u32,
        (step, at_ns): (u64, u64),
        source: StepSource,
    ) -> Option<u64> {
        let worker = self.workers.get_mut(&local_rank);
        let worker = worker.filter(|_| generation == self.number)?;
        if source < worker.step_source {
            return None;
        }
        worker.step_source = source;
        worker.step = Some(step);
        if source < self.step_source {
            return None;
        }
        if source > self.step_source {
            // It may count something else.
            self.step_source = source;
            self.step = None;
            self.lockstep = Lockstep::default();
            self.stall.recount();
        }
        self.lockstep.observe(local_rank, step, at_ns);
        self.stall
            .stepped(LocalRank(local_rank), step, Instant::from_nanos(at_ns));
        let news = self.step.is_none_or(|highest| step > highest);
        if news {
            self.step = Some(step);
        }
        news.then_some(step)
    }

    /// Whether all workers of this node would save at a step that they are given.
    pub(super) fn all_ask(&self) -> bool {
        let asks = |worker: &Worker| worker.asks || worker.ended_well();
        self.workers.values().any(|worker| worker.asks) && self.workers.values().all(asks)
    }

    /// Whether its ranks show what they are busy with.
    pub(super) fn shows_phases(&self) -> bool {
        self.workers.values().any(|worker| worker.phase.is_some())
    }

    /// Whether a step was seen in it.
    pub(super) fn has_trained(&self) -> bool {
        self.step.is_some()
    }

    /// The process of each worker that trains, as far as it is known, else the worker itself.
    pub(super) fn training_processes(&self) -> Vec<i32> {
        let living = self
            .workers
            .values()
            .filter(|worker| worker.view.exit.is_none());
        living
            .map(|worker| match worker.trains {
                Some((pid, _)) => i32::try_from(pid).unwrap_or(worker.view.pid),
                None => worker.view.pid,
            })
            .collect()
    }

    /// Whether all workers, or any, have said that a checkpoint of this step or a later one is done.
    pub(super) fn said_done(&self, step: u64) -> (bool, bool) {
        let done = |worker: &Worker| worker.checkpoint_done.is_some_and(|done| done >= step);
        let workers = self.workers.values();
        (
            !self.workers.is_empty() && workers.clone().all(done),
            workers.clone().any(done),
        )
    }

    /// When the worker of a record was started, on the monotonic clock; 0 for one that is not known.
    pub(super) fn started_ns(&self, record: &ExitRecord) -> u64 {
        let worker = self.workers.get(&record.local_rank);
        worker
            .filter(|worker| worker.view.generation == record.generation)
            .map_or(0, |worker| worker.view.started_ns)
    }

    /// Whether all workers have ended well.
    pub(super) fn is_done(&self) -> bool {
        !self.workers.is_empty() && self.workers.values().all(Worker::ended_well)
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

    fn ended_well(&self) -> bool {
        let record = self.record.as_ref();
        record.is_some_and(|record| record.exit.is_success())
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
            phase: self.phase.map(|phase| phase.name().to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_health::progress_page::{PageStep, StepSource as PageSource};

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

    fn page(step: u64, source: PageSource) -> Page {
        Page {
            pid: 100,
            rank: Some(0),
            local_rank: Some(0),
            generation: 1,
            created_ns: 0,
            stack_signal: None,
            step: Some(PageStep {
                number: step,
                source,
                at_ns: 0,
            }),
            changed_ns: 0,
            phase: PagePhase::Train,
            phase_ns: 0,
            collectives: None,
            checkpoint_request: None,
            asked_ns: None,
            checkpoint_done: None,
            checkpoint_path: None,
            loss: None,
        }
    }

    #[test]
    fn a_newer_generation_replaces_the_older_one_and_not_the_other_way_round() {
        let mut generation = Generation::default();
        generation.attach(view(1, 0));
        assert_eq!(generation.printed(1, 0, 50, 0), Some(50));
        generation.attach(view(2, 0));
        assert_eq!(
            (generation.number, generation.step),
            (2, None),
            "nothing is carried over"
        );
        generation.attach(view(1, 1));
        assert_eq!(generation.workers.len(), 1);
        assert_eq!(
            generation.printed(1, 0, 60, 0),
            None,
            "steps of older generations are late news"
        );
        assert_eq!(generation.shown(1, 0, &page(70, PageSource::Stated)), None);
    }

    #[test]
    fn only_the_highest_step_is_news() {
        let mut generation = Generation::default();
        generation.attach(view(1, 0));
        assert_eq!(generation.printed(1, 0, 5, 0), Some(5));
        assert_eq!(generation.printed(1, 0, 5, 0), None);
        assert_eq!(generation.printed(1, 0, 6, 0), Some(6));
        assert_eq!(generation.status()[0].step, Some(6));
    }

    #[test]
    fn the_best_source_of_steps_wins() {
        let mut generation = Generation::default();
        generation.attach(view(1, 0));
        assert_eq!(
            generation.shown(1, 0, &page(3, PageSource::Counted)),
            Some(3)
        );
        assert_eq!(generation.printed(1, 0, 640, 0), Some(640));
        assert_eq!(generation.shown(1, 0, &page(4, PageSource::Counted)), None);
        // The output may count samples: what it said is forgotten.
        let own = page(105, PageSource::Optimizer);
        assert_eq!(generation.shown(1, 0, &own), Some(105));
        assert_eq!(generation.printed(1, 0, 704, 0), None);
        assert_eq!(
            generation.shown(1, 0, &page(106, PageSource::Stated)),
            Some(106)
        );
        let status = &generation.status()[0];
        assert_eq!(
            (status.step, status.phase.as_deref()),
            (Some(106), Some("train"))
        );
    }
}
