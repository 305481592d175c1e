// SPDX-License-Identifier: Apache-2.0
//! Nodes and ranks that others speak of, and that say nothing themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use super::Candidate;
use super::grouping::host_of;
use crate::answer::Class;
use crate::context::Context;
use crate::pattern::{compile, group};
use crate::rules::Role;
use crate::sighting::{Sighting, Sightings};

static NAMED: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"(?:(?:closed|reset) by (?:remote )?peer|recv from|send to|receive from|[Cc]onnect(?:ion)? to|remote=|retry(?:ing)? .* to|trying to connect to) \[?\(?(?P<peer>[\w.-]+(?:\]?:\d+)?)",
    )
});
static JOINED: LazyLock<Regex> =
    LazyLock::new(|| compile(r"(?P<joined>\d+)/(?P<wanted>\d+) clients joined"));

/// What others say of somebody who says nothing.
pub(super) fn candidate(
    open: &[&Sighting<'_>],
    sightings: &Sightings<'_>,
    context: &Context,
) -> Option<Candidate> {
    let consequences: Vec<&Sighting<'_>> = open
        .iter()
        .copied()
        .filter(|sighting| sighting.rule.role == Role::Consequence)
        .collect();
    accused_node(&consequences, context)
        .or_else(|| accused_rank(&consequences, context))
        .or_else(|| never_heard(&consequences, sightings, context))
}

/// The node whose connections broke, and of which no rank complains.
fn accused_node(consequences: &[&Sighting<'_>], context: &Context) -> Option<Candidate> {
    let mut accusations: BTreeMap<&str, Vec<&Sighting<'_>>> = BTreeMap::new();
    for sighting in consequences {
        let named = sighting.named.peer.clone().or_else(|| {
            let found = NAMED.captures(&sighting.text)?;
            group(&found, "peer").map(str::to_owned)
        });
        let node = named.and_then(|peer| context.node_named(host_of(&peer)));
        if let Some(node) = node.filter(|node| sighting.node.as_ref() != Some(&node.name)) {
            accusations.entry(&node.name).or_default().push(sighting);
        }
    }
    let complain: BTreeSet<&str> = consequences
        .iter()
        .filter_map(|sighting| sighting.node.as_deref())
        .collect();
    let mut silent = accusations
        .iter()
        .filter(|(node, _)| !complain.contains(*node));
    let (node, by) = silent.next()?;
    if silent.next().is_some() {
        return None;
    }
    let refused = by.iter().all(|sighting| sighting.text.contains("refused"));
    let mut candidate = Candidate::new(
        "lost.node",
        Class::NodeLost,
        if refused { 50 } else { 55 },
        "its connections broke, and none of its ranks says anything",
    );
    candidate.confidence = if refused { 0.45 } else { 0.6 };
    candidate.culprit.node = Some((*node).to_owned());
    let ranks = context.node_named(node).map(|node| node.ranks.as_slice());
    if let Some([rank]) = ranks {
        candidate.culprit.rank = Some(*rank);
    }
    candidate.at = by.first().and_then(|sighting| sighting.at);
    candidate.signals = by
        .iter()
        .take(4)
        .map(|sighting| sighting.signal())
        .collect();
    "look at whether the node is up, and at its kernel log and management controller"
        .clone_into(&mut candidate.next);
    Some(candidate)
}

/// The rank on the same node whose connections broke.
fn accused_rank(consequences: &[&Sighting<'_>], context: &Context) -> Option<Candidate> {
    let mut accusations: BTreeMap<u32, Vec<&Sighting<'_>>> = BTreeMap::new();
    for sighting in consequences {
        let rank = sighting
            .named
            .local_rank
            .and_then(|local| context.rank_at(sighting.node.as_deref(), local));
        if let Some(rank) = rank {
            accusations.entry(rank).or_default().push(sighting);
        }
    }
    let complain: BTreeSet<u32> = consequences
        .iter()
        .filter_map(|sighting| sighting.rank)
        .collect();
    let mut silent = accusations
        .iter()
        .filter(|(rank, _)| !complain.contains(*rank));
    let (rank, by) = silent.next()?;
    if silent.next().is_some() {
        return None;
    }
    let mut candidate = Candidate::new(
        "lost.rank",
        Class::Unknown,
        55,
        "its connections broke, and it does not say why",
    );
    candidate.confidence = 0.45;
    candidate.culprit.rank = Some(*rank);
    candidate.culprit.node = context.node_of(*rank).map(|node| node.name.clone());
    candidate.at = by.first().and_then(|sighting| sighting.at);
    candidate.signals = by
        .iter()
        .take(4)
        .map(|sighting| sighting.signal())
        .collect();
    "look at how this rank's process ended, and at the kernel log of its node"
        .clone_into(&mut candidate.next);
    Some(candidate)
}

/// Not all came to the meeting point: a node of which nothing was ever heard.
fn never_heard(
    consequences: &[&Sighting<'_>],
    sightings: &Sightings<'_>,
    context: &Context,
) -> Option<Candidate> {
    let meeting = consequences
        .iter()
        .find(|sighting| sighting.is("store.clients"))?;
    let joined = JOINED.captures(&meeting.text);
    let mut missing = context
        .nodes
        .iter()
        .filter(|node| !sightings.heard_nodes.contains(&node.name));
    let first = missing.next();
    let node = first.filter(|_| missing.next().is_none());
    let mut candidate = Candidate::new(
        "lost.missing",
        if joined.is_some() && node.is_some() {
            Class::NodeLost
        } else {
            Class::Network
        },
        47,
        match node {
            Some(_) => "the ranks waited for each other, and nothing was heard of it",
            None => "the ranks did not all find each other",
        },
    );
    candidate.confidence = 0.4;
    candidate.action = crate::answer::Action::RestartInPlace;
    candidate.culprit.node = node.map(|node| node.name.clone());
    candidate.at = meeting.at;
    candidate.signals = vec![meeting.signal()];
    "look at whether all nodes have started, and at the way between them (port, firewall, interface)"
        .clone_into(&mut candidate.next);
    Some(candidate)
}
