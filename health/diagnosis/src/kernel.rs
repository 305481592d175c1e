// SPDX-License-Identifier: Apache-2.0
//! Kernel logs: events, incidents, and what of them may be the cause.

mod accuse;
mod meaning;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::Duration;

use regex::Regex;
use serde_json::{Map, Value, json};
use steadfast_health::kernel_log::{Event, KernelLog, PciAddress, SystemKind, What};
use steadfast_health::xid::{Assessment, Grouping, assess, rank_in_incident};

use crate::answer::Signal;
use crate::clock::{self, Moment};
use crate::context::Context;
use crate::evidence::{Evidence, EvidenceFile, FileKind};
use crate::line::without_colour;
use crate::logs::Candidate;
use crate::pattern::{compile, group, number};

pub(crate) use self::accuse::{join, place_storage};

static REPEATED: LazyLock<Regex> =
    LazyLock::new(|| compile(r"message repeated (?P<count>\d+) times: \[ ?(?P<inner>.*?)\]?$"));
static HOST: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"^(?:<\d+>)?(?:[A-Z][a-z]{2} +\d{1,2} [\d:.]+|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-][\d:]+)?) (?P<node>[A-Za-z][\w.-]*) [\w./-]+(?:\[\d+\])?:",
    )
});

/// A GPU that does not answer is asked again and again: what comes within this time belongs together.
const PAUSE: Duration = Duration::from_mins(2);
/// The most events that an answer lists.
const LISTED: usize = 4096;

/// What the kernel logs say.
#[derive(Debug, Default)]
pub(crate) struct KernelFindings {
    pub(crate) candidates: Vec<Candidate>,
    /// For the answer, in the order of the lines.
    pub(crate) events: Vec<Value>,
    pub(crate) incidents: u32,
    /// The lines that were understood, by file.
    pub(crate) lines: BTreeSet<(String, u32)>,
}

/// An event, and where it stands.
#[derive(Clone, Debug)]
struct Told {
    event: Event,
    found: Assessment,
    node: Option<String>,
    at: Option<Moment>,
    signal: Signal,
    incident: Option<u64>,
    is_in_window: bool,
    /// Something later in the log has made it good.
    is_mended: bool,
}

/// Reads the kernel logs, and lines of the driver in other files.
pub(crate) fn read(evidence: &Evidence, context: &Context) -> KernelFindings {
    let mut findings = KernelFindings::default();
    let mut numbers = 0;
    for file in evidence.files() {
        let is_kernel = file.kind() == FileKind::Kernel;
        if !is_kernel && (file.kind() != FileKind::Log || !file.text.contains("NVRM: ")) {
            continue;
        }
        let told = read_file(file, is_kernel, context, &mut numbers);
        for told in &told {
            // Which GPU sits where is no event.
            if findings.events.len() < LISTED && told.event.kind() != "gpu_identity" {
                findings.events.push(listed(told, context));
            }
        }
        let mended = mended(&told);
        let mut incidents: BTreeMap<u64, Vec<Told>> = BTreeMap::new();
        for (index, mut told) in told.into_iter().enumerate() {
            findings
                .lines
                .insert((told.signal.file.clone(), told.signal.line));
            told.is_mended = mended.contains(&index);
            if let Some(incident) = told.incident {
                incidents.entry(incident).or_default().push(told);
            }
        }
        let incidents = continued(incidents.into_values().collect());
        findings.incidents += u32::try_from(incidents.len()).unwrap_or(u32::MAX);
        findings
            .candidates
            .extend(accuse::candidates(&incidents, context));
    }
    findings
}

fn read_file(
    file: &EvidenceFile,
    is_kernel: bool,
    context: &Context,
    numbers: &mut u64,
) -> Vec<Told> {
    let named = file.node(context.nodes.iter().map(|node| node.name.as_str()));
    let only = match &context.nodes[..] {
        [node] => Some(node.name.as_str()),
        _ => None,
    };
    let (mut log, mut grouping) = (KernelLog::new(), Grouping::new());
    let mut events = Vec::new();
    let mut highest = *numbers;
    for (number, line) in file.numbered() {
        let line = without_colour(line);
        if !is_kernel && !line.contains("NVRM: ") && !line.contains("nvidia-nvswitch") {
            continue;
        }
        let unpacked = REPEATED
            .captures(&line)
            .and_then(|found| Some((group(&found, "inner")?.to_owned(), number_of(&found)?)));
        let text = unpacked.as_ref().map_or(&*line, |(inner, _)| inner);
        let Some(event) = log.push(text.as_bytes()) else {
            continue;
        };
        let host = HOST
            .captures(&line)
            .and_then(|found| group(&found, "node").map(str::to_owned))
            .filter(|host| host != "kernel");
        let host = host
            .or_else(|| named.map(str::to_owned))
            .or_else(|| only.map(str::to_owned));
        let known = host.as_deref().and_then(|host| context.node_named(host));
        let at =
            clock::find(&line).map(|at| at.corrected(known.map_or(0.0, |node| node.clock_ahead_s)));
        let found = assess(&event, None);
        let incident = grouping
            .place(&event)
            .incident
            .map(|incident| *numbers + incident);
        highest = highest.max(incident.unwrap_or_default());
        events.push(Told {
            is_in_window: is_in_window(at, context),
            is_mended: false,
            signal: Signal {
                file: file.name.clone(),
                line: number,
                meaning: found.meaning.to_owned(),
                text: line.trim().to_owned(),
            },
            node: known.map(|node| node.name.clone()).or(host),
            found,
            event,
            at,
            incident,
        });
    }
    *numbers = highest;
    events
}

