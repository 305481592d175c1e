// SPDX-License-Identifier: Apache-2.0
//! From incidents to causes: what is made good again, whose process or GPU it is, and what cannot have been it.

use std::collections::BTreeSet;

use steadfast_health::kernel_log::{Known, SystemKind, What};
use steadfast_health::xid::rank_in_incident;

use super::{Told, meaning};
use crate::answer::{Action, Class, Culprit};
use crate::context::Context;
use crate::logs::Candidate;

/// The most lines that are quoted of one incident.
const QUOTED: usize = 6;
/// A job whose last step is no older than that many steps goes on.
const MOVING_STEPS: f64 = 3.0;

/// One candidate for each incident that happened while the job ran.
pub(super) fn candidates(incidents: &[Vec<Told>], context: &Context) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for incident in incidents {
        if let Some(candidate) = candidate(incident, context) {
            found.push(candidate);
        }
    }
    gather(found)
}

fn candidate(incident: &[Told], context: &Context) -> Option<Candidate> {
    let open: Vec<&Told> = incident
        .iter()
        .filter(|told| told.is_in_window && !told.event.header.injected())
        .collect();
    let cause = open.iter().copied().min_by_key(|told| {
        (
            rank_in_incident(&told.event),
            std::cmp::Reverse(meaning::of(told).2),
        )
    })?;
    let (class, mut action, mut strength) = meaning::of(cause);
    // What follows from a fault may ask for more than the fault, never for less.
    for told in &open {
        let (_, other, other_strength) = meaning::of(told);
        if other == Action::ExcludeNode && action < Action::ExcludeNode {
            (action, strength) = (other, strength.max(other_strength));
        }
    }
    let mut class = class;
    if action == Action::ExcludeNode && class == Class::Unknown {
        class = Class::GpuHardware;
    }
    let is_moving = context
        .last_step_age_s
        .zip(context.step_s)
        .is_some_and(|(age, step)| age <= step * MOVING_STEPS);
    if is_moving && action == Action::RestartInPlace {
        (action, strength) = (Action::ReportOnly, strength.min(50));
    }
    let is_mended = open.iter().all(|told| told.is_mended);
    if is_mended {
        (action, strength) = (Action::ReportOnly, strength.min(45));
    }
    let mut candidate = Candidate::new("kernel", class, strength, cause.found.meaning);
    candidate.id = format!("kernel.{}", cause.event.kind());
    candidate.action = action;
    candidate.confidence = f64::from(strength.max(55)) / 100.0;
    candidate.at = cause.at;
    candidate.is_background = is_mended || strength <= meaning::HARMLESS;
    candidate.culprit = culprit(&open, cause, class, context);
    candidate.pid = cause.event.pid();
    candidate.signals = open
        .iter()
        .take(QUOTED)
        .map(|told| told.signal.clone())
        .collect();
    candidate.next = if action == Action::ReportOnly {
        "nothing has to be done at once; look at it when it comes again".to_owned()
    } else {
        cause.found.action.advice().to_owned()
    };
    foreign_kill(&mut candidate, cause, context);
    foreign_gpu(&mut candidate, &open, context);
    if is_moving {
        foreign_process(&mut candidate, &open, context);
    }
    Some(candidate)
}

/// The job goes on, and none of its known processes is named: somebody else's program was at it.
fn foreign_process(candidate: &mut Candidate, open: &[&Told], context: &Context) {
    let pids: BTreeSet<u32> = open.iter().filter_map(|told| told.event.pid()).collect();
    let is_of_a_program = !matches!(candidate.class, Class::GpuHardware | Class::Link);
    if is_of_a_program
        && context.knows_pids()
        && !pids.is_empty()
        && pids.iter().all(|pid| context.rank_of_pid(*pid).is_none())
    {
        candidate.strength = meaning::HARMLESS;
        candidate.is_background = true;
        candidate.action = Action::ReportOnly;
        candidate.culprit = Culprit::default();
    }
}

/// It is about GPUs that are none of the job's.
fn foreign_gpu(candidate: &mut Candidate, open: &[&Told], context: &Context) {
    let mut gpus = open
        .iter()
        .filter_map(|told| Some((told.node.as_deref(), told.gpu()?)))
        .peekable();
    if gpus.peek().is_some()
        && gpus.all(|(node, pci)| context.is_foreign_gpu(node, &pci.to_string()))
    {
        candidate.strength = meaning::HARMLESS;
        candidate.is_background = true;
        candidate.confidence = 0.3;
        candidate.action = Action::ReportOnly;
        candidate.culprit = Culprit::default();
        "a GPU that is none of this job's had a fault".clone_into(&mut candidate.summary);
    }
}

/// A process was killed for memory that is none of the job's.
fn foreign_kill(candidate: &mut Candidate, cause: &Told, context: &Context) {
    let is_kill = matches!(
        cause.system(),
        Some(SystemKind::OutOfMemory | SystemKind::GroupOutOfMemory)
    );
    let Some(pid) = cause
        .event
        .pid()
        .filter(|_| is_kill && context.knows_pids())
    else {
        return;
    };
    if context.rank_of_pid(pid).is_none() {
        candidate.strength = 35;
        candidate.is_background = true;
        candidate.confidence = 0.3;
        candidate.action = Action::ReportOnly;
        candidate.culprit = Culprit::default();
        candidate.summary =
            format!("process {pid}, which is none of the job's known ones, was killed for memory");
    }
}

