// SPDX-License-Identifier: Apache-2.0
//! Lines of one meaning, from one rank or from many: whom do they accuse?

use std::collections::{BTreeMap, BTreeSet};

use super::Candidate;
use super::launcher::Exit;
use crate::answer::{Class, Culprit, Signal};
use crate::clock::Moment;
use crate::context::Context;
use crate::gpu_state;
use crate::rules::{Blame, Role};
use crate::sighting::{Sighting, Sightings};

/// The most lines that are quoted for one meaning.
const QUOTED: usize = 6;
/// How much earlier one rank has to be for the others to have followed it.
const LEAD_S: f64 = 0.05;
/// How much earlier, where the others failed too and in other words.
const CLEAR_LEAD_S: f64 = 0.5;

/// A candidate for each meaning that may be a cause.
pub(super) fn candidates(
    open: &[&Sighting<'_>],
    sightings: &Sightings<'_>,
    context: &Context,
) -> Vec<Candidate> {
    let mut groups: BTreeMap<&str, Vec<&Sighting<'_>>> = BTreeMap::new();
    for sighting in open {
        if matches!(sighting.rule.role, Role::Cause | Role::Sign) {
            groups.entry(&sighting.rule.id).or_default().push(sighting);
        }
    }
    groups
        .into_values()
        .filter_map(|group| candidate(&group, sightings, context))
        .collect()
}

fn candidate(
    group: &[&Sighting<'_>],
    sightings: &Sightings<'_>,
    context: &Context,
) -> Option<Candidate> {
    let rule = group.first()?.rule;
    let mut candidate = Candidate::of_rule(rule);
    let first = earliest(group)?;
    candidate.at = first.at;
    candidate.is_timed = first.is_timed;
    candidate.pid = group.iter().find_map(|sighting| sighting.named.pid);
    let mut quoted: Vec<&&Sighting<'_>> = group.iter().collect();
    quoted.sort_by(|one, two| order(one.at, two.at));
    candidate.signals = quoted
        .iter()
        .take(QUOTED)
        .map(|sighting| sighting.signal())
        .collect();
    let spread = Spread::of(group, sightings);
    // Where nobody knows who says it, it may be all.
    let is_known = !spread.ranks.is_empty() || !spread.nodes.is_empty();
    if !spread.is_shared
        && is_known
        && (sightings.heard.len() > 1
            || sightings.heard_nodes.len() > 1
            || context.world() > Some(1))
    {
        candidate.action = rule.action_if_some.unwrap_or(candidate.action);
        candidate.class = rule.class_if_some.unwrap_or(candidate.class);
    }
    candidate.is_shared = spread.is_shared;
    match rule.blames {
        Blame::Nobody => {}
        Blame::Named => {
            named(&mut candidate, group, context);
            // Whoever tells of it is not who was taken.
            let is_reported = matches!(candidate.class, Class::Preempted | Class::NodeLost);
            if candidate.culprit == Culprit::default() && !is_reported {
                speaker(&mut candidate, group, &spread, context);
            }
        }
        Blame::Peer => peer(&mut candidate, group, context),
        Blame::Node => candidate.culprit.node = spread.only_node(),
        Blame::Speaker => speaker(&mut candidate, group, &spread, context),
    }
    if rule.blames == Blame::Speaker && candidate.culprit == Culprit::default() && !spread.is_shared
    {
        // An event that is told by nobody names whom it is about.
        named(&mut candidate, group, context);
    }
    by_address(&mut candidate, context);
    spare_node(&mut candidate);
    Some(candidate)
}

/// A GPU that the lines name by its address.
fn by_address(candidate: &mut Candidate, context: &Context) {
    if candidate.class != Class::GpuHardware || candidate.culprit.gpu.is_some() {
        return;
    }
    let addresses: BTreeSet<String> = candidate
        .signals
        .iter()
        .filter_map(|signal| gpu_state::address_in(&signal.text))
        .map(|address| address.to_string())
        .collect();
    let mut addresses = addresses.into_iter();
    let (Some(address), None) = (addresses.next(), addresses.next()) else {
        return;
    };
    let node = candidate.culprit.node.as_deref();
    if let Some((rank, node)) = context.rank_of_gpu(node, &address) {
        if candidate.culprit.rank.is_none() {
            candidate.culprit.rank = Some(rank);
            candidate.culprit.node = Some(node.name.clone());
        }
        if candidate.culprit.rank == Some(rank) {
            candidate.culprit.gpu = Some(address);
        }
    }
}

/// What one rank's program does wrong is no fault of the node that it runs on.
fn spare_node(candidate: &mut Candidate) {
    if candidate.class == Class::ProgramError && candidate.culprit.rank.is_some() {
        candidate.culprit.node = None;
    }
}

/// Over whom a meaning is spread.
struct Spread {
    ranks: BTreeSet<u32>,
    nodes: BTreeSet<String>,
    /// Most of those that are heard say it: what they share is at fault.
    is_shared: bool,
}

impl Spread {
    fn of(group: &[&Sighting<'_>], sightings: &Sightings<'_>) -> Self {
        let ranks: BTreeSet<u32> = group.iter().filter_map(|sighting| sighting.rank).collect();
        let nodes: BTreeSet<String> = group
            .iter()
            .filter_map(|sighting| sighting.node.clone())
            .collect();
        let heard = sightings.heard.len();
        let is_shared = ranks.len() > 1 && ranks.len() * 5 >= heard * 3;
        Self {
            ranks,
            nodes,
            is_shared,
        }
    }

    fn only_node(&self) -> Option<String> {
        let mut nodes = self.nodes.iter();
        let node = nodes.next()?;
        nodes.next().is_none().then(|| node.clone())
    }
}

fn speaker(candidate: &mut Candidate, group: &[&Sighting<'_>], spread: &Spread, context: &Context) {
    if spread.ranks.len() == 1 {
        candidate.culprit.rank = spread.ranks.first().copied();
        candidate.culprit.node = spread.only_node();
        return;
    }
    if let Some(first) = first_mover(group)
        && (!spread.is_shared || fails_otherwise(first, group))
    {
        candidate.culprit.rank = first.rank;
        candidate.culprit.node.clone_from(&first.node);
        return;
    }
    // All of them on one node, and others elsewhere that do not say it: the node.
    let elsewhere = context.nodes.len() > 1 || context.nodes.is_empty() && spread.ranks.is_empty();
    if elsewhere || spread.ranks.is_empty() {
        candidate.culprit.node = spread.only_node();
    }
}

/// Whether whoever was first fails in other words than all others, and long enough before them: they followed it.
fn fails_otherwise(first: &Sighting<'_>, group: &[&Sighting<'_>]) -> bool {
    let words = |text: &str| -> String {
        let letters = text.chars().filter(|letter| !letter.is_ascii_digit());
        letters.collect()
    };
    let its = words(&first.text);
    group
        .iter()
        .filter(|other| other.rank != first.rank)
        .all(|other| {
            let later = other
                .at
                .zip(first.at)
                .and_then(|(at, first)| at.since(first));
            words(&other.text) != its && later.is_some_and(|later| later >= CLEAR_LEAD_S)
        })
}

/// The rank that said it clearly before all others.
fn first_mover<'s, 'r>(group: &[&'s Sighting<'r>]) -> Option<&'s Sighting<'r>> {
    let first = earliest(group)?;
    let at = first.at?;
    group
        .iter()
        .filter(|other| other.rank != first.rank)
        .all(|other| {
            let later = other.at.and_then(|other| other.since(at));
            later.is_some_and(|later| later >= LEAD_S)
        })
        .then_some(first)
}

fn earliest<'s, 'r>(group: &[&'s Sighting<'r>]) -> Option<&'s Sighting<'r>> {
    group
        .iter()
        .copied()
        .min_by(|one, two| order(one.at, two.at))
}

/// Lines without a time come last.
fn order(one: Option<Moment>, two: Option<Moment>) -> std::cmp::Ordering {
    match (one, two) {
        (Some(one), Some(two)) => one.seconds.total_cmp(&two.seconds),
        (one, two) => one.is_none().cmp(&two.is_none()),
    }
}

fn named(candidate: &mut Candidate, group: &[&Sighting<'_>], context: &Context) {
    let rank_of = |sighting: &Sighting<'_>| {
        let by_pid = || context.rank_of_pid(sighting.named.pid?);
        sighting.named.rank.or_else(by_pid)
    };
    let ranks: BTreeSet<u32> = group.iter().filter_map(|one| rank_of(one)).collect();
    let nodes: BTreeSet<String> = group
        .iter()
        .filter_map(|sighting| sighting.named.node.as_deref())
        .map(|name| {
            let known = context.node_named(name);
            known.map_or_else(|| name.to_owned(), |node| node.name.clone())
        })
        .collect();
    // With one launcher a node, the number of a task is none of a rank.
    let is_rank = |rank: &u32| {
        let holders = nodes.iter().filter_map(|node| context.node_named(node));
        holders.clone().count() == 0 || holders.clone().any(|node| node.ranks.contains(rank))
    };
    let ranks: BTreeSet<u32> = ranks.into_iter().filter(is_rank).collect();
    let by_time = earliest(group).and_then(rank_of);
    candidate.culprit.rank = match ranks.len() {
        0 | 1 => ranks.first().copied(),
        // Who said it first, where several are named.
        _ => first_mover(group).and(by_time),
    };
    if nodes.len() == 1 {
        candidate.culprit.node = nodes.first().cloned();
    } else if nodes.len() > 1 {
        candidate.culprit.nodes = nodes.into_iter().collect();
    } else if let Some(rank) = candidate.culprit.rank {
        candidate.culprit.node = context.node_of(rank).map(|node| node.name.clone());
    }
}

/// The other end that most speak of; where two ends speak of each other, nobody.
fn peer(candidate: &mut Candidate, group: &[&Sighting<'_>], context: &Context) {
    let mut accusers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for sighting in group {
        let name = sighting.named.peer.as_deref().map(host_of);
        let accused = name.and_then(|name| context.node_named(name));
        if let (Some(accused), Some(from)) = (accused, &sighting.node)
            && accused.name != *from
        {
            accusers
                .entry(accused.name.clone())
                .or_default()
                .insert(from.clone());
        }
    }
    let most = accusers.values().map(BTreeSet::len).max();
    let mut worst = accusers
        .iter()
        .filter(|(_, from)| Some(from.len()) == most)
        .map(|(node, _)| node);
    if let (Some(node), None) = (worst.next(), worst.next())
        && (most > Some(1) || !accusers.values().any(|from| from.contains(node)))
    {
        candidate.culprit.node = Some(node.clone());
        candidate.confidence = if most > Some(1) {
            0.75
        } else {
            candidate.confidence
        };
    }
}

/// A host without its port.
pub(super) fn host_of(peer: &str) -> &str {
    let peer = peer.split('<').next().unwrap_or(peer);
    let peer = peer.trim_matches(['[', ']', '(', ')']);
    match peer.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') && port.parse::<u16>().is_ok() => host,
        _ => peer,
    }
}

/// A loader or a rank that was killed, and a memory limit that was reached: the one explains the other.
pub(super) fn explain_kills(
    candidates: &mut Vec<Candidate>,
    open: &[&Sighting<'_>],
    exits: &[Exit],
    context: &Context,
) {
    let killed: Vec<&Sighting<'_>> = open
        .iter()
        .copied()
        .filter(|sighting| sighting.is("host.loader_killed") || sighting.is("host.loader_exited"))
        .collect();
    let kill_exits: BTreeSet<u32> = exits
        .iter()
        .filter(|exit| exit.code == -9 || exit.code == 137)
        .filter_map(|exit| exit.rank)
        .collect();
    for candidate in candidates.iter_mut() {
        if candidate.class != Class::HostMemory || candidate.culprit.rank.is_some() {
            continue;
        }
        let by_pid = candidate.pid.and_then(|pid| {
            let speaks_of_it = killed
                .iter()
                .find(|sighting| sighting.named.pid == Some(pid));
            speaks_of_it
                .and_then(|sighting| sighting.rank)
                .or_else(|| context.rank_of_pid(pid))
        });
        let on_node = |rank: &u32| {
            let node = context.node_of(*rank).map(|node| &node.name);
            candidate.culprit.node.is_none()
                || node.is_none()
                || node == candidate.culprit.node.as_ref()
        };
        let mut dead: BTreeSet<u32> = killed.iter().filter_map(|sighting| sighting.rank).collect();
        dead.extend(&kill_exits);
        dead.retain(on_node);
        let rank = by_pid.or(if dead.len() == 1 {
            dead.first().copied()
        } else {
            None
        });
        if let Some(rank) = rank {
            candidate.culprit.rank = Some(rank);
            let node = context.node_of(rank).map(|node| node.name.clone());
            candidate.culprit.node = node.or(candidate.culprit.node.take());
        }
    }
    let memory: Option<Signal> = candidates
        .iter()
        .find(|candidate| candidate.class == Class::HostMemory && candidate.strength >= 90)
        .and_then(|candidate| candidate.signals.first().cloned());
    if let Some(memory) = memory {
        for candidate in candidates.iter_mut() {
            if candidate.id == "host.loader_killed" || candidate.id == "host.loader_exited" {
                candidate.signals.push(memory.clone());
                candidate.confidence = 0.93;
                candidate.strength = 93;
            }
        }
        // Whoever was killed from outside was killed for memory.
        candidates.retain(|candidate| candidate.id != "host.bare_kill");
    }
}
