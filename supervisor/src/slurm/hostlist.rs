// SPDX-License-Identifier: Apache-2.0
//! Slurm's host lists: `gpu[001-003,007],login1` and back.
//!
//! [`mod@parse`] reads a list, [`item`] holds what it stands for without writing the hosts out, [`mod@compress`] makes a
//! list, and [`command`] is `steadfast hostlist`. Slurm 22.05 is the model; `testdata/hostlist.tsv` holds its answers, and
//! names each that is not followed.

pub(crate) mod command;
mod compress;
mod error;
mod item;
mod parse;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub(crate) use self::error::HostListError;
use self::item::Item;

/// The most hosts that one list may name: far above any cluster, and far below what fills the memory.
pub(crate) const MAX_HOSTS: usize = 1 << 20;

/// The most hosts that one range may hold. It is Slurm's limit.
pub(crate) const MAX_RANGE: usize = 1 << 16;

/// The longest name of a host, in bytes: that of the domain name system.
pub(crate) const MAX_NAME: usize = 253;

/// A list that has been read and found right. It takes memory for what is written in the list, not for each host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostList {
    items: Vec<Item>,
}

impl HostList {
    /// Reads a list that names at least one and at most `limit` hosts. Nothing is expanded before that is known.
    pub(crate) fn parse(list: &[u8], limit: usize) -> Result<Self, HostListError> {
        parse::items(list, limit).map(|items| Self { items })
    }

    /// How many hosts the list names, repeats included; at least 1.
    pub(crate) fn len(&self) -> usize {
        self.items.iter().map(Item::len).sum()
    }

    /// The hosts in Slurm's order, repeats included.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = String> {
        self.items
            .iter()
            .flat_map(|item| (0..item.len()).map(|index| item.host(index)))
    }
}
