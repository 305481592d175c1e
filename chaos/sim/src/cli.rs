// SPDX-License-Identifier: Apache-2.0
//! The command line of the simulator, here and as a part of `steadfast-chaos`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::campaign::{Broken, Campaign};
use crate::failure::Failure;
use crate::recovery::Recovery;
use crate::schedule::{MOST_NODES, Schedule};
use crate::shrink::shrink;
use crate::world::World;

/// Jobs of more nodes than that are simulated one by one.
const MANY_NODES: u32 = 2_000;

/// What is to be simulated.
#[derive(Debug, Clone, Args)]
pub struct SimArgs {
    /// Number of schedules, each from its own seed [default: 2000; of more than 2000 nodes, one recovery]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub schedules: Option<u64>,
    /// The first seed; the following schedules have the following ones
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of nodes [default: 1 to 8, drawn]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_NODES)))]
    pub nodes: Option<u32>,
    /// Simulate one recovery from the death of one worker, and print what it costs the store and each node
    #[arg(long, conflicts_with_all = ["schedules", "replay", "trace", "save"])]
    pub recovery: bool,
    /// Run the schedule in this file, or all in this folder
    #[arg(long, value_name = "PATH", conflicts_with_all = ["schedules", "seed", "nodes"])]
    pub replay: Option<PathBuf>,
    /// Write the smallest schedule that breaks a rule to this file
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Print every event of the one schedule that --seed or --replay names
    #[arg(long)]
    pub trace: bool,
}

/// The default of `--schedules`.
const SCHEDULES: u64 = 2_000;

/// Runs the simulations. Says whether every rule was kept.
///
/// # Errors
/// When a file cannot be read or written, or the report cannot.
pub fn run(args: &SimArgs, out: &mut impl Write) -> Result<bool, Failure> {
    if let Some(path) = &args.replay {
        return replay_all(path, args.trace, out);
    }
    if args.trace {
        return replay(Schedule::draw(args.seed, args.nodes), true, out);
    }
    let nodes = args.nodes.unwrap_or(1);
    if args.recovery || (nodes > MANY_NODES && args.schedules.is_none()) {
        return recover(nodes, args.seed, out);
    }
    let campaign = Campaign::run(args.schedules.unwrap_or(SCHEDULES), args.seed, args.nodes);
    campaign.report(out).map_err(said)?;
    if let Some(broken) = &campaign.broken {
        report_broken(args, broken, out)?;
    }
    Ok(campaign.broken.is_none())
}

fn recover(nodes: u32, seed: u64, out: &mut impl Write) -> Result<bool, Failure> {
    match Recovery::run(nodes, seed) {
        Ok(recovery) => {
            recovery.report(out).map_err(said)?;
            writeln!(out, "({} events simulated)", recovery.events()).map_err(said)?;
            Ok(true)
        }
        Err(violation) => {
            let (rule, message) = (violation.rule, violation.message);
            writeln!(out, "broken: {rule}: {message}").map_err(said)?;
            Ok(false)
        }
    }
}

fn replay_all(path: &Path, traced: bool, out: &mut impl Write) -> Result<bool, Failure> {
    if !path.is_dir() {
        return replay(read(path)?, traced, out);
    }
    let unreadable = |reason| Failure::Read {
        path: path.to_owned(),
        reason,
    };
    let entries = std::fs::read_dir(path).map_err(unreadable)?;
    let mut files = Vec::new();
    for entry in entries {
        files.push(entry.map_err(unreadable)?.path());
    }
    files.retain(|file| file.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    let mut kept = true;
    for file in files {
        write!(out, "{}: ", file.display()).map_err(said)?;
        kept &= replay(read(&file)?, traced, out)?;
    }
    Ok(kept)
}

fn replay(schedule: Schedule, traced: bool, out: &mut impl Write) -> Result<bool, Failure> {
    let (ending, trace) = World::new(schedule, traced).run();
    for line in trace {
        writeln!(out, "{line}").map_err(said)?;
    }
    match &ending {
        Ok(ending) => writeln!(
            out,
            "no rule was broken: the job {} after {} generations, {} s and {} events",
            ending.outcome,
            ending.generations,
            ending.took / 1_000_000,
            ending.events
        ),
        Err(violation) => writeln!(out, "broken: {}: {}", violation.rule, violation.message),
    }
    .map_err(said)?;
    Ok(ending.is_ok())
}

fn report_broken(args: &SimArgs, broken: &Broken, out: &mut impl Write) -> Result<(), Failure> {
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
    .map_err(said)?;
    let nodes = args
        .nodes
        .map_or_else(String::new, |nodes| format!(" --nodes {nodes}"));
    writeln!(
        out,
        "  repeat: steadfast-chaos sim --schedules 1 --seed {}{nodes}   (add --trace to see every event)",
        broken.seed
    )
    .map_err(said)?;
    let smallest = shrink(Schedule::draw(broken.seed, args.nodes), violation);
    let text = serde_json::to_string(&smallest).unwrap_or_default();
    match &args.save {
        Some(path) => {
            std::fs::write(path, text + "\n").map_err(|reason| Failure::Write {
                what: path.display().to_string(),
                reason,
            })?;
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
    .map_err(said)
}

fn read(path: &Path) -> Result<Schedule, Failure> {
    let text = std::fs::read_to_string(path).map_err(|reason| Failure::Read {
        path: path.to_owned(),
        reason,
    })?;
    Schedule::parse(&text).map_err(|why| Failure::Schedule {
        path: path.to_owned(),
        why,
    })
}

fn said(reason: std::io::Error) -> Failure {
    Failure::Write {
        what: "the report".to_owned(),
        reason,
    }
}
