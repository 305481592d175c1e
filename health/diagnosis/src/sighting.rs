// SPDX-License-Identifier: Apache-2.0
//! Lines that mean something, put on one time line, and what the ranks did besides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;
use regex::bytes::Captures;
use steadfast_health::StepTracker;

use crate::answer::Signal;
use crate::clock::Moment;
use crate::context::Context;
use crate::evidence::{Evidence, FileKind};
use crate::line::{Line, Origin, lines};
use crate::pattern::{compile, group, number};
use crate::rules::{Role, Rule, Rules};

/// The most characters of a line that are quoted.
const QUOTED: usize = 300;
/// The most lines that are kept of one rule and speaker: a storm says no more than its beginning.
const KEPT: usize = 64;

/// What a launcher writes before what it tells of one process.
static ABOUT: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"^\W*rank\s+: (?P<rank>\d+) \(local_rank|^\W*Process (?P<process>\d+) terminated with the following error",
    )
});
/// Where that ends.
static BREAK: LazyLock<Regex> =
    LazyLock::new(|| compile(r"^\W*(?:\[\d+\]:|[-=]{8,}|Root Cause)\W*"));
/// What an event of Kubernetes is about.
static OBJECT: LazyLock<Regex> =
    LazyLock::new(|| compile(r"\b(?:[Pp]od|[Nn]ode)s?/(?P<name>[\w.-]+)"));

/// Where a worker of Ray ran that the lines around it tell of.
static AT_ADDRESS: LazyLock<Regex> =
    LazyLock::new(|| compile(r"^\W*(?:node_)?ip: (?P<address>[\w.:]+)$"));
/// How many lines such a paragraph has after it.
const PARAGRAPH: u8 = 6;
/// What comes before a traceback that the interpreter itself passes over: nothing fails by it.
static PASSED_OVER: LazyLock<Regex> = LazyLock::new(|| {
    compile(r"^\W*Exception ignored in\b|\batexit\._run_exitfuncs|^\W*--- Logging error ---")
});

/// The last line of a traceback.
static EXCEPTION: LazyLock<Regex> = LazyLock::new(|| {
    compile(r"^(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Empty|Full)\b(?::|$)")
});
/// No traceback is longer.
const TRACEBACK: u8 = 200;

/// A line that means something.
#[derive(Clone, Debug)]
pub(crate) struct Sighting<'r> {
    pub(crate) rule: &'r Rule,
    pub(crate) rank: Option<u32>,
    pub(crate) node: Option<String>,
    /// When, by a clock that is right; of a line that does not say it, what the lines before it say.
    pub(crate) at: Option<Moment>,
    /// Whether it says itself when.
    pub(crate) is_timed: bool,
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) text: String,
    /// What the line names: a rank, a node, a peer, a process.
    pub(crate) named: Named,
}

/// Whom or what a line names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) rank: Option<u32>,
    pub(crate) node: Option<String>,
    pub(crate) peer: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) local_rank: Option<u32>,
}

/// A step that somebody made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Progress {
    pub(crate) rank: Option<u32>,
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) step: u64,
    pub(crate) at: Option<Moment>,
}

/// Everything that the logs say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sightings<'r> {
    pub(crate) all: Vec<Sighting<'r>>,
    pub(crate) progress: Vec<Progress>,
    /// Ranks that printed anything.
    pub(crate) heard: BTreeSet<u32>,
    /// Ranks that have a file of their own.
    pub(crate) with_file: BTreeSet<u32>,
    /// Nodes of which anything was printed.
    pub(crate) heard_nodes: BTreeSet<String>,
    /// The last moment at which a rank was heard.
    pub(crate) last_heard: BTreeMap<u32, Moment>,
    /// Lines read.
    pub(crate) lines: u64,
}

impl Sighting<'_> {
    pub(crate) fn signal(&self) -> Signal {
        Signal {
            file: self.file.clone(),
            line: self.line,
            meaning: self.rule.meaning.clone(),
            text: self.text.clone(),
        }
    }

    pub(crate) fn is(&self, id: &str) -> bool {
        self.rule.id == id
    }
}

/// Reads every log of the evidence.
pub(crate) fn read<'r>(evidence: &Evidence, context: &Context, rules: &'r Rules) -> Sightings<'r> {
    let mut found = Sightings::default();
    for file in evidence.files() {
        if !matches!(file.kind(), FileKind::Log | FileKind::Kernel) {
            continue;
        }
        let origin = Origin::of(file, context);
        found.with_file.extend(origin.rank);
        let mut reader = Reader {
            found: &mut found,
            rules,
            context,
            file: &file.name,
            last: BTreeMap::new(),
            steps: BTreeMap::new(),
            kept: BTreeMap::new(),
            about: None,
            about_node: None,
            passed_over: BTreeMap::new(),
        };
        for line in lines(file, &origin, context) {
            reader.take(&line);
        }
    }
    found
}

