// SPDX-License-Identifier: Apache-2.0
//! Which processes launchers saw ending, and how. What a launcher calls the root cause is the process that it saw first,
//! which is most often a victim; only where nothing else is known does it count.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use steadfast_health::signal_name;

use super::Candidate;
use crate::answer::Class;
use crate::clock::{self, Moment};
use crate::context::Context;
use crate::pattern::{compile, group, number};
use crate::rules::Role;
use crate::sighting::Sighting;

/// Launchers write seconds: whoever ended that much earlier ended first.
const CLEAR_LEAD_S: f64 = 2.0;
/// The most tasks of one line that are looked at.
const MOST_TASKS: usize = 1 << 16;

static BLOCK_RANK: LazyLock<Regex> =
    LazyLock::new(|| compile(r"^\W*rank\s+: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\)"));
static BLOCK_CODE: LazyLock<Regex> =
    LazyLock::new(|| compile(r"^\W*exitcode\s+: ?(?P<code>-?\d+)(?: \(pid: (?P<pid>\d+)\))?"));
/// What Hydra writes of each process.
static HYDRA_RANK: LazyLock<Regex> =
    LazyLock::new(|| compile(r"RANK (?P<rank>\d+) PID (?P<pid>\d+) RUNNING AT (?P<node>[\w.-]+)"));
static HYDRA_END: LazyLock<Regex> = LazyLock::new(|| {
    compile(r"KILLED BY SIGNAL: (?P<signal>\d+)|EXIT (?:STATUS|CODE): (?P<code>-?\d+)")
});
static BLOCK_HOST: LazyLock<Regex> = LazyLock::new(|| compile(r"^\W*host\s+: (?P<node>\S+)"));
static BLOCK_TIME: LazyLock<Regex> = LazyLock::new(|| compile(r"^\W*time\s+: \S"));
static FAILED: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)",
    )
});
static SRUN: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"srun: error: (?P<node>\S+): tasks? (?P<tasks>[\d,\[\]-]+): (?:Exited with exit code (?P<code>\d+)|(?P<signal>Terminated|Killed|Segmentation fault|Aborted|Bus error|Floating point exception|Illegal instruction))",
    )
});
static OTHERS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    [
        r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<node>\S+) exited on signal (?P<signal_number>\d+)",
        r"Process name: \[\[[^\]]*\],(?P<rank>\d+)\]\s*.*[Ee]xit code:\s*(?P<code>\d+)",
        r"[Pp]rocess (?P<rank>\d+) exit with status code (?P<code>-?\d+)",
        r"[Pp]rocess (?P<rank>\d+) terminated with (?:signal (?P<signal_word>SIG\w+)|exit code (?P<code>\d+))",
        r"Process \[\d+\] \(PID (?P<pid>\d+)\) exited with (?:exit )?code (?P<code>-?\d+)",
        r"Killing subprocess (?P<pid>\d+)$",
        r"exits with return code = (?P<code>-?\d+)",
        r"died with <Signals\.(?P<signal_word>SIG\w+): \d+>",
        r"[Rr]ank (?P<rank>\d+).*\bexit(?:ed|s)?(?: with)? (?:code|status) (?P<code>-?\d+)",
        r"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: (?P<signal_text>[A-Za-z ]+) \(signal (?P<signal_number>\d+)\)",
    ]
    .map(compile)
    .into()
});

/// A process that has ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Exit {
    pub(super) rank: Option<u32>,
    pub(super) node: Option<String>,
    /// Negative for a signal.
    pub(super) code: i32,
    pub(super) at: Option<Moment>,
    /// Where in `open` it was told.
    index: usize,
}

impl Exit {
    /// Whether it ended by itself, and not well: a launcher ends the others by SIGTERM.
    pub(super) fn is_failure(&self) -> bool {
        !matches!(self.code, 0 | -15 | 143 | -2 | 130)
    }

