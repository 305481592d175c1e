// SPDX-License-Identifier: Apache-2.0
//! What can be seen of the workers when the training stalls, taken before anything is done about it.
//!
//! Owns looking (a thread for each worker, since anything may hang that touches a process which does) and the directory
//! in which what was seen is kept. It judges nothing.
//!
//! Invariants:
//! - EV-1: a look ends within [`LOOK_WITHIN`], whatever hangs; what did not answer is reported as not seen.
//! - EV-2: a worker gets the signal for its stacks only if it has a handler for it at that moment.
//! - EV-3: lines of output are kept without the secrets in them, and everything is bounded.

mod bundle;
mod exchange;
mod look;
mod node;
mod training_process;

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use steadfast_core::{Activity, Doing, KernelState, LocalRank, NodeName, Rank, RankSigns};
use steadfast_health::Socket;
use steadfast_health::task_state::ProcessState;

pub(crate) use self::bundle::{Bundle, write_bundle};
pub(crate) use self::exchange::{Seen, pack, unpack};
pub(crate) use self::node::{NodeEvidence, NodeSubject, look_at_node};

/// A look at all workers takes no longer.
pub(crate) const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// A worker to look at.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    /// The node's name.
    pub(crate) node: NodeName,
    /// Its rank.
    pub(crate) rank: u32,
    /// Its place on the node.
    pub(crate) local_rank: u32,
    /// The process that the keeper has started.
    pub(crate) pid: i32,
    /// The process with the leading progress page, and the signal for its stacks.
    pub(crate) trains: Option<(u32, Option<u32>)>,
    /// Where its pages, and its stacks, are.
    pub(crate) pages: PathBuf,
    /// The last step that it has made.
    pub(crate) step: Option<u64>,
    /// What it says that it is busy with.
    pub(crate) activity: Option<Activity>,
    /// What it has printed last, without secrets.
    pub(crate) last_lines: Vec<String>,
}

/// What was seen of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RankEvidence {
    /// What it comes to.
    pub(crate) signs: RankSigns,
    /// How its threads were at the last look.
    pub(crate) process: Option<ProcessState>,
    /// What its interpreter wrote, one text for each look.
    pub(crate) stacks: Vec<String>,
    /// What it has printed last.
    pub(crate) last_lines: Vec<String>,
    /// Its TCP connections.
    #[serde(default)]
    pub(crate) sockets: Vec<Socket>,
}

/// Looks at all of them at once.
pub(crate) fn look_at_all(subjects: &[Subject]) -> Vec<RankEvidence> {
    let deadline = Instant::now() + LOOK_WITHIN;
    let (sender, seen) = mpsc::channel();
    for (index, subject) in subjects.iter().enumerate() {
        let (subject, sender) = (subject.clone(), sender.clone());
        // Without a thread the worker counts as not seen.
        let _not_seen = thread::Builder::new()
            .name("evidence".to_owned())
            .spawn(move || {
                let evidence = look::at(&subject);
                // Too late: nobody waits any more.
                drop(sender.send((index, evidence)));
            });
    }
    drop(sender);
    let mut found: Vec<Option<RankEvidence>> = vec![None; subjects.len()];
    while found.iter().any(Option::is_none) {
        let left = deadline.saturating_duration_since(Instant::now());
        match seen.recv_timeout(left) {
            Ok((index, evidence)) => found[index] = Some(evidence),
            Err(_) => break,
        }
    }
    found
        .into_iter()
        .zip(subjects)
        .map(|(evidence, subject)| evidence.unwrap_or_else(|| not_seen(subject)))
        .collect()
}

/// What is known of a worker without looking at it.
fn not_seen(subject: &Subject) -> RankEvidence {
    let place = (Rank(subject.rank), LocalRank(subject.local_rank));
    let mut evidence = RankEvidence::unknown(&subject.node, place, KernelState::Unknown);
    evidence.signs.pid = u32::try_from(subject.pid).unwrap_or(0);
    evidence.signs.step = subject.step;
    evidence.signs.activity = subject.activity;
    evidence.last_lines.clone_from(&subject.last_lines);
    evidence
}

impl RankEvidence {
    /// A rank of which no more is known than where it runs, and perhaps that nothing is heard from there.
    pub(crate) fn unknown(
        node: &NodeName,
        (rank, local_rank): (Rank, LocalRank),
        kernel: KernelState,
    ) -> RankEvidence {
        RankEvidence {
            signs: RankSigns {
                node: node.clone(),
                rank,
                local_rank,
                pid: 0,
                step: None,
                activity: None,
                kernel,
                wchan: None,
                doing: Doing::Unknown,
                stack: Vec::new(),
                still: false,
                cpu: 0.0,
                wants_lock: false,
                unheard_by: None,
                reported: None,
            },
            process: None,
            stacks: Vec::new(),
            last_lines: Vec::new(),
            sockets: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
