// SPDX-License-Identifier: Apache-2.0
//! What `nvidia-smi`, NVML readings and their like say of the GPUs: as the table, as `-q` prints it, as CSV, or as lines of
//! names and values. Only what speaks of a fault counts; a GPU of which nothing is said is not suspected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;
use steadfast_health::kernel_log::PciAddress;

use crate::answer::{Action, Class, Signal};
use crate::context::{Context, Node};
use crate::evidence::{Evidence, EvidenceFile, FileKind};
use crate::line::without_colour;
use crate::logs::Candidate;
use crate::pattern::{compile, group};

static ADDRESS: LazyLock<Regex> = LazyLock::new(|| {
    compile(r"(?P<address>(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?)\b")
});
static INDEX: LazyLock<Regex> =
    LazyLock::new(|| compile(r"^\W*(?:(?:gpu|index)\W{0,4}|\|\s+)(?P<index>\d{1,3})\b(?:\W|$)"));
static LOST: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"(?i-u)\bis lost\b|GPU_IS_LOST|fallen off the bus|unable to determine the device handle|\bERR!|unknown error",
    )
});
/// In nvidia-smi's table: address, display, uncorrected errors since the driver was loaded.
static TABLE_ROW: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"\|\s*[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d\s+\w+\s*\|\s*(?P<errors>\d+)\s*\|",
    )
});
static VALUE: LazyLock<Regex> = LazyLock::new(|| {
    compile(r"^[\s|>*-]*(?P<name>[A-Za-z][\w .()/-]*?)\s*[:=]\s*(?P<value>\S.*?)[\s|]*$")
});

/// What is wrong with a GPU, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    /// Heat or lack of power slows it down.
    Throttled,
    /// Its memory had errors that cannot be corrected.
    Uncorrectable,
    /// It has to be reset before it is used again.
    NeedsReset,
    /// Bad rows of its memory cannot be replaced any more.
    RemapFailed,
    /// It does not answer.
    Lost,
}

impl Trouble {
    const fn meaning(self) -> &'static str {
        match self {
            Self::Throttled => "heat or lack of power slows this GPU down",
            Self::Uncorrectable => "this GPU's memory has errors that cannot be corrected",
            Self::NeedsReset => "this GPU has to be reset",
            Self::RemapFailed => "bad rows of this GPU's memory cannot be replaced any more",
            Self::Lost => "this GPU does not answer",
        }
    }

    const fn strength(self) -> u8 {
        match self {
            Self::Throttled => 50,
            Self::Uncorrectable => 91,
            Self::NeedsReset => 92,
            Self::RemapFailed => 94,
            Self::Lost => 96,
        }
    }
}

/// The name of what this file finds.
const ID: &str = "gpus.state";

/// A GPU that something is wrong with.
#[derive(Clone, Debug)]
struct Suspect {
    worst: Trouble,
    address: Option<PciAddress>,
    index: Option<usize>,
    node: Option<String>,
    signals: Vec<Signal>,
}

/// A candidate for what is wrong with the job's GPUs.
pub(crate) fn candidates(evidence: &Evidence, context: &Context) -> Vec<Candidate> {
    let mut suspects = Vec::new();
    for file in evidence.of_kind(FileKind::Gpus) {
        suspects.extend(read(file, context));
    }
    suspects
        .iter()
        .filter(|suspect| is_ours(suspect, context))
        .map(|suspect| candidate(suspect, context))
        .collect()
}