    fn signal(&self) -> Option<i32> {
        match self.code {
            code if code < 0 => Some(-code),
            code if code > 128 && code < 128 + 65 => Some(code - 128),
            _ => None,
        }
    }
}

/// The ends of processes that the launchers tell of.
pub(super) fn exits(open: &[&Sighting<'_>], context: &Context) -> Vec<Exit> {
    let mut exits: Vec<Exit> = Vec::new();
    let mut block = Block::default();
    let mut file = "";
    for (index, sighting) in open.iter().enumerate() {
        if sighting.file != file {
            block = Block::default();
            file = &sighting.file;
        }
        let text = sighting.text.as_str();
        if let Some(exit) = block.take(text, index) {
            exits.push(exit);
            continue;
        }
        if let Some(found) = FAILED.captures(text) {
            let pid = number(&found, "pid");
            let local = number(&found, "local");
            let rank = pid
                .and_then(|pid| context.rank_of_pid(pid))
                .or_else(|| context.rank_at(sighting.node.as_deref(), local?))
                .or(if context.nodes.is_empty() {
                    local
                } else {
                    None
                });
            exits.extend(exit(rank, sighting, number(&found, "code"), index));
        } else if let Some(found) = SRUN.captures(text) {
            exits.extend(of_srun(&found, sighting, index, context));
        } else if sighting.rule.role == Role::Summary {
            exits.extend(other(text, sighting, index, context));
        }
    }
    for exit in &mut exits {
        if let Some(node) = exit.rank.and_then(|rank| context.node_of(rank)) {
            exit.node = Some(node.name.clone());
        }
    }
    exits
}

/// The lines of one process in torchrun's summary.
#[derive(Default)]
struct Block {
    rank: Option<u32>,
    node: Option<String>,
    at: Option<Moment>,
}

impl Block {
    fn take(&mut self, text: &str, index: usize) -> Option<Exit> {
        if let Some(found) = BLOCK_RANK.captures(text) {
            self.rank = number(&found, "rank");
        } else if let Some(found) = HYDRA_RANK.captures(text) {
            self.rank = number(&found, "rank");
            self.node = group(&found, "node").map(str::to_owned);
        } else if let Some(found) = HYDRA_END.captures(text) {
            let by_signal = number(&found, "signal").map(|signal: i32| -signal);
            return Some(Exit {
                rank: self.rank.take(),
                node: self.node.take(),
                code: by_signal.or(number(&found, "code"))?,
                at: None,
                index,
            });
        } else if let Some(found) = BLOCK_HOST.captures(text) {
            self.node = group(&found, "node").map(str::to_owned);
        } else if BLOCK_TIME.is_match(text) {
            self.at = clock::find(text);
        } else if let Some(found) = BLOCK_CODE.captures(text) {
            return Some(Exit {
                rank: self.rank.take(),
                node: self.node.take(),
                code: number(&found, "code")?,
                at: self.at.take(),
                index,
            });
        }
        None
    }
}

fn exit(
    rank: Option<u32>,
    sighting: &Sighting<'_>,
    code: Option<i32>,
    index: usize,
) -> Option<Exit> {
    Some(Exit {
        rank,
        node: sighting.node.clone(),
        code: code?,
        at: sighting.at,
        index,
    })
}

fn of_srun(
    found: &regex::Captures<'_>,
    sighting: &Sighting<'_>,
    index: usize,
    context: &Context,
) -> Vec<Exit> {
    let code = number(found, "code").or_else(|| {
        Some(match group(found, "signal")? {
            "Terminated" => -15,
            "Killed" => -9,
            "Segmentation fault" => -11,
            "Aborted" => -6,
            "Bus error" => -7,
            "Floating point exception" => -8,
            _ => -4,
        })
    });
    let node = group(found, "node").map(|name| {
        let known = context.node_named(name);
        known.map_or_else(|| name.to_owned(), |node| node.name.clone())
    });
    let tasks = tasks(group(found, "tasks").unwrap_or_default());
    // With one supervisor or launcher a node, a task is no rank.
    let one_a_node = context
        .nodes
        .iter()
        .any(|node| node.ranks.len() > 1 && context.nodes.len() > 1)
        && node
            .as_deref()
            .and_then(|name| context.node_named(name))
            .is_some_and(|node| tasks.iter().any(|task| !node.ranks.contains(task)));
    if one_a_node {
        let mut one = exit(None, sighting, code, index);
        if let Some(exit) = &mut one {
            exit.node = node;
        }
        return one.into_iter().collect();
    }
    tasks
        .into_iter()
        .filter_map(|task| {
            let mut one = exit(Some(task), sighting, code, index)?;
            one.node.clone_from(&node);
            Some(one)
        })
        .collect()
}

/// `2-3,7` or `[0-3]`
fn tasks(list: &str) -> BTreeSet<u32> {
    let mut tasks = BTreeSet::new();
    for part in list.trim_matches(['[', ']']).split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            tasks.extend((first..=last).take(MOST_TASKS));
        }
    }
    tasks
}

