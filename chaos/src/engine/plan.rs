// SPDX-License-Identifier: Apache-2.0
//! A fault on its way: waiting, due, in force, over.

use super::note;
use crate::failure::Failure;
use crate::history::FaultEvent;
use crate::inject::{Active, Victim};
use crate::scenario::{Fault, Injection};
use crate::world::World;

/// How far a fault is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Stage {
    /// Its moment has not come.
    Waiting,
    /// Its moment has come; the delay runs.
    Due { due_ns: u64 },
    /// It is in force, until it is healed.
    Active { heal_ns: Option<u64> },
    /// It will happen again once the job has recovered.
    Between { injected_ns: u64 },
    /// It is over.
    Over,
}

/// A fault on its way.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) name: String,
    pub(super) fault: Fault,
    pub(super) stage: Stage,
    pub(super) time: u32,
    pub(super) injected_ns: u64,
    pub(super) was_injected: bool,
    pub(super) healed_ns: Option<u64>,
    hits: Vec<Hit>,
}

/// One that was hit.
#[derive(Debug)]
struct Hit {
    active: Box<dyn Active>,
    victim: Victim,
    has_landed: bool,
}

impl Planned {
    pub(super) fn new(index: usize, fault: &Fault) -> Self {
        Self {
            name: fault.name(index),
            fault: fault.clone(),
            stage: Stage::Waiting,
            time: 0,
            injected_ns: 0,
            was_injected: false,
            healed_ns: None,
            hits: Vec::new(),
        }
    }

    /// Whether a node that is off will come back by it.
    pub(super) fn brings_a_node_back(&self) -> bool {
        matches!(self.fault.inject, Injection::Reboot) && matches!(self.stage, Stage::Active { .. })
    }

    pub(super) fn take(&mut self, active: Box<dyn Active>, victim: Victim) {
        self.hits.push(Hit {
            active,
            victim,
            has_landed: false,
        });
    }

    /// Looks for evidence of what has none yet.
    pub(super) fn find_evidence(&mut self, world: &mut World) -> Result<(), Failure> {
        let mut found = Vec::new();
        for hit in self.hits.iter_mut().filter(|hit| !hit.has_landed) {
            // What cannot be looked at now may be later.
            if let Ok(Some(evidence)) = hit.active.evidence(world) {
                hit.has_landed = true;
                found.push((hit.victim.clone(), evidence));
            }
        }
        for (victim, evidence) in found {
            self.note(world, FaultEvent::Landed, &victim, &evidence)?;
        }
        self.move_on();
        Ok(())
    }

    /// Undoes it. What has left no evidence until now never will.
    pub(super) fn heal(&mut self, world: &mut World) -> Result<(), Failure> {
        self.find_evidence(world)?;
        for mut hit in std::mem::take(&mut self.hits) {
            if !hit.has_landed {
                let words = "there is no evidence that it has had any effect";
                self.note(world, FaultEvent::Failed, &hit.victim, words)?;
            }
            match hit.active.heal(world) {
                Ok(Some(words)) => self.note(world, FaultEvent::Healed, &hit.victim, &words)?,
                Ok(None) => {}
                Err(interrupted @ Failure::Interrupted(_)) => return Err(interrupted),
                Err(failure) => {
                    let words = format!("it could not be undone: {failure}");
                    self.note(world, FaultEvent::Failed, &hit.victim, &words)?;
                }
            }
        }
        self.healed_ns = Some(crate::bench::waiting::now_ns());
        self.after_one_time();
        Ok(())
    }

    /// One that stays, and has left its evidence, does not stand in the way of its next time.
    pub(super) fn move_on(&mut self) {
        let all_landed = self.hits.iter().all(|hit| hit.has_landed);
        if self.stage == (Stage::Active { heal_ns: None })
            && all_landed
            && self.time < self.fault.times
        {
            self.hits.clear();
            self.after_one_time();
        }
    }

    fn after_one_time(&mut self) {
        self.stage = if self.time < self.fault.times {
            Stage::Between {
                injected_ns: self.injected_ns,
            }
        } else {
            Stage::Over
        };
    }

    pub(super) fn note(
        &self,
        world: &mut World,
        what: FaultEvent,
        victim: &Victim,
        words: &str,
    ) -> Result<(), Failure> {
        let note = note(world, self, what, victim, words);
        world.recorder.fault(&note)
    }
}
