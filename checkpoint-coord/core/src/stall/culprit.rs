// SPDX-License-Identifier: Apache-2.0
//! Who is not where the others are?

mod kind;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_proto::v1::FaultClass;

use self::kind::Kind;
use super::signs::{Doing, KernelState, RankSigns};
use super::watch::Stall;
use crate::{NodeName, Rank};

/// Functions, from the innermost outwards, by which stacks are compared.
const COMPARED: usize = 40;
/// Data that come late, or a retry: over by then, mostly.
const SHORT_HICCUP: Duration = Duration::from_secs(3);
const HICCUP: Duration = Duration::from_secs(10);
/// Where nobody stands out, the job may be busy with something that it does not tell of, such as a last upload.
const THIN_PATIENCE: Duration = Duration::from_mins(5);
/// Who is not sure waits that much longer, at most.
const SECOND_THOUGHTS: Duration = Duration::from_mins(1);
/// A disk that is slow for that long is not called dead.
const DISK_PATIENCE: Duration = Duration::from_secs(30);
/// A rank that works is left alone at least that long.
const STRAGGLER_PATIENCE: Duration = Duration::from_mins(10);

/// Signs that are told of, where many ranks show the same.
const MOST_SIGNS: usize = 4;

/// How sure a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Nothing points at anybody.
    Thin,
    /// One sign does, or the signs also fit a rank that is only slow.
    Fair,
    /// Two independent signs do, or one that leaves no doubt.
    Strong,
}

/// What is wrong, as far as the signs say.
#[derive(Debug, Clone, PartialEq)]
pub struct StallVerdict {
    /// What kind of fault it is.
    pub class: FaultClass,
    /// The rank that holds up the others, if one does.
    pub culprit: Option<Culprit>,
    /// Further ranks of which the same is true.
    pub others: Vec<Rank>,
    /// How sure that is.
    pub confidence: Confidence,
    /// What it rests on, each in words.
    pub signs: Vec<String>,
    /// What is said of the rank (or, without one, of the job), without a full stop.
    pub summary: String,
    /// What a person should look at next.
    pub advice: String,
    /// Whether somebody is looking at a rank with a debugger: then nothing is to be done.
    pub is_held: bool,
    kind: Option<Kind>,
}

/// The rank that holds up the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Culprit {
    /// Where it runs.
    pub node: NodeName,
    /// Which rank.
    pub rank: Rank,
}

/// What is held against a rank.
#[derive(Debug)]
struct Charge<'a> {
    rank: &'a RankSigns,
    kind: Kind,
    /// Each independent of the others.
    signs: Vec<String>,
}

/// Compares the ranks. `None` without any.
pub fn find_culprit(ranks: &[RankSigns]) -> Option<StallVerdict> {
    if ranks.is_empty() {
        return None;
    }
    let is_held = ranks.iter().any(|rank| rank.kernel == KernelState::Traced);
    Some(StallVerdict {
        is_held,
        ..compare(ranks)
    })
}

fn compare(ranks: &[RankSigns]) -> StallVerdict {
    let majority = majority(ranks);
    let furthest = ranks.iter().filter_map(|rank| rank.step).max();
    let mut charges: Vec<Charge<'_>> = ranks
        .iter()
        .filter_map(|rank| charge(rank, majority.as_deref(), furthest, ranks.len()))
        .collect();
    // Those that most speaks against; among equals the lowest rank.
    charges.sort_by_key(|charge| (charge.kind, charge.rank.rank));
    let Some(worst) = charges.first() else {
        return nobody(ranks);
    };
    // What is true of most ranks is no difference between them.
    let alike: Vec<Rank> = charges
        .iter()
        .filter(|charge| charge.kind == worst.kind)
        .map(|charge| charge.rank.rank)
        .collect();
    if alike.len() * 2 > ranks.len() && ranks.len() > 1 {
        return most_of_them(worst, &alike, ranks.len());
    }
    let all_others_wait = ranks.len() > 1
        && ranks
            .iter()
            .filter(|rank| !alike.contains(&rank.rank))
            .all(waits_for_others);
    verdict(worst, &alike, (all_others_wait, ranks.len()))
}

