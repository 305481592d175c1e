// SPDX-License-Identifier: Apache-2.0
//! Full file systems, as `df` shows them: the text of an error often does not say that the disk was full.

use super::Candidate;
use crate::answer::{Action, Class, Signal};
use crate::evidence::{Evidence, FileKind};

/// File systems that are always full.
const ALWAYS_FULL: [&str; 5] = ["loop", "squashfs", "/snap/", "iso9660", "cvmfs"];

/// What `df` shows.
pub(super) fn candidate(evidence: &Evidence) -> Option<Candidate> {
    let mut signals = Vec::new();
    for file in evidence.of_kind(FileKind::Disk) {
        for (number, line) in (1..).zip(file.text.lines()) {
            let is_full = line.split_whitespace().any(|word| word == "100%");
            if is_full && !ALWAYS_FULL.iter().any(|word| line.contains(word)) {
                signals.push(Signal {
                    file: file.name.clone(),
                    line: number,
                    meaning: "a file system has no room left".to_owned(),
                    text: line.trim().to_owned(),
                });
            }
        }
    }
    if signals.is_empty() {
        return None;
    }
    let is_memory = |signal: &Signal| signal.text.ends_with("/dev/shm");
    let mut candidate = if signals.iter().all(is_memory) {
        let words = "shared memory (/dev/shm) is full";
        Candidate::new("disk.full", Class::HostMemory, 59, words)
    } else {
        signals.retain(|signal| !is_memory(signal));
        Candidate::new("disk.full", Class::Storage, 59, "a file system is full")
    };
    candidate.confidence = 0.6;
    candidate.action = Action::FailJob;
    "make room (df -h, df -i, quota) and resume; a restart without room only repeats it"
        .clone_into(&mut candidate.next);
    candidate.signals = signals;
    Some(candidate)
}

/// An error in writing, and a full file system: the one explains the other.
pub(super) fn explain(candidates: &mut [Candidate]) {
    let Some(full) = candidates
        .iter()
        .find(|candidate| candidate.id == "disk.full")
        .cloned()
    else {
        return;
    };
    for candidate in candidates.iter_mut() {
        let writes = [
            "checkpoint",
            "ckpt",
            "save",
            "write",
            "writ",
            "torch.save",
            "flush",
        ];
        let in_writing = candidate.signals.iter().any(|signal| {
            let text = signal.text.to_ascii_lowercase();
            writes.iter().any(|word| text.contains(word))
        });
        let may_be = matches!(
            candidate.id.as_str(),
            "storage.write"
                | "storage.full"
                | "storage.failed"
                | "program.runtime"
                | "program.exception"
                | "program.assert"
        );
        if may_be && (in_writing || candidate.id.starts_with("storage.")) {
            candidate.class = full.class;
            candidate.action = Action::FailJob;
            candidate.confidence = 0.92;
            candidate.strength = candidate.strength.max(90);
            candidate.summary.clone_from(&full.summary);
            candidate.next.clone_from(&full.next);
            candidate.signals.extend(full.signals.iter().cloned());
        }
    }
}
