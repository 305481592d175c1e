// SPDX-License-Identifier: Apache-2.0
//! An answer, and what is wrong by it.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use super::text;

/// Problems that are told of, and peers of each.
const MOST_PROBLEMS: usize = 64;
pub(super) const MOST_PEERS: usize = 64;

/// What NCCL says of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RasReport {
    /// Its own words.
    pub answer: String,
    /// NCCL's version, where it is said.
    pub version: Option<String>,
    /// How many communicators there are, where that is said.
    pub communicators: Option<u64>,
    /// What is wrong, by its answer.
    pub problems: Vec<RasProblem>,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RasProblem {
    /// The communicator, by the hash that NCCL gives it; absent for a problem of the whole job.
    pub communicator: Option<String>,
    /// What is said of the peers.
    pub what: String,
    /// Whom it is about.
    pub peers: Vec<RasPeer>,
}

/// A process that takes part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RasPeer {
    /// Its rank in the communicator, which need not be that in the job.
    pub rank: Option<u32>,
    /// Its node, as NCCL knows it.
    pub host: Option<String>,
    /// Its process there.
    pub pid: Option<u32>,
}

#[derive(Deserialize)]
struct Status {
    nccl_version: Option<String>,
    communicators_count: Option<u64>,
    #[serde(default)]
    communicators: Vec<Communicator>,
}

#[derive(Deserialize)]
struct Communicator {
    hash: String,
    #[serde(default)]
    ranks: Vec<Process>,
    #[serde(default)]
    missing_ranks: Vec<Process>,
}

#[derive(Deserialize)]
struct Process {
    rank: u32,
    host: Option<String>,
    pid: Option<u32>,
    #[serde(default)]
    status: ProcessStatus,
    #[serde(default)]
    collective_counts: BTreeMap<String, u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ProcessStatus {
    init_state: i64,
    async_error: i64,
    abort_flag: bool,
    unresponsive: bool,
    considered_dead: bool,
}

impl RasReport {
    /// Reads an answer. What cannot be read as JSON is read as text.
    pub(super) fn read(answer: &str, is_json: bool) -> RasReport {
        let status = is_json.then(|| serde_json::from_str::<Status>(answer).ok());
        let mut report = match status.flatten() {
            Some(status) => RasReport {
                answer: answer.to_owned(),
                problems: status.communicators.iter().flat_map(problems).collect(),
                version: status.nccl_version,
                communicators: status.communicators_count,
            },
            None => RasReport {
                answer: answer.to_owned(),
                version: None,
                communicators: None,
                problems: text::problems(answer),
            },
        };
        report.problems.truncate(MOST_PROBLEMS);
        report
    }
}

fn problems(communicator: &Communicator) -> Vec<RasProblem> {
    let mut found = Vec::new();
    let mut note = |what: &str, such: Vec<&Process>| {
        if !such.is_empty() {
            found.push(RasProblem {
                communicator: Some(communicator.hash.clone()),
                what: what.to_owned(),
                peers: such
                    .into_iter()
                    .take(MOST_PEERS)
                    .map(Process::peer)
                    .collect(),
            });
        }
    };
    let missing = |dead: bool| {
        let ranks = communicator.missing_ranks.iter();
        ranks
            .filter(|rank| rank.status.considered_dead == dead)
            .collect()
    };
    note("considered dead", missing(true));
    note("does not answer", missing(false));
    let those = |such: fn(&ProcessStatus) -> bool| {
        let ranks = communicator.ranks.iter();
        ranks.filter(|rank| such(&rank.status)).collect()
    };
    note("has failed", those(|status| status.async_error != 0));
    note("was aborted", those(|status| status.abort_flag));
    note(
        "is still being set up",
        those(|status| status.init_state != 0),
    );
    note(
        "has not taken it up again",
        those(|status| status.unresponsive),
    );
    // Counts differ all the time, by one or so: only who has the fewest says something about a job that stands still.
    let launched = |rank: &Process| rank.collective_counts.values().sum::<u64>();
    let counted = || {
        communicator
            .ranks
            .iter()
            .filter(|rank| !rank.collective_counts.is_empty())
    };
    let (least, most) = (counted().map(launched).min(), counted().map(launched).max());
    if let (Some(least), Some(most)) = (least, most)
        && least < most
    {
        let behind = counted().filter(|rank| launched(rank) == least).collect();
        note(
            &format!("has begun {least} collectives, others {most}"),
            behind,
        );
    }
    found
}

impl Process {
    fn peer(&self) -> RasPeer {
        RasPeer {
            rank: Some(self.rank),
            host: self.host.clone(),
            pid: self.pid,
        }
    }
}

impl fmt::Display for RasProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peers: Vec<String> = self.peers.iter().map(ToString::to_string).collect();
        match (&self.communicator, peers.is_empty()) {
            (Some(communicator), false) => {
                write!(
                    formatter,
                    "communicator {communicator}: {}: {}",
                    self.what,
                    peers.join(", ")
                )
            }
            (Some(communicator), true) => {
                write!(formatter, "communicator {communicator}: {}", self.what)
            }
            (None, false) => write!(formatter, "{}: {}", self.what, peers.join(", ")),
            (None, true) => write!(formatter, "{}", self.what),
        }
    }
}

impl fmt::Display for RasPeer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.rank.map(|rank| format!("rank {rank}")),
            self.pid.map(|pid| format!("process {pid}")),
            self.host.as_ref().map(|host| format!("on {host}")),
        ];
        let known: Vec<String> = parts.into_iter().flatten().collect();
        formatter.write_str(&known.join(" "))
    }
}