fn waits_for_others(rank: &RankSigns) -> bool {
    matches!(rank.doing, Doing::Collective | Doing::Network)
}

/// The stack that more than half of the ranks have; of those that are in no stack at all, nothing is known.
fn majority(ranks: &[RankSigns]) -> Option<Vec<String>> {
    let mut clusters: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for rank in ranks.iter().filter(|rank| !rank.stack.is_empty()) {
        *clusters.entry(compared(rank)).or_default() += 1;
    }
    let (stack, count) = clusters.into_iter().max_by_key(|&(_, count)| count)?;
    (count * 2 > ranks.len()).then_some(stack)
}

fn compared(rank: &RankSigns) -> Vec<String> {
    rank.stack.iter().take(COMPARED).cloned().collect()
}

fn charge<'a>(
    rank: &'a RankSigns,
    majority: Option<&[String]>,
    furthest: Option<u64>,
    world: usize,
) -> Option<Charge<'a>> {
    let mut signs = Vec::new();
    let mut kind = kernel_kind(rank, &mut signs);
    let apart = majority.is_some_and(|stack| !rank.stack.is_empty() && compared(rank) != stack);
    let with_the_others = majority.is_some() && !rank.stack.is_empty() && !apart;
    let waits = waits_for_others(rank);
    // Whatever its stack says, it gets there no more.
    if kind.is_none() && rank.wants_lock && rank.still {
        kind = Some(Kind::Locked);
        signs.push(
            "its main thread waits for the interpreter's lock (GIL), which another thread of its keeps"
                .to_owned(),
        );
    }
    if kind.is_none() && !with_the_others && (!waits || apart) {
        kind = user_kind(rank, apart, &mut signs);
    }
    if apart && kind.is_some() {
        let place = rank.stack.first().map_or("", String::as_str);
        signs.push(format!(
            "its stack ({place}) differs from that of the other ranks, who are in {}",
            majority
                .and_then(|stack| stack.first())
                .map_or("", String::as_str)
        ));
    }
    let behind = furthest
        .zip(rank.step)
        .filter(|(furthest, step)| step < furthest);
    if let Some((furthest, step)) = behind
        && (kind.is_some() || !waits)
    {
        kind = kind.or(Some(Kind::Behind));
        signs.push(format!(
            "it is at step {step}, others are at step {furthest}"
        ));
    }
    if let Some(reported) = &rank.reported {
        kind = kind.or(Some(Kind::Reported));
        signs.push(format!("the communication library says of it: {reported}"));
    }
    let kind = kind?;
    // A rank by itself has nobody to be compared with.
    if world == 1 && matches!(kind, Kind::Working | Kind::Elsewhere) {
        return None;
    }
    Some(Charge { rank, kind, signs })
}

/// What the kernel says against a rank.
fn kernel_kind(rank: &RankSigns, signs: &mut Vec<String>) -> Option<Kind> {
    let wchan = rank.wchan.as_deref().unwrap_or("the kernel");
    let (kind, sign) = match rank.kernel {
        KernelState::Stopped => (Kind::Stopped, "its process is stopped (state T)".to_owned()),
        KernelState::Frozen => (Kind::Frozen, "its cgroup is frozen".to_owned()),
        KernelState::Dead => (Kind::Dead, "its process is dead".to_owned()),
        KernelState::Traced => (
            Kind::Traced,
            "a debugger holds its process (state t)".to_owned(),
        ),
        KernelState::Unheard => (
            Kind::Unheard,
            "nothing is heard of its node any more".to_owned(),
        ),
        // A parent that waits for its child to begin a program sleeps there for a moment.
        KernelState::Uninterruptible if wchan != "kernel_clone" && rank.still => (
            Kind::Storage,
            format!("it sleeps uninterruptibly (state D) in {wchan}"),
        ),
        _ => return None,
    };
    signs.push(sign);
    Some(kind)
}