fn other(text: &str, sighting: &Sighting<'_>, index: usize, context: &Context) -> Option<Exit> {
    let found = OTHERS.iter().find_map(|pattern| pattern.captures(text))?;
    let pid: Option<u32> = number(&found, "pid");
    let signal = number::<i32>(&found, "signal_number").or_else(|| {
        let name = group(&found, "signal_word")?;
        (1..32).find(|&signal| signal_name(signal) == name)
    });
    let code = number(&found, "code").or(signal.map(|signal| -signal));
    let rank = number(&found, "rank").or_else(|| context.rank_of_pid(pid?));
    let mut exit = exit(rank.or(sighting.rank), sighting, code, index)?;
    if let Some(node) = group(&found, "node") {
        exit.node = Some(node.to_owned());
    }
    Some(exit)
}

/// A traceback that does not say whose it is belongs to the rank that failed by itself, if there is one.
pub(super) fn attribute(candidates: &mut [Candidate], exits: &[Exit]) {
    let with = |test: &dyn Fn(&Exit) -> bool| -> BTreeSet<u32> {
        let failed = exits.iter().filter(|exit| exit.is_failure() && test(exit));
        failed.filter_map(|exit| exit.rank).collect()
    };
    let mut failed = with(&|exit| exit.code > 0 && exit.code < 128);
    if failed.is_empty() && exits.len() > 1 {
        // What throws outside of Python ends by a signal.
        failed = with(&|exit| exit.code != -9 && exit.code != 137);
    }
    let [rank] = failed.into_iter().collect::<Vec<_>>()[..] else {
        return;
    };
    let node = exits
        .iter()
        .find(|exit| exit.rank == Some(rank))
        .and_then(|exit| exit.node.clone());
    for candidate in candidates {
        let speaks_for_a_process = matches!(
            candidate.class,
            Class::ProgramError
                | Class::GpuMemory
                | Class::GpuHardware
                | Class::Storage
                | Class::HostMemory
        );
        if speaks_for_a_process
            && candidate.culprit.rank.is_none()
            && candidate.culprit.node.is_none()
            && !candidate.is_thin()
            && !candidate.is_shared
        {
            candidate.culprit.rank = Some(rank);
            candidate.culprit.node.clone_from(&node);
        }
    }
}

