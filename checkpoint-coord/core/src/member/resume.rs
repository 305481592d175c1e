// SPDX-License-Identifier: Apache-2.0
//! Picking up where an earlier life of the agent stopped: what the store says, corrected by what the keeper has.

use crate::{
    Generation, Instant, KeeperStop, LocalRank, Member, MemberEffect, MemberPhase, MemberRecord,
    RequestKind, WorkerObservation, WorkerState,
};

use super::{Report, TERMINATE, Work};

impl Member {
    pub(super) fn resume(
        &mut self,
        now: Instant,
        workers: Vec<WorkerObservation>,
        stopping: Option<KeeperStop>,
        next_port: u16,
        effects: &mut Vec<MemberEffect>,
    ) {
        if self.resumed {
            return;
        }
        self.resumed = true;
        self.next_port = next_port;
        let record = self.adopt_record(now);
        let fitness = record.as_ref().and_then(|record| record.fitness.clone());
        if self.request.is_none() {
            let kept = self.view.requests();
            let own = kept.filter(|(node, _)| **node == self.settings.node);
            self.request = own.last().map(|(_, request)| request.clone());
        }
        self.last_write = self.view.revision();
        let generation = workers
            .iter()
            .map(|worker| worker.generation)
            .chain(stopping.map(|stop| stop.generation))
            .chain(record.as_ref().and_then(ended_generation))
            // 0 is no generation; a keeper that has started none may still say so.
            .filter(|generation| *generation > Generation(0))
            .max();
        if let Some(generation) = generation {
            let mut work = self.recall(generation, record.as_ref());
            set_stop(&mut work, stopping, record.as_ref());
            let alive = observe(&mut work, now, workers);
            work.stopped = record
                .filter(|record| record.has_stopped(generation))
                .map(|record| record.unkillable)
                .filter(|unkillable| alive.iter().all(|worker| unkillable.contains(worker)));
            self.work = Some(work);
            self.repeat_stop(effects);
        }
        if let Some(fitness) = fitness {
            self.looks.go_on(&fitness, self.work.is_some());
        }
    }

    /// Takes over what our own record says, if it is of this life of the keeper.
    fn adopt_record(&mut self, now: Instant) -> Option<MemberRecord> {
        let node = &self.settings.node;
        let versioned = self.view.member(node)?;
        self.extra.clone_from(&versioned.value.extra);
        if versioned.value.incarnation != self.settings.incarnation {
            return None;
        }
        let record = MemberRecord::clone(&versioned.value);
        self.request.clone_from(&record.request);
        self.asked_at = Some(now);
        if self.checkpoints.is_none() {
            self.checkpoints.clone_from(&record.checkpoints);
        }
        self.unkillable.extend(&record.unkillable);
        if versioned.lease == self.settings.lease {
            self.written = Some(Report {
                findings: self.view.findings(record.generation, node).to_vec(),
                record: record.clone(),
            });
        }
        Some(record)
    }

    fn recall(&self, generation: Generation, record: Option<&MemberRecord>) -> Work {
        let node = &self.settings.node;
        let place = self
            .view
            .plan()
            .filter(|plan| plan.value.generation == generation)
            .and_then(|plan| plan.value.member(node));
        let slots = place.map_or(self.settings.slots, |place| place.slots);
        let base_rank = place.map(|place| place.base_rank).unwrap_or_default();
        let mut work = Work::new(generation, node.clone(), slots, base_rank);
        work.findings = self.view.findings(generation, node).to_vec();
        if let Some(record) = record.filter(|record| record.generation == generation) {
            work.best_step = record.step;
            work.reported_step = record.step;
            work.saving.means = record.can_save;
            work.saving.saved = record.saved;
            work.saving.told_late = record.told_late;
        }
        work
    }

    /// The stop may have been lost with the agent, or its answer: ask again.
    fn repeat_stop(&self, effects: &mut Vec<MemberEffect>) {
        let Some(work) = self.draining() else {
            return;
        };
        let request = self.stop_request().or(self.leave_request());
        let (first_signal, grace) = match request.map(|request| request.kind) {
            Some(
                RequestKind::Stop {
                    signal, grace_ms, ..
                }
                | RequestKind::Leave { signal, grace_ms },
            ) => (signal, self.stop_grace(grace_ms)),
            _ => (TERMINATE, self.settings.restart_grace),
        };
        effects.push(MemberEffect::Stop {
            generation: work.generation,
            first_signal,
            grace,
            reason: "going on with the stop that an earlier agent began".to_owned(),
        });
    }
}

/// The generation that a record says is over or ending; a record of a running one proves nothing about workers.
fn ended_generation(record: &MemberRecord) -> Option<Generation> {
    matches!(record.phase, MemberPhase::Draining | MemberPhase::Stopped)
        .then_some(record.generation)
}

/// Sets when the stop began; must come before any exit is looked at, so that those which the stop caused are told apart.
fn set_stop(work: &mut Work, stopping: Option<KeeperStop>, record: Option<&MemberRecord>) {
    let recorded = record
        .filter(|record| record.generation == work.generation)
        .and_then(|record| record.stop_began);
    let ordered = stopping
        .filter(|stop| stop.generation == work.generation)
        .map(|stop| stop.began);
    work.stop_began = recorded.into_iter().chain(ordered).min();
}

/// Takes in what the keeper has. Says which workers are alive.
fn observe(work: &mut Work, now: Instant, workers: Vec<WorkerObservation>) -> Vec<LocalRank> {
    let mut alive = Vec::new();
    for worker in workers {
        if worker.generation != work.generation {
            continue;
        }
        work.started = true;
        match worker.state {
            WorkerState::Alive => alive.push(worker.local_rank),
            WorkerState::Exited { exit, at, finding } => {
                work.note_exit(worker.local_rank, exit, at, finding);
            }
            WorkerState::SpawnFailed(failure) => work.note_spawn_failure(now, &failure),
        }
    }
    alive
}