/// What the stack and the system call say against a rank.
fn user_kind(rank: &RankSigns, apart: bool, signs: &mut Vec<String>) -> Option<Kind> {
    let top = rank.stack.first().map_or("", String::as_str);
    let place = if top.is_empty() {
        String::new()
    } else {
        format!(" in {top}")
    };
    let (kind, sign) = match rank.doing {
        Doing::Data => (Kind::Data, format!("it waits for its data{place}")),
        Doing::Storage => (Kind::Storage, format!("it is in a file operation{place}")),
        Doing::Pause if rank.still => (Kind::Waiting, format!("it sleeps{place}")),
        Doing::Waiting if rank.still && apart => (
            Kind::Waiting,
            format!("it waits for a thread or a process of its own{place}"),
        ),
        Doing::Computing if rank.still => (
            Kind::Spinning,
            format!("it keeps a processor busy{place} and does not get on"),
        ),
        Doing::Computing => (Kind::Working, format!("it computes{place}")),
        Doing::Collective | Doing::Network if apart => (
            Kind::Elsewhere,
            format!("it waits for others{place}, but not where they are"),
        ),
        _ if apart => (Kind::Elsewhere, format!("it is{place}")),
        _ => return None,
    };
    signs.push(sign);
    Some(kind)
}

fn verdict(
    charge: &Charge<'_>,
    alike: &[Rank],
    (all_others_wait, world): (bool, usize),
) -> StallVerdict {
    let rank = charge.rank;
    let mut signs = charge.signs.clone();
    if all_others_wait {
        signs.push("all others wait for a collective or for the network".to_owned());
    }
    let confidence = match charge.kind {
        Kind::Stopped | Kind::Frozen | Kind::Dead | Kind::Traced => Confidence::Strong,
        // A rank by itself holds nobody up.
        _ if world == 1 => Confidence::Thin,
        // A rank that only takes longer than ever looks the same.
        Kind::Unheard
        | Kind::Storage
        | Kind::Locked
        | Kind::Spinning
        | Kind::Reported
        | Kind::Working
        | Kind::Behind
        | Kind::Elsewhere => Confidence::Fair,
        Kind::Data | Kind::Waiting if signs.len() > 1 => Confidence::Strong,
        Kind::Data | Kind::Waiting => Confidence::Fair,
    };
    StallVerdict {
        class: class_of(charge),
        culprit: Some(Culprit {
            node: rank.node.clone(),
            rank: rank.rank,
        }),
        others: alike
            .iter()
            .copied()
            .filter(|&other| other != rank.rank)
            .collect(),
        confidence,
        signs,
        summary: format!(
            "holds up the others: {}",
            charge.signs.first().map_or("", String::as_str)
        ),
        advice: charge.kind.advice().to_owned(),
        is_held: false,
        kind: Some(charge.kind),
    }
}

fn class_of(charge: &Charge<'_>) -> FaultClass {
    let wchan = charge.rank.wchan.as_deref().unwrap_or_default();
    match charge.kind {
        Kind::Storage if wchan.starts_with("nv_") || wchan.starts_with("uvm_") => {
            FaultClass::GpuHardware
        }
        Kind::Storage => FaultClass::Storage,
        Kind::Working => FaultClass::Straggler,
        Kind::Unheard => FaultClass::NodeLost,
        _ => FaultClass::Hang,
    }
}

/// Everybody waits for the others, and nobody is missing.
fn nobody(ranks: &[RankSigns]) -> StallVerdict {
    if let Some(verdict) = network(ranks) {
        return verdict;
    }
    let unseen = ranks
        .iter()
        .filter(|rank| rank.doing == Doing::Unknown)
        .count();
    let waiting = ranks.len() - unseen;
    StallVerdict {
        class: FaultClass::Hang,
        culprit: None,
        others: Vec::new(),
        confidence: Confidence::Thin,
        signs: vec![format!(
            "{waiting} of {} ranks wait for others or are where the others are, {unseen} could not be told",
            ranks.len()
        )],
        summary: "no rank makes steps any more, and none of them stands out".to_owned(),
        advice: "look at the network between the nodes, at the GPUs and at the kernel logs; a collective that all ranks \
                 have entered is stuck, or a rank that is not seen is missing"
            .to_owned(),
        is_held: false,
        kind: None,
    }
}