fn culprit(open: &[&Told], cause: &Told, class: Class, context: &Context) -> Culprit {
    let mut culprit = Culprit {
        node: cause.node.clone(),
        ..Culprit::default()
    };
    let addresses: BTreeSet<String> = open
        .iter()
        .filter_map(|told| told.gpu())
        .map(|pci| pci.to_string())
        .collect();
    let placed: BTreeSet<u32> = addresses
        .iter()
        .filter_map(|pci| context.rank_of_gpu(cause.node.as_deref(), pci))
        .map(|(rank, _)| rank)
        .collect();
    if culprit.node.is_none() {
        culprit.node = addresses
            .first()
            .and_then(|pci| context.rank_of_gpu(None, pci))
            .map(|(_, node)| node.name.clone());
    }
    let by_pid: BTreeSet<u32> = open
        .iter()
        .filter(|told| !names_the_caller(told))
        .filter_map(|told| context.rank_of_pid(told.event.pid()?))
        .collect();
    let hardware = matches!(class, Class::GpuHardware | Class::Link);
    // A GPU's address says more than a process that happened to ask for something.
    let by_place = hardware && !placed.is_empty() || by_pid.is_empty();
    let ranks = if by_place { &placed } else { &by_pid };
    if ranks.len() == 1 {
        culprit.rank = ranks.first().copied();
        let node = culprit.rank.and_then(|rank| context.node_of(rank));
        culprit.node = node.map(|node| node.name.clone()).or(culprit.node);
    }
    if hardware {
        if addresses.len() == 1 {
            culprit.gpu = addresses.into_iter().next();
        } else {
            culprit.gpus = addresses.into_iter().collect();
        }
    } else if class == Class::ProgramError {
        // Neither card nor node is condemned by what a program did.
        culprit.node = None;
    } else if class == Class::Storage && cause.system() == Some(SystemKind::ServerLost) {
        culprit.node = None;
    }
    culprit
}

/// Whether the process in the line only asked the driver for something when the fault showed.
fn names_the_caller(told: &Told) -> bool {
    match &told.event.what {
        What::Xid(error) => {
            let monitor = matches!(
                &error.name,
                Some(Known::Is(name)) if name.starts_with("nvidia-smi") || name.starts_with("dcgm") || name.starts_with("nv-hostengine")
            );
            monitor || matches!(error.code, 119 | 120 | 79)
        }
        _ => false,
    }
}

/// Puts together what is the same, and takes out what has been made good.
fn gather(found: Vec<Candidate>) -> Vec<Candidate> {
    let mut together: Vec<Candidate> = Vec::new();
    for candidate in found {
        let same = together.iter_mut().find(|known| {
            known.id == candidate.id
                && known.class == candidate.class
                && known.action == candidate.action
        });
        let Some(known) = same else {
            together.push(candidate);
            continue;
        };
        known.signals.extend(candidate.signals);
        known.incidents += 1;
        let mut gpus: BTreeSet<String> = known.culprit.gpus.drain(..).collect();
        gpus.extend(known.culprit.gpu.take());
        gpus.extend(candidate.culprit.gpus);
        gpus.extend(candidate.culprit.gpu);
        if known.culprit.rank != candidate.culprit.rank {
            known.culprit.rank = None;
        }
        if known.culprit.node != candidate.culprit.node {
            let nodes: BTreeSet<String> = known
                .culprit
                .nodes
                .drain(..)
                .chain(known.culprit.node.take())
                .chain(candidate.culprit.node)
                .collect();
            known.culprit.nodes = nodes.into_iter().collect();
        }
        if gpus.len() == 1 {
            known.culprit.gpu = gpus.into_iter().next();
        } else {
            known.culprit.gpus = gpus.into_iter().collect();
        }
    }
    together
}

/// A file server that answers everybody but one node: where only ranks of that node fail in their files, it is that node.
pub(crate) fn place_storage(candidates: &mut [Candidate], context: &Context) {
    if context.nodes.len() < 2 {
        return;
    }
    let failing: BTreeSet<&String> = candidates
        .iter()
        .filter(|candidate| candidate.id == "storage.failed")
        .filter_map(|candidate| candidate.culprit.node.as_ref())
        .collect();
    let [node] = failing.into_iter().collect::<Vec<_>>()[..] else {
        return;
    };
    let node = node.clone();
    for candidate in candidates {
        let is_server = candidate.class == Class::Storage && candidate.id.starts_with("kernel.");
        let told_by: BTreeSet<&str> = candidate
            .signals
            .iter()
            .map(|signal| signal.file.as_str())
            .collect();
        let only_there = told_by.iter().all(|file| file.contains(node.as_str()));
        if is_server && only_there && candidate.culprit == Culprit::default() {
            candidate.culprit.node = Some(node.clone());
        }
    }
}

/// Gives what the kernel said of a GPU the rank that complains about that GPU, where nothing else tells it.
pub(crate) fn join(candidates: &mut [Candidate]) {
    let complaints: Vec<(Option<u32>, Option<String>)> = candidates
        .iter()
        .filter(|candidate| candidate.id.starts_with("gpu."))
        .filter(|candidate| candidate.culprit.rank.is_some())
        .map(|candidate| (candidate.culprit.rank, candidate.culprit.node.clone()))
        .collect();
    let [(rank, node)] = &complaints[..] else {
        return;
    };
    for candidate in candidates {
        let about_gpu = candidate.id == "kernel.xid" || candidate.id.starts_with("kernel.gpu");
        let fits =
            candidate.culprit.node.is_none() || node.is_none() || candidate.culprit.node == *node;
        if about_gpu
            && candidate.culprit.rank.is_none()
            && fits
            && candidate.culprit.gpus.is_empty()
        {
            candidate.culprit.rank = *rank;
            candidate.culprit.node = candidate.culprit.node.take().or_else(|| node.clone());
        }
    }
}
