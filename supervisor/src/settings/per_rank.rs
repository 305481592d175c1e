// SPDX-License-Identifier: Apache-2.0
//! A value for each local rank, written as torchrun writes it: `3` for all ranks, or `0:1,12:3`.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A value for each local rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PerRank<T> {
    /// Value of the ranks that `ranks` does not name.
    pub(crate) default: T,
    /// Values of single local ranks.
    pub(crate) ranks: BTreeMap<u32, T>,
}

/// A choice among a worker's two output streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Std {
    /// Neither (0).
    #[default]
    None,
    /// Standard output (1).
    Out,
    /// Standard error (2).
    Err,
    /// Both (3).
    Both,
}

impl<T: Copy> PerRank<T> {
    /// The same value for every rank.
    pub(crate) fn all(value: T) -> Self {
        Self {
            default: value,
            ranks: BTreeMap::new(),
        }
    }

    /// The value for `local_rank`.
    pub(crate) fn get(&self, local_rank: u32) -> T {
        self.ranks.get(&local_rank).copied().unwrap_or(self.default)
    }
}

impl Std {
    /// Whether standard output is chosen.
    pub(crate) fn out(self) -> bool {
        matches!(self, Self::Out | Self::Both)
    }

    /// Whether standard error is chosen.
    pub(crate) fn err(self) -> bool {
        matches!(self, Self::Err | Self::Both)
    }
}

impl FromStr for Std {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "0" => Ok(Self::None),
            "1" => Ok(Self::Out),
            "2" => Ok(Self::Err),
            "3" => Ok(Self::Both),
            other => Err(format!(
                "`{other}` is not 0 (none), 1 (stdout), 2 (stderr) or 3 (both)"
            )),
        }
    }
}

impl FromStr for PerRank<Std> {
    type Err = String;

    /// Reads `3` or `0:1,12:3`; ranks that such a map does not name get [`Std::None`].
    fn from_str(text: &str) -> Result<Self, String> {
        if !text.contains(':') {
            return text.parse().map(Self::all);
        }
        let mut ranks = BTreeMap::new();
        for entry in text.split(',') {
            let (rank, value) = entry
                .split_once(':')
                .ok_or_else(|| format!("`{entry}` is not RANK:VALUE"))?;
            let rank: u32 = rank
                .trim()
                .parse()
                .map_err(|_| format!("`{rank}` is not a local rank"))?;
            if ranks.insert(rank, value.parse()?).is_some() {
                return Err(format!("local rank {rank} is named twice"));
            }
        }
        Ok(Self {
            default: Std::None,
            ranks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_is_for_every_rank() {
        let all: PerRank<Std> = "3".parse().unwrap();
        assert_eq!(all.get(0), Std::Both);
        assert_eq!(all.get(400), Std::Both);
    }

    #[test]
    fn a_map_takes_ranks_of_more_than_one_digit() {
        let some: PerRank<Std> = "0:1,12:3".parse().unwrap();
        assert!(some.get(0).out() && !some.get(0).err());
        assert!(some.get(12).out() && some.get(12).err());
        assert_eq!(some.get(1), Std::None);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| text.parse::<PerRank<Std>>().unwrap_err();
        assert_eq!(
            error("4"),
            "`4` is not 0 (none), 1 (stdout), 2 (stderr) or 3 (both)"
        );
        assert_eq!(error("0:1,3"), "`3` is not RANK:VALUE");
        assert_eq!(error("a:1"), "`a` is not a local rank");
        assert_eq!(error("0:1,0:2"), "local rank 0 is named twice");
    }
}