/// Reads one file.
struct Reader<'f, 'r, 'c> {
    found: &'f mut Sightings<'r>,
    rules: &'r Rules,
    context: &'c Context,
    file: &'f str,
    /// When each speaker last said what time it is.
    last: BTreeMap<Option<u32>, Moment>,
    steps: BTreeMap<Option<u32>, (StepTracker, u64)>,
    kept: BTreeMap<(Option<u32>, String), usize>,
    /// The rank that a launcher's summary is about.
    about: Option<u32>,
    /// The node that a paragraph is about, and how many lines of it are left.
    about_node: Option<(String, u8)>,
    /// Speakers whose next traceback means nothing, and how many lines it is waited for.
    passed_over: BTreeMap<Option<u32>, u8>,
}

impl Reader<'_, '_, '_> {
    fn take(&mut self, line: &Line<'_>) {
        self.found.lines += 1;
        let ahead = line
            .node
            .as_deref()
            .and_then(|node| self.context.node_named(node))
            .map_or(0.0, |node| node.clock_ahead_s);
        if let Some(written) = line.written {
            self.last.insert(line.rank, written.corrected(ahead));
        }
        let at = self.last.get(&line.rank).copied();
        if let Some(rank) = line.rank {
            self.found.heard.insert(rank);
            if let Some(at) = at {
                let last = self.found.last_heard.entry(rank).or_insert(at);
                if at.since(*last).is_some_and(|later| later > 0.0) {
                    *last = at;
                }
            }
        }
        self.found.heard_nodes.extend(line.node.clone());
        self.step(line, at);
        let message = line.message();
        if self.is_passed_over(line) {
            return;
        }
        let rank = line.rank.or_else(|| self.within(message));
        self.place(message);
        let Some((rule, groups)) = self.rules.find(message) else {
            return;
        };
        if rule.role == Role::Ignore {
            return;
        }
        let kept = self.kept.entry((rank, rule.id.clone())).or_default();
        *kept += 1;
        if *kept > KEPT && rule.role != Role::Recovered {
            return;
        }
        self.found.all.push(Sighting {
            rule,
            rank,
            node: line.node.clone(),
            at,
            is_timed: line.written.is_some(),
            file: self.file.to_owned(),
            line: line.number,
            text: shortened(message),
            named: self.named(groups, message),
        });
    }

    /// The rank that this part of a launcher's summary is about.
    fn within(&mut self, message: &str) -> Option<u32> {
        if let Some(found) = ABOUT.captures(message) {
            self.about = number(&found, "rank").or_else(|| number(&found, "process"));
        } else if self.about.is_some() && BREAK.is_match(message) {
            self.about = None;
        }
        self.about
    }

    /// The node that the lines around tell of.
    fn place(&mut self, message: &str) {
        if let Some(found) = AT_ADDRESS.captures(message) {
            let node = group(&found, "address").and_then(|name| self.context.node_named(name));
            self.about_node = node.map(|node| (node.name.clone(), PARAGRAPH));
        } else if let Some((node, left)) = self.about_node.take()
            && left > 0
        {
            self.about_node = Some((node, left - 1));
        }
    }

    /// Whether the line belongs to a traceback that the interpreter itself passes over.
    fn is_passed_over(&mut self, line: &Line<'_>) -> bool {
        let message = line.message();
        if PASSED_OVER.is_match(message) {
            self.passed_over.insert(line.rank, TRACEBACK);
            return true;
        }
        let Some(left) = self.passed_over.get_mut(&line.rank) else {
            return false;
        };
        *left = left.saturating_sub(1);
        let before = line.whole.get(..line.start).unwrap_or_default();
        let is_within = before.ends_with("  ")
            || ["Traceback", "File \""]
                .iter()
                .any(|start| message.starts_with(start));
        let is_end = !is_within && EXCEPTION.is_match(message);
        if is_end || *left == 0 {
            self.passed_over.remove(&line.rank);
        }
        is_within || is_end
    }

    fn named(&self, groups: Option<Captures<'_>>, message: &str) -> Named {
        let mut named = groups.map(|groups| named(&groups)).unwrap_or_default();
        if named.node.is_none()
            && let Some(found) = OBJECT.captures(message)
            && let Some(name) = group(&found, "name")
            && self.context.node_named(name).is_some()
        {
            named.node = Some(name.to_owned());
        }
        if named.node.is_none()
            && let Some((node, _)) = &self.about_node
        {
            named.node = Some(node.clone());
        }
        named
    }

    fn step(&mut self, line: &Line<'_>, at: Option<Moment>) {
        let (tracker, last) = self.steps.entry(line.rank).or_default();
        let Some(step) = tracker.observe(line.message().as_bytes()) else {
            return;
        };
        if step > *last || *last == 0 {
            *last = step;
            self.found.progress.push(Progress {
                rank: line.rank,
                file: self.file.to_owned(),
                line: line.number,
                step,
                at,
            });
        }
    }
}

fn named(groups: &Captures<'_>) -> Named {
    let text = |name: &str| {
        let group = groups.name(name)?;
        Some(String::from_utf8_lossy(group.as_bytes()).into_owned())
    };
    Named {
        rank: text("rank").and_then(|rank| rank.parse().ok()),
        node: text("node"),
        peer: text("peer"),
        pid: text("pid").and_then(|pid| pid.parse().ok()),
        local_rank: text("local_rank").and_then(|rank| rank.parse().ok()),
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
