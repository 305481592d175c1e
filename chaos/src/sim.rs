// SPDX-License-Identifier: Apache-2.0
//! A deterministic simulation of whole jobs: the product's decision core in a world in which
//! everything goes wrong.
//!
//! A schedule is drawn from a seed: the job's shape, how fast things go, and which faults happen
//! when. The world runs it in virtual time, and a checker that shares nothing with the core looks
//! at every step. The same seed gives the same run; a schedule can be kept in a file, which
//! outlives changes to how schedules are drawn.
//!
//! What it does not simulate: a store that loses what it has acknowledged, leases that run out
//! while their owner lives, clocks that drift. The core has no fences yet, so a node counts as lost
//! only after longer than any silence here.

mod campaign;
mod checker;
mod event;
mod node;
mod plant;
mod schedule;
mod shrink;
mod store;
#[cfg(test)]
mod tests;
mod world;

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use campaign::{Broken, Campaign};
pub(crate) use plant::Plant;
use schedule::Schedule;
use world::World;

/// What is to be simulated.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) schedules: u64,
    pub(crate) seed: u64,
    pub(crate) nodes: Option<u32>,
    pub(crate) replay: Option<PathBuf>,
    pub(crate) save: Option<PathBuf>,
    pub(crate) trace: bool,
    pub(crate) plant: Option<Plant>,
}

/// Runs the simulations. Says whether every rule was kept.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<bool, Failure> {
    let schedule = match &options.replay {
        Some(path) => Some(read(path)?),
        // One traced schedule is a replay from its seed.
        None if options.trace => Some(Schedule::draw(options.seed, options.nodes)),
        None => None,
    };
    let say = |error| Failure::write("the report", error);
    let Some(schedule) = schedule else {
        let campaign = Campaign::run(options);
        campaign.report(out).map_err(say)?;
        if let Some(broken) = &campaign.broken {
            report_broken(options, broken, out)?;
        }
        return Ok(campaign.broken.is_none());
    };
    let (ending, trace) = World::new(schedule, options.plant, options.trace).run();
    for line in trace {
        writeln!(out, "{line}").map_err(say)?;
    }
    match &ending {
        Ok(ending) => writeln!(
            out,
            "no rule was broken: the job {} after {} generations and {} events",
            ending.outcome, ending.generations, ending.events
        ),
        Err(violation) => writeln!(out, "broken: {}: {}", violation.rule, violation.message),
    }
    .map_err(say)?;
    Ok(ending.is_ok())
}

fn report_broken(options: &Options, broken: &Broken, out: &mut impl Write) -> Result<(), Failure> {
    let say = |error| Failure::write("the report", error);
    let violation = &broken.violation;
    let micros = violation.at % 1_000_000;
    writeln!(
        out,
        "broken: {}: {}\n  seed {}, at {}.{micros:06} s of virtual time",
        violation.rule,
        violation.message,
        broken.seed,
        violation.at / 1_000_000
    )
    .map_err(say)?;
    let nodes = options
        .nodes
        .map_or_else(String::new, |nodes| format!(" --nodes {nodes}"));
    let plant = options
        .plant
        .as_ref()
        .and_then(clap::ValueEnum::to_possible_value);
    let plant = plant.map_or_else(String::new, |plant| {
        format!(" --plant {}", plant.get_name())
    });
    writeln!(
        out,
        "  repeat: steadfast-chaos sim --schedules 1 --seed {}{nodes}{plant}   (add --trace to see every event)",
        broken.seed
    )
    .map_err(say)?;
    let smallest = shrink::shrink(
        Schedule::draw(broken.seed, options.nodes),
        violation,
        options.plant,
    );
    let text = serde_json::to_string(&smallest).unwrap_or_default();
    match &options.save {
        Some(path) => {
            std::fs::write(path, text + "\n")
                .map_err(|error| Failure::write(path.display(), error))?;
            writeln!(
                out,
                "  the smallest schedule that breaks it is in {0}; --replay {0} runs it",
                path.display()
            )
        }
        None => writeln!(
            out,
            "  the smallest schedule that breaks it, for --replay:\n{text}"
        ),
    }
    .map_err(say)
}

fn read(path: &Path) -> Result<Schedule, Failure> {
    let text =
        std::fs::read_to_string(path).map_err(|error| Failure::read(path.display(), error))?;
    Schedule::parse(&text).map_err(|why| Failure::Schedule {
        path: path.to_owned(),
        why,
    })
}
