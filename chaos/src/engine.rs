// SPDX-License-Identifier: Apache-2.0
//! Runs a scenario: starts the job, waits for each fault's moment, breaks things, heals them, and writes all of it down.

mod aftermath;
mod moment;
mod plan;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use self::moment::Seen;
use self::plan::{Planned, Stage};
use crate::bench::waiting::{now_ns, pause};
use crate::failure::Failure;
use crate::history::{End, FaultEvent, FaultNote, Run, StatusNote, write_json};
use crate::inject::{self, Order, Victim};
use crate::scenario::Source;
use crate::undo::{self, UndoJournal};
use crate::world::{Tools, World};

/// Between two looks.
const TURN: Duration = Duration::from_millis(10);
/// Between two searches for evidence, which can be dear.
const EVIDENCE_EVERY_NS: u64 = 200_000_000;

/// Runs a scenario, and leaves its history in that directory. Gives what could not be undone.
pub(crate) fn run(
    source: &Source,
    tools: &Tools,
    (name, stop): (&str, &AtomicBool),
    history: &Path,
) -> Result<Vec<String>, Failure> {
    let undo = UndoJournal::begin(&undo::default_directory(), name)?;
    let mut world = match World::new(&source.scenario, tools, name, undo) {
        Ok(world) => world,
        Err(failure) => {
            // Half a world: what is written down of it is undone.
            let left = undo::clean_own(&undo::default_directory(), name);
            return Err(match left.as_slice() {
                [] => failure,
                left => {
                    Failure::Unexpected(format!("{failure}; and left behind: {}", left.join("; ")))
                }
            });
        }
    };
    let driven = Engine::new(source, tools, stop).drive(&mut world, name);
    let left = world.end(Some(history))?;
    driven?;
    Ok(left)
}

/// What is going on.
struct Engine<'a> {
    source: &'a Source,
    tools: &'a Tools,
    /// Set when somebody else has been told to end.
    stop: &'a AtomicBool,
    planned: Vec<Planned>,
    began_ns: u64,
    status_of: u64,
    evidence_ns: u64,
}

impl<'a> Engine<'a> {
    fn new(source: &'a Source, tools: &'a Tools, stop: &'a AtomicBool) -> Self {
        let faults = source.scenario.faults.iter().enumerate();
        Self {
            source,
            tools,
            stop,
            planned: faults
                .map(|(index, fault)| Planned::new(index, fault))
                .collect(),
            began_ns: now_ns(),
            status_of: 1,
            evidence_ns: 0,
        }
    }

    /// From the start of the job to its end.
    fn drive(&mut self, world: &mut World, name: &str) -> Result<(), Failure> {
        crate::bench::launch::write(
            &world.layout.history.join("scenario.toml"),
            &self.source.text,
        )?;
        self.began_ns = now_ns();
        write_json(
            &world.layout.history.join("run.json"),
            &Run {
                scenario: self.source.name.clone(),
                mark: name.to_owned(),
                mode: if world.host(0).is_ok() {
                    "namespaces"
                } else {
                    "loopback"
                }
                .to_owned(),
                began_ns: self.began_ns,
                command: self
                    .tools
                    .command
                    .iter()
                    .map(|word| word.to_string_lossy().into_owned())
                    .collect(),
            },
        )?;
        for index in 0..world.nodes.len() {
            world.start_node(index)?;
        }
        let timed_out = self.until_the_end(world)?;
        self.wind_up(world)?;
        if timed_out {
            aftermath::kill_all(world);
        }
        let leftovers = aftermath::leftovers(world, timed_out)?;
        world.look()?;
        // It can take as long as the job itself, less its pauses: not for a job that has not come to an end.
        let right_loss = if world.life.has_finished {
            aftermath::right_loss(&self.source.scenario, self.tools, &world.layout)?
        } else {
            None
        };
        let end = End {
            monotonic_ns: now_ns(),
            endings: world
                .nodes
                .iter()
                .flat_map(|node| node.endings.clone())
                .collect(),
            timed_out,
            leftovers,
            right_loss,
            steps: self
                .tools
                .command
                .is_empty()
                .then_some(self.source.scenario.job.steps),
        };
        write_json(&world.layout.history.join("end.json"), &end)
    }

    /// Gives whether the time ran out.
    fn until_the_end(&mut self, world: &mut World) -> Result<bool, Failure> {
        let limit_ns = self
            .source
            .scenario
            .limit_seconds
            .saturating_mul(1_000_000_000);
        loop {
            world.look()?;
            self.turn(world)?;
            self.ask_for_status(world)?;
            let comes_back = self.planned.iter().any(Planned::brings_a_node_back);
            if !comes_back && world.nodes.iter().all(|node| !node.is_running()) {
                return Ok(false);
            }
            if now_ns() > self.began_ns + limit_ns {
                return Ok(true);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(Failure::Interrupted("another thread"));
            }
            pause(TURN)?;
        }
    }