/// All wait for each other, and what some have sent does not arrive: it is the way between them.
fn network(ranks: &[RankSigns]) -> Option<StallVerdict> {
    let mut unheard: Vec<&RankSigns> = ranks
        .iter()
        .filter(|rank| rank.unheard_by.is_some())
        .collect();
    unheard.sort_by_key(|rank| rank.rank);
    let signs: Vec<String> = unheard
        .iter()
        .take(MOST_SIGNS)
        .filter_map(|rank| {
            let by = rank.unheard_by.as_deref()?;
            Some(format!(
                "what rank {} on {} has sent to {by} is not acknowledged, though it was sent again and again",
                rank.rank, rank.node
            ))
        })
        .collect();
    let summary = format!(
        "no rank makes steps any more, and the network does not carry what they send: {}",
        signs.first()?
    );
    Some(StallVerdict {
        class: FaultClass::Network,
        culprit: None,
        others: unheard.iter().map(|rank| rank.rank).collect(),
        confidence: Confidence::Fair,
        signs,
        summary,
        advice: "look at the network between these nodes: links, firewalls, routes, the interface that was chosen"
            .to_owned(),
        is_held: false,
        kind: None,
    })
}

/// The same is true of most ranks: what they share is at fault.
fn most_of_them(charge: &Charge<'_>, alike: &[Rank], world: usize) -> StallVerdict {
    let same = charge.signs.first().map_or("", String::as_str);
    StallVerdict {
        class: match charge.kind {
            // It is more likely that the one who does not hear them is cut off.
            Kind::Unheard => FaultClass::Network,
            _ => class_of(charge),
        },
        culprit: None,
        others: alike.to_vec(),
        confidence: match charge.kind {
            Kind::Stopped | Kind::Frozen => Confidence::Strong,
            Kind::Working | Kind::Behind | Kind::Elsewhere => Confidence::Thin,
            _ => Confidence::Fair,
        },
        signs: vec![format!(
            "of {} of {world} ranks it is true that {same}",
            alike.len()
        )],
        summary: format!(
            "{} of {world} ranks make no steps any more, for one reason: {same}",
            alike.len()
        ),
        advice: charge.kind.advice().to_owned(),
        is_held: false,
        kind: Some(charge.kind),
    }
}

impl StallVerdict {
    /// The class in one word, such as `hang`.
    pub fn class_name(&self) -> String {
        let name = self.class.as_str_name();
        let name = name.strip_prefix("FAULT_CLASS_").unwrap_or(name);
        name.to_ascii_lowercase()
    }

    /// How long after the stall began something is to be done about it: at once when the signs leave no doubt, later when
    /// a rank that is only slow would look the same.
    pub fn patience(&self, stall: &Stall) -> Duration {
        let bound = stall.bound;
        let second_thoughts = bound.saturating_mul(2).clamp(HICCUP, SECOND_THOUGHTS);
        match (self.confidence, self.kind) {
            (_, Some(Kind::Stopped | Kind::Frozen | Kind::Dead | Kind::Traced)) => bound,
            (_, Some(Kind::Working)) => bound.saturating_mul(10).max(STRAGGLER_PATIENCE),
            (Confidence::Thin, _) => bound.saturating_add(second_thoughts).max(THIN_PATIENCE),
            (Confidence::Strong, _) => bound.saturating_add(bound.clamp(SHORT_HICCUP, HICCUP)),
            (Confidence::Fair, Some(Kind::Storage)) => {
                bound.saturating_add(second_thoughts).max(DISK_PATIENCE)
            }
            (Confidence::Fair, Some(Kind::Elsewhere)) => bound.saturating_add(SECOND_THOUGHTS),
            (Confidence::Fair, _) => bound.saturating_add(second_thoughts),
        }
    }
}

#[cfg(test)]
mod tests;