/// Puts incidents together that go on: the same of the same GPU, again and again with less than [`PAUSE`] between.
fn continued(incidents: Vec<Vec<Told>>) -> Vec<Vec<Told>> {
    let of = |told: &Told| match &told.event.what {
        What::Xid(error) => Some((error.code, error.pci)),
        _ => None,
    };
    let mut together: Vec<Vec<Told>> = Vec::new();
    for incident in incidents {
        let first = incident.first();
        let what = first.and_then(of);
        let earlier = together.iter_mut().find(|earlier| {
            let last = earlier.last();
            let pause = first.zip(last).and_then(|(first, last)| {
                let (first, last) = (first.event.header.stamp?, last.event.header.stamp?);
                first.distance(last)
            });
            what.is_some()
                && incident
                    .iter()
                    .chain(earlier.iter())
                    .all(|told| of(told) == what)
                && pause.is_some_and(|pause| pause < PAUSE)
        });
        match earlier {
            Some(earlier) => earlier.extend(incident),
            None => together.push(incident),
        }
    }
    together
}

/// The events that later ones make good: a server that answers again, a port that has its link again.
fn mended(told: &[Told]) -> BTreeSet<usize> {
    let mut mended = BTreeSet::new();
    for (index, later) in told.iter().enumerate() {
        let ends = match later.system() {
            Some(SystemKind::ServerBack) => SystemKind::ServerLost,
            Some(SystemKind::LinkUp) => SystemKind::LinkDown,
            _ => continue,
        };
        let earlier = told.iter().enumerate().take(index);
        mended.extend(
            earlier
                .filter(|(_, told)| told.system() == Some(ends) && told.is_about_what(later))
                .map(|(index, _)| index),
        );
    }
    mended
}

fn number_of(found: &regex::Captures<'_>) -> Option<u64> {
    number(found, "count")
}

/// Whether it happened while the job ran. What does not say when, may have.
fn is_in_window(at: Option<Moment>, context: &Context) -> bool {
    let (start, end) = &context.window;
    let edge = |text: &Option<String>| text.as_deref().and_then(clock::find);
    let Some(at) = at else {
        return true;
    };
    let after = edge(start)
        .and_then(|start| at.since(start))
        .is_none_or(|since| since >= -1.0);
    // Reports can come a moment after the end.
    let before = edge(end)
        .and_then(|end| at.since(end))
        .is_none_or(|since| since <= 5.0);
    after && before
}

fn listed(told: &Told, context: &Context) -> Value {
    let fields = told.event.fields().into_iter();
    let mut object: Map<String, Value> = fields
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    let found = REPEATED.captures(&told.signal.text);
    if let Some(count) = found.and_then(|found| number_of(&found)) {
        object.insert("count".to_owned(), json!(count));
    }
    if context.window != (None, None) {
        object.insert("in_window".to_owned(), json!(told.is_in_window));
    }
    if let Some(incident) = told.incident {
        object.insert("incident".to_owned(), json!(incident));
        object.insert("rank".to_owned(), json!(rank_in_incident(&told.event)));
    }
    object.insert("line".to_owned(), json!(told.signal.line));
    object.insert("action".to_owned(), json!(told.found.action.name()));
    object.insert("meaning".to_owned(), json!(told.found.meaning));
    Value::Object(object)
}

impl Told {
    fn system(&self) -> Option<SystemKind> {
        match &self.event.what {
            What::System(event) => Some(event.kind),
            _ => None,
        }
    }

    /// Whether both are about the same server or port, as far as they say.
    fn is_about_what(&self, other: &Self) -> bool {
        let device = |told: &Self| match &told.event.what {
            What::System(event) => event.device.clone(),
            _ => None,
        };
        match (device(self), device(other)) {
            (Some(one), Some(two)) => one == two,
            _ => self.event.pci() == other.event.pci(),
        }
    }

    fn gpu(&self) -> Option<PciAddress> {
        match &self.event.what {
            What::Xid(error) => Some(error.pci),
            What::Driver(event) => event.pci,
            _ => None,
        }
    }
}
