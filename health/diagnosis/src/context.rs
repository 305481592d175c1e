// SPDX-License-Identifier: Apache-2.0
//! What the supervisor knew anyway: who runs where, by which numbers, since when. All of it is optional; what cannot be
//! read is passed over with a note.

mod addresses;
mod read;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use self::addresses::learn_addresses;
pub(crate) use self::read::read;

/// What the supervisor knew.
#[derive(Clone, Debug, Default)]
pub(crate) struct Context {
    pub(crate) world_size: Option<u32>,
    pub(crate) nodes: Vec<Node>,
    /// The process of each rank.
    pub(crate) pids: BTreeMap<u32, u32>,
    /// Further processes of each rank.
    pub(crate) children: BTreeMap<u32, BTreeSet<u32>>,
    /// Steps that the job had made.
    pub(crate) steps_done: Option<u64>,
    pub(crate) attempts: Vec<Attempt>,
    /// Beginning and end of the job, as it was written.
    pub(crate) window: (Option<String>, Option<String>),
    /// What a step takes, and how old the last one is.
    pub(crate) step_s: Option<f64>,
    pub(crate) last_step_age_s: Option<f64>,
    pub(crate) notes: Vec<String>,
}

/// One node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// Further names and addresses.
    pub(crate) aliases: Vec<String>,
    /// By local rank.
    pub(crate) ranks: Vec<u32>,
    /// Addresses by local rank.
    pub(crate) gpus: Vec<String>,
    pub(crate) clock_ahead_s: f64,
}

/// An earlier attempt that failed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Attempt {
    pub(crate) rank: Option<u32>,
    pub(crate) node: Option<String>,
    pub(crate) step: Option<u64>,
    /// What failed, in whatever words.
    pub(crate) failure: Option<String>,
}

impl Context {
    pub(crate) fn node_of(&self, rank: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.ranks.contains(&rank))
    }

    /// A node by its name, one of its other names, or the first part of either.
    pub(crate) fn node_named(&self, name: &str) -> Option<&Node> {
        let short = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
        let is = |node: &Node, test: &dyn Fn(&str) -> bool| {
            test(&node.name) || node.aliases.iter().any(|alias| test(alias))
        };
        let is_address = name.parse::<std::net::IpAddr>().is_ok();
        self.nodes
            .iter()
            .find(|node| is(node, &|known| known == name))
            .or_else(|| {
                let find = || {
                    self.nodes
                        .iter()
                        .find(|node| is(node, &|known| short(known) == short(name)))
                };
                (!is_address).then(find).flatten()
            })
    }

    /// The rank at this place of a node; of the only node where none is named.
    pub(crate) fn rank_at(&self, node: Option<&str>, local_rank: u32) -> Option<u32> {
        let node = match node {
            Some(name) => self.node_named(name)?,
            None if self.nodes.len() == 1 => self.nodes.first()?,
            None => return None,
        };
        let index = usize::try_from(local_rank).ok()?;
        node.ranks.get(index).copied()
    }

    /// The rank that a process belongs to.
    pub(crate) fn rank_of_pid(&self, pid: u32) -> Option<u32> {
        self.pids
            .iter()
            .find(|&(_, known)| *known == pid)
            .map(|(rank, _)| *rank)
            .or_else(|| {
                self.children
                    .iter()
                    .find(|(_, children)| children.contains(&pid))
                    .map(|(rank, _)| *rank)
            })
    }

    /// Whether anything is known of the processes.
    pub(crate) fn knows_pids(&self) -> bool {
        !self.pids.is_empty() || !self.children.is_empty()
    }

    /// The rank that computes on the GPU at this address.
    pub(crate) fn rank_of_gpu(&self, node: Option<&str>, pci: &str) -> Option<(u32, &Node)> {
        let named = node.and_then(|name| self.node_named(name));
        let candidates: Vec<&Node> = match named {
            Some(node) => vec![node],
            None => self.nodes.iter().collect(),
        };
        let mut holders = candidates.into_iter().filter_map(|node| {
            let index = node.gpus.iter().position(|gpu| same_address(gpu, pci))?;
            Some((*node.ranks.get(index)?, node))
        });
        let found = holders.next()?;
        // The same address on several nodes says nothing about which one.
        holders.next().is_none().then_some(found)
    }

    /// Whether the GPU at this address is known to be none of the job's: all that the job has on that node are known, and it
    /// is none of them.
    pub(crate) fn is_foreign_gpu(&self, node: Option<&str>, pci: &str) -> bool {
        let named = node.and_then(|name| self.node_named(name));
        let mut on = self
            .nodes
            .iter()
            .filter(|known| named.is_none_or(|named| named.name == known.name))
            .peekable();
        on.peek().is_some()
            && on.all(|node| {
                !node.gpus.is_empty()
                    && node.gpus.len() >= node.ranks.len()
                    && !node.gpus.iter().any(|gpu| same_address(gpu, pci))
            })
    }

    /// The number of ranks, as far as it is known.
    pub(crate) fn world(&self) -> Option<u32> {
        let placed: usize = self.nodes.iter().map(|node| node.ranks.len()).sum();
        self.world_size
            .or_else(|| u32::try_from(placed).ok().filter(|&placed| placed > 0))
    }
}

fn same_address(one: &str, two: &str) -> bool {
    use steadfast_health::kernel_log::PciAddress;
    match (PciAddress::parse(one), PciAddress::parse(two)) {
        (Some(one), Some(two)) => one == two,
        _ => one.eq_ignore_ascii_case(two),
    }
}