/// Readings do not say when: where something else is clear, they only lie beside it.
pub(crate) fn weigh(candidates: &mut Vec<Candidate>) {
    let is_state = |candidate: &Candidate| candidate.id == ID;
    let clear = candidates.iter().any(|candidate| {
        !is_state(candidate)
            && !candidate.is_thin()
            && !candidate.is_ambiguous
            && !candidate.is_background
            && !matches!(
                candidate.class,
                Class::GpuHardware | Class::Link | Class::Unknown
            )
    });
    let complaints: Vec<Option<u32>> = candidates
        .iter()
        .filter(|candidate| candidate.is_ambiguous)
        .map(|candidate| candidate.culprit.rank)
        .collect();
    candidates.retain(|candidate| {
        let rank = candidate.culprit.rank;
        let contradicted = !complaints.is_empty()
            && complaints
                .iter()
                .all(|other| other.is_some() && rank.is_some() && *other != rank);
        let is_lost = candidate.strength >= Trouble::Lost.strength();
        !is_state(candidate) || is_lost || !(clear || contradicted)
    });
    let complaint = candidates
        .iter()
        .find(|candidate| candidate.is_ambiguous)
        .cloned();
    if let Some(complaint) = complaint {
        let states = candidates.iter_mut().filter(|candidate| candidate.id == ID);
        for candidate in states {
            candidate.signals.extend(complaint.signals.iter().cloned());
            if candidate.culprit.rank.is_none() && candidate.culprit.gpu.is_none() {
                candidate.culprit.rank = complaint.culprit.rank;
                candidate.culprit.node = candidate
                    .culprit
                    .node
                    .take()
                    .or_else(|| complaint.culprit.node.clone());
            }
        }
    }
}

fn is_ours(suspect: &Suspect, context: &Context) -> bool {
    suspect.address.is_none_or(|address| {
        !context.is_foreign_gpu(suspect.node.as_deref(), &address.to_string())
    })
}

fn candidate(suspect: &Suspect, context: &Context) -> Candidate {
    let worst = suspect.worst;
    let class = match worst {
        Trouble::Throttled => Class::Straggler,
        _ => Class::GpuHardware,
    };
    let mut candidate = Candidate::new(ID, class, worst.strength(), worst.meaning());
    if worst == Trouble::Throttled {
        candidate.action = Action::ReportOnly;
    }
    "take the node out, and reset or replace the GPU".clone_into(&mut candidate.next);
    let node: Option<&Node> = match suspect.node.as_deref() {
        Some(name) => context.node_named(name),
        None if context.nodes.len() == 1 => context.nodes.first(),
        None => None,
    };
    candidate.culprit.node = node
        .map(|node| node.name.clone())
        .or_else(|| suspect.node.clone());
    let listed = suspect
        .index
        .and_then(|index| node?.gpus.get(index).cloned())
        .and_then(|gpu| PciAddress::parse(&gpu));
    if let Some(address) = suspect.address.or(listed) {
        let address = address.to_string();
        if let Some((rank, node)) = context.rank_of_gpu(suspect.node.as_deref(), &address) {
            candidate.culprit.rank = Some(rank);
            candidate.culprit.node = Some(node.name.clone());
        }
        candidate.culprit.gpu = Some(address);
    }
    candidate.signals.clone_from(&suspect.signals);
    candidate
}

/// The GPUs of a file that something is wrong with.
fn read(file: &EvidenceFile, context: &Context) -> Vec<Suspect> {
    let named = file.node(context.nodes.iter().map(|node| node.name.as_str()));
    let mut found: BTreeMap<(Option<String>, Option<usize>), Suspect> = BTreeMap::new();
    let (mut address, mut index) = (None, None);
    let mut columns: Vec<String> = Vec::new();
    let mut section = Section::default();
    for (number, line) in file.numbered() {
        let line = without_colour(line);
        if let Some(other) = address_in(&line) {
            if address != Some(other) {
                (index, section) = (None, Section::default());
            }
            address = Some(other);
        }
        if let Some(other) = INDEX
            .captures(&line)
            .and_then(|found| group(&found, "index")?.parse().ok())
        {
            if address_in(&line).is_none() && index != Some(other) {
                address = None;
            }
            index = Some(other);
        }
        let is_head = line.contains(',') && !line.bytes().any(|byte| byte.is_ascii_digit());
        if is_head {
            columns = line.split(',').map(plain).collect();
            continue;
        }
        let trouble = in_row(&line, &columns, &mut index).max(in_line(&line, &mut section));
        let Some(trouble) = trouble else { continue };
        let key = (
            address.map(|address: PciAddress| address.to_string()),
            index.filter(|_| address.is_none()),
        );
        let suspect = found.entry(key).or_insert_with(|| Suspect {
            worst: trouble,
            address,
            index,
            node: named.map(str::to_owned),
            signals: Vec::new(),
        });
        suspect.worst = suspect.worst.max(trouble);
        suspect.signals.push(Signal {
            file: file.name.clone(),
            line: number,
            meaning: trouble.meaning().to_owned(),
            text: line.trim().to_owned(),
        });
    }
    found.into_values().collect()
}

