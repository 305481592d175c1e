// SPDX-License-Identifier: Apache-2.0
//! What lines about collective operations say: which operation, where in the sequence, who is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use crate::pattern::{compile, group, number};
use crate::sighting::Sighting;

static TIMEOUT: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"WorkNCCL\(SeqNum=(?P<sequence>\d+), OpType=(?P<operation>\w+)(?:, NumelIn=(?P<in>\d+), NumelOut=(?P<out>\d+))?[,)]",
    )
});
static STATUS: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>\d+), last completed (?:NCCL )?work: (?P<completed>\d+)",
    )
});
static PROCESS_GROUP: LazyLock<Regex> =
    LazyLock::new(|| compile(r"\[PG (?:ID )?(?P<id>\d+)(?: PG GUID (?P<guid>[^\s(]+))?"));
static MISSING: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    [
        r"[Rr]anks? (?P<list>[\d, ]+) failed to pass monitoredBarrier",
        r"[Mm]issing ranks:?\s*\[?(?P<list>\d[\d, ]*)\]?",
        r"^(?P<list>\d+): \[\w*(?:Allreduce|Allgather|Broadcast|allreduce|allgather|broadcast|grad)",
        r"did not (?:reach|join|enter).*?ranks?:? \[?(?P<list>[\d, ]+)\]?",
        r"(?:tasks|ranks) (?:that )?(?:did not|have not|never) (?:reach|join|enter|arriv)\w*\D*?(?P<list>\d+(?:, ?\d+)*)",
    ]
    .map(compile)
    .into()
});

/// What a rank waited in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Operation {
    pub(super) name: String,
    /// Elements in and out.
    pub(super) numbers: Option<(u64, u64)>,
}

/// A rank that waited in vain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timeout {
    pub(super) rank: Option<u32>,
    pub(super) process_group: String,
    pub(super) sequence: u64,
    pub(super) operation: Operation,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) timeouts: Vec<Timeout>,
    /// The last operation that a rank has issued in a group.
    pub(super) enqueued: BTreeMap<(u32, String), u64>,
    pub(super) missing: BTreeSet<u32>,
    /// The first line that speaks of it.
    pub(super) first: Option<usize>,
    /// Whether connections broke too.
    pub(super) connections_lost: bool,
}

impl Facts {
    pub(super) fn of(open: &[&Sighting<'_>]) -> Self {
        let mut facts = Self::default();
        for (index, sighting) in open.iter().enumerate() {
            facts.connections_lost |= sighting.is("collective.peer");
            if !(sighting.is("collective.timeout")
                || sighting.is("jax.consequence")
                || sighting.is("store.clients"))
            {
                continue;
            }
            let text = sighting.text.as_str();
            let process_group = PROCESS_GROUP
                .captures(text)
                .map_or_else(String::new, |found| {
                    let id = group(&found, "guid").or(group(&found, "id"));
                    // Lines that name no group are about the default one.
                    id.filter(|id| *id != "0").unwrap_or_default().to_owned()
                });
            let mut is_one = sighting.is("collective.timeout");
            if let Some(found) = TIMEOUT.captures(text)
                && let Some(sequence) = number(&found, "sequence")
            {
                facts.timeouts.push(Timeout {
                    rank: sighting.rank,
                    process_group: process_group.clone(),
                    sequence,
                    operation: Operation {
                        name: group(&found, "operation").unwrap_or_default().to_owned(),
                        numbers: number(&found, "in").zip(number(&found, "out")),
                    },
                });
            }
            if let Some(found) = STATUS.captures(text)
                && let (Some(rank), Some(enqueued)) = (sighting.rank, number(&found, "enqueued"))
            {
                facts.enqueued.insert((rank, process_group), enqueued);
            }
            if let Some(found) = MISSING.iter().find_map(|pattern| pattern.captures(text)) {
                let list = group(&found, "list").unwrap_or_default();
                facts.missing.extend(
                    list.split(',')
                        .filter_map(|rank| rank.trim().parse::<u32>().ok()),
                );
                is_one = true;
            }
            if is_one {
                facts.first = facts.first.or(Some(index));
            }
        }
        facts
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}
