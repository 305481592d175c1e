// SPDX-License-Identifier: Apache-2.0
//! An answer for people, as versions before 2.28.7 give it: a table of communicators, then a part for each that something is
//! wrong with, under a line such as `#0-0 (9e17999afaa87dbb) MISMATCH`.

use super::report::{MOST_PEERS, RasPeer, RasProblem};

/// Headings of problems of the whole job.
const OF_THE_JOB: [&str; 3] = ["INCOMPLETE", "DEAD", "TIMEOUT"];

/// What is wrong, by the text.
pub(super) fn problems(answer: &str) -> Vec<RasProblem> {
    let mut found: Vec<RasProblem> = Vec::new();
    let mut is_open = false;
    for line in answer.lines() {
        let words = line.trim();
        let is_indented = line.starts_with(' ');
        if let Some((communicator, what)) = heading(words) {
            found.push(RasProblem {
                communicator: Some(communicator.to_owned()),
                what: what.to_owned(),
                peers: Vec::new(),
            });
            is_open = true;
        } else if !is_indented && OF_THE_JOB.contains(&words) {
            found.push(RasProblem {
                communicator: None,
                what: words.to_owned(),
                peers: Vec::new(),
            });
            is_open = true;
        } else if words.is_empty() || !is_indented {
            is_open = false;
        } else if let Some(problem) = found.last_mut().filter(|_| is_open) {
            match peers(words) {
                peers if peers.is_empty() => {
                    problem.what = format!("{}; {words}", problem.what);
                }
                peers => {
                    let room = MOST_PEERS.saturating_sub(problem.peers.len());
                    problem.peers.extend(peers.into_iter().take(room));
                }
            }
        }
    }
    found
}

/// `#0-0 (9e17999afaa87dbb) MISMATCH`.
fn heading(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.strip_prefix('#')?.split_once('(')?;
    let (hash, what) = rest.split_once(')')?;
    let what = what.trim();
    (!what.is_empty()).then_some((hash, what))
}

/// `Rank 0 -- GPU 0 managed by process 507285 on node 172.16.64.210`, `Process 3487984 on node 172.16.64.213 managing GPU 5`,
/// `The missing rank: 21`, `The missing ranks: 3,5-7`.
fn peers(line: &str) -> Vec<RasPeer> {
    if let Some((_, list)) = line
        .strip_prefix("The missing rank")
        .and_then(|rest| rest.split_once(':'))
    {
        return ranks(list);
    }
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let after = |word: &str| {
        let at = words
            .iter()
            .position(|candidate| candidate.eq_ignore_ascii_case(word))?;
        words.get(at + 1).copied()
    };
    let pid = after("process").and_then(|pid| pid.parse().ok());
    let is_peer = matches!(words.first(), Some(&("Rank" | "Process"))) && pid.is_some();
    if !is_peer {
        return Vec::new();
    }
    vec![RasPeer {
        rank: after("rank").and_then(|rank| rank.parse().ok()),
        host: after("node").map(str::to_owned),
        pid,
    }]
}

fn ranks(list: &str) -> Vec<RasPeer> {
    let peer = |rank| RasPeer {
        rank: Some(rank),
        ..RasPeer::default()
    };
    let mut found = Vec::new();
    for part in list.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            found.extend((first..=last).take(MOST_PEERS).map(peer));
        }
        if found.len() >= MOST_PEERS {
            break;
        }
    }
    found
}