/// The only address, or the first, of a device on the PCI bus in a line.
pub(crate) fn address_in(line: &str) -> Option<PciAddress> {
    // `GPU0000:86:00.0` has no edge before the digits; times have none of the right form after them.
    let mut addresses = BTreeSet::new();
    for found in ADDRESS.captures_iter(line) {
        let text = group(&found, "address")?;
        let is_time = !text.contains('.') && text.matches(':').count() < 2;
        if !is_time && text.len() >= 10 {
            addresses.extend(PciAddress::parse(text).map(|address| address.to_string()));
        }
    }
    PciAddress::parse(addresses.first()?)
}

/// Small letters and digits only.
fn plain(name: &str) -> String {
    let name = name.split('[').next().unwrap_or(name);
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// Where in the output of `nvidia-smi -q` a line stands.
#[derive(Clone, Copy, Debug, Default)]
struct Section {
    /// Counters over the whole life of the card tell of faults that are long mended.
    is_aggregate: bool,
    is_retired: bool,
}

/// What a line of names and values says.
fn in_line(line: &str, section: &mut Section) -> Option<Trouble> {
    let bare = plain(line);
    match bare.as_str() {
        "aggregate" => section.is_aggregate = true,
        "volatile" => section.is_aggregate = false,
        "retiredpages" | "remappedrows" => {
            (section.is_aggregate, section.is_retired) = (false, true);
        }
        _ => {}
    }
    if LOST.is_match(line) {
        return Some(Trouble::Lost);
    }
    if let Some(found) = TABLE_ROW.captures(line) {
        let errors: u64 = group(&found, "errors")?.parse().ok()?;
        return (errors > 0).then_some(Trouble::Uncorrectable);
    }
    let found = VALUE.captures(line)?;
    let (name, value) = (plain(group(&found, "name")?), group(&found, "value")?);
    // Rows that have been replaced are mended.
    if section.is_aggregate || section.is_retired && name == "uncorrectableerror" {
        return None;
    }
    judge(&name, value)
}

/// What the fields of a CSV line say.
fn in_row(line: &str, columns: &[String], index: &mut Option<usize>) -> Option<Trouble> {
    if columns.len() < 2 {
        return None;
    }
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    if fields.len() != columns.len() {
        return None;
    }
    let pairs = || columns.iter().zip(&fields);
    if let Some((_, field)) = pairs().find(|(name, _)| *name == "index") {
        *index = field.parse().ok();
    }
    pairs()
        .filter(|(name, _)| !name.contains("aggregate"))
        .filter_map(|(name, field)| judge(name, field))
        .max()
}

fn judge(name: &str, value: &str) -> Option<Trouble> {
    let value = value.trim().trim_matches('"').to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    let is_true = matches!(value.as_str(), "yes" | "true" | "active" | "1");
    let count = value
        .split_whitespace()
        .next()
        .and_then(|word| word.parse::<u64>().ok());
    if has(&[
        "remappingfailure",
        "remapfailure",
        "rowremapfailed",
        "remapfailed",
        "failureoccurred",
    ]) {
        return (is_true || count.is_some_and(|count| count > 0)).then_some(Trouble::RemapFailed);
    }
    if has(&["recoveryaction"]) {
        let harmless = ["none", "0", "0x0", "n/a", "[n/a]"];
        return (!harmless.iter().any(|word| value.starts_with(word)))
            .then_some(Trouble::NeedsReset);
    }
    if has(&["resetrequired", "requiresreset", "drainandreset"]) {
        return is_true.then_some(Trouble::NeedsReset);
    }
    if has(&["uncorrect", "doublebit", "dbe", "uncorr"]) && !has(&["remap", "aggregate"]) {
        return count
            .is_some_and(|count| count > 0)
            .then_some(Trouble::Uncorrectable);
    }
    if has(&["slowdown", "powerbrake"]) && !has(&["temp"]) {
        return (value == "active" || value == "true").then_some(Trouble::Throttled);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn troubles(text: &str) -> Vec<(Option<String>, Option<usize>, Trouble)> {
        let file = EvidenceFile {
            name: "nvidia-smi.txt".to_owned(),
            text: text.to_owned(),
            skipped_lines: 0,
        };
        let found = read(&file, &Context::default()).into_iter();
        found
            .map(|suspect| {
                let address = suspect.address.map(|address| address.to_string());
                (address, suspect.index, suspect.worst)
            })
            .collect()
    }

    #[test]
    fn all_forms_name_the_gpu_and_what_is_wrong() {
        let lost = "Unable to determine the device handle for GPU0000:86:00.0: GPU is lost.";
        let at = |address: &str| Some(address.to_owned());
        assert_eq!(troubles(lost), [(at("0000:86:00"), None, Trouble::Lost)]);
        let table = "| 0  NVIDIA H100 80GB HBM3  On | 00000000:53:00.0 Off |     0 |\n\
                     | 1  NVIDIA H100 80GB HBM3  On | 00000000:64:00.0 Off |     2 |\n\
                     | ERR!   37C  P0  ERR! / 700W |\n";
        assert_eq!(
            troubles(table),
            [(at("0000:64:00"), Some(1), Trouble::Lost)]
        );
        let query = "GPU 00000000:1B:00.0\n  ECC Errors\n    Volatile\n      DRAM Uncorrectable : 0\n    Aggregate\n      \
                     DRAM Uncorrectable : 7\nGPU 00000000:43:00.0\n  ECC Errors\n    Volatile\n      DRAM Uncorrectable : 3\n  \
                     Remapped Rows\n    Uncorrectable Error : 8\n    Remapping Failure Occurred : Yes\n";
        assert_eq!(
            troubles(query),
            [(at("0000:43:00"), None, Trouble::RemapFailed)]
        );
        let csv = "index, pci.bus_id, ecc.errors.uncorrected.volatile.total, clocks_event_reasons.hw_slowdown\n\
                   0, 00000000:18:00.0, 0, Not Active\n1, 00000000:2A:00.0, 0, Active\n";
        assert_eq!(
            troubles(csv),
            [(at("0000:2a:00"), Some(1), Trouble::Throttled)]
        );
        let nvml = "gpu 0: recovery_action=NONE\ngpu 3\n  recovery_action = GPU_RESET\n";
        assert_eq!(troubles(nvml), [(None, Some(3), Trouble::NeedsReset)]);
    }

    #[test]
    fn what_is_well_or_long_mended_is_no_trouble() {
        let well = "Tue Sep  9 09:12:00 2025\nGPU 00000000:1B:00.0\n  Remapped Rows\n    Correctable Error : 1\n    \
                    Uncorrectable Error : 2\n    Pending : No\n  GPU Recovery Action : None\n    HW Slowdown : Not Active\n  \
                    GPU Slowdown Temp : 89 C\n";
        assert_eq!(troubles(well), []);
    }
}
