// SPDX-License-Identifier: Apache-2.0
//! What is left when a job has ended, and what it should have come to.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::bench::waiting::wait_for;
use crate::failure::Failure;
use crate::scenario::Scenario;
use crate::tools::run;
use crate::undo::Undo;
use crate::world::{Layout, Tools, World};

/// How long something may still be there after the supervisors have ended.
const AFTERMATH: Duration = Duration::from_secs(10);

/// The final loss of the default job when nothing happens to it.
pub(super) fn right_loss(
    scenario: &Scenario,
    tools: &Tools,
    layout: &Layout,
) -> Result<Option<String>, Failure> {
    if !tools.command.is_empty() {
        return Ok(None);
    }
    let toy = layout.root.join("shared/train_toy.py");
    let steps = format!("--steps={}", scenario.job.steps);
    let words = [
        "env",
        "-i",
        &tools.python.to_string_lossy(),
        &toy.to_string_lossy(),
        &steps,
        "--step-time=0",
    ];
    let printed = run(&words, "")?;
    let last = printed.lines().last().unwrap_or_default();
    let loss = last
        .rsplit_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'));
    Ok(loss.map(str::to_owned))
}

/// Ends what does not end by itself.
pub(super) fn kill_all(world: &mut World) {
    for node in &mut world.nodes {
        node.is_off = true;
        node.signal_all(Signal::SIGKILL);
    }
}

/// What is there that should not be, once all supervisors have ended.
pub(super) fn leftovers(world: &mut World, was_killed: bool) -> Result<Vec<String>, Failure> {
    let gone = wait_for("the last processes to go", AFTERMATH, || {
        world.look()?;
        let none_runs = world.nodes.iter().all(|node| !node.is_running());
        Ok((none_runs && living(world).is_empty()).then_some(()))
    });
    if let Err(interrupted @ Failure::Interrupted(_)) = gone {
        return Err(interrupted);
    }
    let mut left = living(world);
    // A supervisor that was killed cannot clean up after itself; what it leaves is no fault of its.
    let cannot: BTreeSet<String> = world
        .nodes
        .iter()
        .filter(|node| was_killed || node.endings.last().is_none_or(|ending| ending.off))
        .map(|node| node.name.clone())
        .collect();
    for node in world
        .nodes
        .iter()
        .filter(|node| !cannot.contains(&node.name))
    {
        let entries = fs::read_dir(node.runtime()).into_iter().flatten().flatten();
        let entries = entries.map(|entry| entry.path().display().to_string());
        left.extend(entries.map(|path| format!("{}: {path}", node.name)));
    }
    let cgroups = cgroups(world);
    for (place, (node, cgroup)) in cgroups.iter().enumerate() {
        if !cgroup.exists() {
            continue;
        }
        // Nor can one that was killed before its node came back.
        let is_last = cgroups
            .iter()
            .skip(place + 1)
            .all(|(later, _)| later != node);
        if !cannot.contains(node) && is_last {
            left.push(format!("{node}: {}", cgroup.display()));
        }
        left.extend(
            Undo::RemoveCgroup {
                path: cgroup.clone(),
            }
            .carry_out()
            .err(),
        );
    }
    Ok(left)
}

fn living(world: &World) -> Vec<String> {
    let of_node = |node: &crate::world::node::Node| {
        let mut processes = node.processes();
        processes.retain(|process| !process.is_dead());
        let name = node.name.clone();
        processes
            .into_iter()
            .map(move |process| format!("{name}: process {} ({})", process.pid, process.name))
            .collect::<Vec<_>>()
    };
    world.nodes.iter().flat_map(of_node).collect()
}

/// The cgroups that supervisors have made, as their journals tell, the newest last.
fn cgroups(world: &World) -> Vec<(String, PathBuf)> {
    let started = world
        .journal
        .iter()
        .filter(|line| line.line["kind"] == "job.started");
    started
        .filter_map(|line| {
            Some((
                line.node.clone(),
                PathBuf::from(line.line["cgroup"].as_str()?),
            ))
        })
        .collect()
}