/// Where nothing else is known: the process that ended first, unless it was only a victim.
pub(super) fn candidate(exits: &[Exit], open: &[&Sighting<'_>]) -> Option<Candidate> {
    let victims: BTreeSet<u32> = open
        .iter()
        .filter(|sighting| sighting.rule.role == Role::Consequence)
        .filter_map(|sighting| sighting.rank)
        .collect();
    let own: Vec<&Exit> = exits
        .iter()
        .filter(|exit| exit.is_failure())
        .filter(|exit| {
            // Whoever waited in vain aborts or throws; whoever is killed or crashes does not wait.
            let by_itself = matches!(exit.signal(), Some(4 | 7 | 8 | 9 | 11));
            by_itself || exit.rank.is_none_or(|rank| !victims.contains(&rank))
        })
        .collect();
    let first = own
        .iter()
        .copied()
        .min_by(|one, two| weight(one).cmp(&weight(two)).then(earlier(one, two)))?;
    let alike = own.iter().filter(|exit| exit.code == first.code);
    let ranks: BTreeSet<Option<u32>> = alike.clone().map(|exit| exit.rank).collect();
    let mut candidate = match first.signal() {
        Some(9) => {
            let mut killed = Candidate::new(
                "exit.killed",
                Class::Unknown,
                56,
                "it was killed from outside (SIGKILL), and nothing says by whom",
            );
            killed.confidence = 0.4;
            "look into the kernel log for the out-of-memory killer, and into the scheduler's log"
                .clone_into(&mut killed.next);
            killed
        }
        Some(signal @ (4 | 8 | 11)) => crash(signal, Class::ProgramError),
        Some(signal @ 7) => crash(signal, Class::HostMemory),
        Some(signal @ 6) => {
            let mut aborted = crash(signal, Class::Unknown);
            (aborted.strength, aborted.confidence) = (46, 0.3);
            aborted
        }
        None if matches!(first.code, 16 | 17) => {
            let mut suspect = Candidate::new(
                "exit.rerun",
                Class::GpuHardware,
                58,
                "Megatron ended the rank because its results could not be reproduced or validated",
            );
            suspect.confidence = 0.6;
            "start the rank on another GPU, and have this one tested".clone_into(&mut suspect.next);
            suspect
        }
        _ => {
            let words = format!(
                "it ended with code {}, and its output does not say why",
                first.code
            );
            let mut ended = Candidate::new("exit.code", Class::Unknown, 45, words);
            ended.confidence = 0.3;
            "look at the whole output of this rank".clone_into(&mut ended.next);
            ended
        }
    };
    let told = open.get(first.index)?;
    candidate.signals.push(told.signal());
    candidate.at = first.at;
    if ranks.len() == 1
        || own.len() == exits.len() && is_clearly_first(first, &own)
        || matches!(first.signal(), Some(4 | 7 | 8 | 9 | 11)) && ranks.len() * 2 <= exits.len()
    {
        candidate.culprit.rank = first.rank;
    }
    let nodes: BTreeSet<&Option<String>> = alike.map(|exit| &exit.node).collect();
    if candidate.culprit.rank.is_some() || nodes.len() == 1 {
        candidate.culprit.node.clone_from(&first.node);
    }
    Some(candidate)
}

/// Whether it ended clearly before all others.
fn is_clearly_first(first: &Exit, all: &[&Exit]) -> bool {
    let mut others = all.iter().filter(|exit| exit.rank != first.rank);
    others.all(|exit| {
        let times = exit.at.zip(first.at);
        let later = times.and_then(|(at, first)| at.since(first));
        later.is_some_and(|later| later >= CLEAR_LEAD_S)
    })
}

fn crash(signal: i32, class: Class) -> Candidate {
    let words = format!("the process was ended by {}", signal_name(signal));
    let mut crash = Candidate::new("exit.crash", class, 55, words);
    crash.confidence = 0.5;
    "look at the last lines of this rank, and at the libraries that it uses"
        .clone_into(&mut crash.next);
    crash
}

/// Signals that nobody sends to a waiting process say more than exit codes.
fn weight(exit: &Exit) -> u8 {
    match exit.signal() {
        Some(4 | 7 | 8 | 9 | 11) => 0,
        Some(_) => 2,
        None => 1,
    }
}

fn earlier(one: &Exit, two: &Exit) -> std::cmp::Ordering {
    match (one.at, two.at) {
        (Some(one), Some(two)) => one.seconds.total_cmp(&two.seconds),
        _ => std::cmp::Ordering::Equal,
    }
}