    /// Moves every fault on.
    fn turn(&mut self, world: &mut World) -> Result<(), Failure> {
        let now = now_ns();
        let look_for_evidence = now >= self.evidence_ns + EVIDENCE_EVERY_NS;
        if look_for_evidence {
            self.evidence_ns = now;
        }
        for index in 0..self.planned.len() {
            let seen = Seen::of(world, &self.planned, now);
            let Some(planned) = self.planned.get_mut(index) else {
                continue;
            };
            let fault = &planned.fault;
            match planned.stage {
                Stage::Waiting => {
                    if moment::has_come(&fault.at, &seen) {
                        let drawn = world.random.below(1_000_000);
                        let jitter = fault.jitter_seconds * fraction(drawn);
                        let due_ns = now + nanos(fault.delay_seconds + jitter);
                        planned.stage = Stage::Due { due_ns };
                    }
                }
                Stage::Due { due_ns } if now >= due_ns => self.begin(index, world)?,
                Stage::Due { .. } | Stage::Over => {}
                Stage::Active { heal_ns } => {
                    if look_for_evidence {
                        planned.find_evidence(world)?;
                    }
                    if heal_ns.is_some_and(|heal_ns| now >= heal_ns) {
                        planned.heal(world)?;
                    }
                }
                Stage::Between { injected_ns } => {
                    if seen.last_step_ns > injected_ns && seen.is_stepping {
                        planned.stage = Stage::Waiting;
                    }
                }
            }
        }
        Ok(())
    }

    /// Injects a fault whose time has come.
    fn begin(&mut self, index: usize, world: &mut World) -> Result<(), Failure> {
        let Some(planned) = self.planned.get_mut(index) else {
            return Ok(());
        };
        let fault = planned.fault.clone();
        if fraction(world.random.below(1_000_000)) >= fault.probability {
            planned.stage = Stage::Over;
            return planned.note(
                world,
                FaultEvent::LeftOut,
                &Victim::default(),
                "chance decided so",
            );
        }
        let victims = if fault.inject.hits_no_node() {
            vec![Victim::default()]
        } else {
            world.victims(&fault.on, fault.inject.hits_a_worker())?
        };
        if victims.is_empty() {
            // Somebody who fits may come.
            return Ok(());
        }
        planned.time += 1;
        planned.injected_ns = now_ns();
        planned.was_injected = true;
        for (number, victim) in victims.into_iter().enumerate() {
            let id = format!("{}/{}/{number}", planned.name, planned.time);
            let order = Order {
                id: &id,
                victim: &victim,
            };
            planned.note(world, FaultEvent::Injected, &victim, "begins")?;
            match inject::inject(&fault.inject, order, world) {
                Ok(active) => planned.take(active, victim),
                Err(interrupted @ Failure::Interrupted(_)) => return Err(interrupted),
                Err(failure) => {
                    planned.note(world, FaultEvent::Failed, &victim, &failure.to_string())?;
                }
            }
        }
        let heal_ns = fault
            .heal_after_seconds
            .map(|seconds| now_ns() + nanos(seconds));
        planned.stage = Stage::Active { heal_ns };
        planned.find_evidence(world)?;
        planned.move_on();
        Ok(())
    }

    /// After each restart a supervisor is asked what it thinks that was.
    fn ask_for_status(&mut self, world: &mut World) -> Result<(), Failure> {
        let generation = world.life.generation();
        if generation <= self.status_of {
            return Ok(());
        }
        self.status_of = generation;
        let (_, node) = world.life.ranks().into_iter().next().unwrap_or((0, ""));
        let node = node.to_owned();
        let Some(index) = world.place_of(&node) else {
            return Ok(());
        };
        // A supervisor that cannot answer at the moment is none to judge by; its words are in its journal.
        if let Ok(answer) = world.ask(index, &["status", "--json"])
            && let Ok(status) = serde_json::from_str(&answer)
        {
            world.recorder.status(&StatusNote {
                monotonic_ns: now_ns(),
                node,
                status,
            })?;
        }
        Ok(())
    }

    /// The job is over: what is broken still is healed, and what never happened is told.
    fn wind_up(&mut self, world: &mut World) -> Result<(), Failure> {
        for planned in &mut self.planned {
            match planned.stage {
                Stage::Active { .. } => {
                    planned.find_evidence(world)?;
                    planned.heal(world)?;
                }
                Stage::Waiting | Stage::Due { .. } if !planned.was_injected => {
                    let nobody = Victim::default();
                    planned.note(
                        world,
                        FaultEvent::NeverDue,
                        &nobody,
                        "its moment never came",
                    )?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A note of a fault.
fn note(
    world: &World,
    planned: &Planned,
    what: FaultEvent,
    victim: &Victim,
    words: &str,
) -> FaultNote {
    let node = victim.node.and_then(|index| world.nodes.get(index));
    FaultNote {
        fault: planned.name.clone(),
        inject: planned.fault.inject.name(),
        time: planned.time,
        monotonic_ns: now_ns(),
        what,
        node: node.map(|node| node.name.clone()),
        rank: victim.rank,
        pid: victim.pid,
        words: words.to_owned(),
    }
}

/// Seconds as nanoseconds; scenario files are checked for senseless ones.
fn nanos(seconds: f64) -> u64 {
    let duration = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

/// A millionth as a fraction.
fn fraction(millionths: u64) -> f64 {
    Duration::from_micros(millionths).as_secs_f64()
}

/// Nanoseconds as seconds.
pub(crate) fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}
