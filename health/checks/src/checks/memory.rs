// SPDX-License-Identifier: Apache-2.0
//! The machine's own memory.

use serde::{Deserialize, Serialize};

use super::{BUT_EPILOG, QUICK};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::spec::{Number, Spec, Threshold, Unit, number, optional};
use crate::units::show_size;

static EXPECTED: Number = optional(
    "expected",
    Unit::Size,
    "Memory that the node should have at least. Unless set, a node that has less than it once had is a warning.",
);

static AVAILABLE: Number = number(
    "warn_percent",
    Unit::Percent,
    2,
    "Share of the memory that programs can still have. Less is a warning.",
);

static AVAILABLE_BYTES: Number = optional(
    "min_available",
    Unit::Size,
    "Memory that programs must still be able to have. Less fails the check; for nodes on which no job runs.",
);

pub(crate) static SPEC: Spec = Spec {
    name: "memory",
    doc: "Looks at how much memory the node has, how much of it is left, and whether the kernel had to give up some of it.",
    profiles: BUT_EPILOG,
    deadline: QUICK,
    thresholds: &[
        Threshold::Number(&EXPECTED),
        Threshold::Number(&AVAILABLE),
        Threshold::Number(&AVAILABLE_BYTES),
    ],
    needs_gpus: false,
    look,
};

/// A node that has lost a module has lost more than this part of its memory.
const LOST_PART: u64 = 64;
const MODULE: &str = "see in the firmware's log which memory module is missing";
const FULL: &str =
    "find out who holds it (`ps -eo rss,pid,user,comm --sort -rss | head`, `df /dev/shm`)";

/// What is remembered.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Kept {
    most: u64,
}

fn look(context: &Context<'_>) -> Outcome {
    let text = match context.read("proc/meminfo") {
        Ok(text) => text,
        Err(unread) => return unread.into(),
    };
    let Some(total) = field(&text, "MemTotal") else {
        return Outcome::unknown("/proc/meminfo does not say how much memory there is");
    };
    let mut outcome = Outcome::default();
    let before: Kept = context.remembered().unwrap_or_default();
    if let Some(expected) = context.number(&EXPECTED) {
        if total < expected {
            let text = format!(
                "the node has {} of memory, and should have {}",
                show_size(total),
                show_size(expected)
            );
            outcome.fail(text, MODULE);
        }
    } else if before.most.saturating_sub(total) > before.most / LOST_PART {
        let text = format!(
            "the node has {} of memory, and once had {}",
            show_size(total),
            show_size(before.most)
        );
        outcome.warn(text, MODULE);
    }
    outcome.remember(&Kept {
        most: total.max(before.most),
    });
    match field(&text, "MemAvailable") {
        None => outcome.unsure("/proc/meminfo does not say how much memory is left"),
        Some(available) => {
            let left = format!(
                "{} of {} of memory is left",
                show_size(available),
                show_size(total)
            );
            let least = context.number(&AVAILABLE_BYTES);
            let percent = u128::from(available) * 100 / u128::from(total.max(1));
            if least.is_some_and(|least| available < least) {
                outcome.fail(&left, FULL);
            } else if context
                .number(&AVAILABLE)
                .is_some_and(|least| percent < u128::from(least))
            {
                outcome.warn(&left, FULL);
            }
            outcome.fine = left;
        }
    }
    if let Some(corrupted) = field(&text, "HardwareCorrupted").filter(|bytes| *bytes > 0) {
        let text = format!(
            "the kernel has given up {} of memory that had errors",
            show_size(corrupted)
        );
        outcome.warn(
            text,
            "have the memory tested; see the kernel log for the module",
        );
    }
    outcome
}

/// Bytes of a line such as `MemTotal:  16384 kB`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let number: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use crate::outcome::Status;
    use crate::testing::Made;

    fn meminfo(total: u64, available: u64, corrupted: u64) -> String {
        format!(
            "MemTotal:       {total} kB\nMemFree: 5 kB\nMemAvailable:   {available} kB\nHardwareCorrupted: {corrupted} kB\n"
        )
    }

    #[test]
    fn memory_that_is_missing_is_seen() {
        let made = Made::empty().file("proc/meminfo", meminfo(1 << 20, 1 << 19, 0));
        made.expect("memory", Status::Ok, "512 MiB of 1 GiB of memory is left");
        let made = made.file("proc/meminfo", meminfo(1 << 19, 1 << 18, 0));
        made.expect(
            "memory",
            Status::Warn,
            "has 512 MiB of memory, and once had 1 GiB",
        );
        let made = made.settings("[check.memory]\nexpected = \"1GiB\"");
        made.expect("memory", Status::Fail, "and should have 1 GiB");
    }

    #[test]
    fn memory_that_is_used_up_or_broken_is_seen() {
        let made = Made::empty().file("proc/meminfo", meminfo(1 << 20, 1 << 13, 4));
        let result = made.expect("memory", Status::Warn, "8 MiB of 1 GiB of memory is left");
        assert!(
            result.summary.contains("given up 4 KiB of memory"),
            "{result:#?}"
        );
        let made = made.settings("[check.memory]\nmin_available = \"9MiB\"");
        made.expect("memory", Status::Fail, "8 MiB of 1 GiB");
    }

    #[test]
    fn absent_and_garbage_are_unknown() {
        Made::empty().expect("memory", Status::Unknown, "cannot read /proc/meminfo");
        for text in [
            "",
            "MemTotal: much kB\n",
            "MemTotal: 99999999999999999999 kB",
            "\u{0}MemTotal",
        ] {
            let made = Made::empty().file("proc/meminfo", text);
            made.expect("memory", Status::Unknown, "does not say");
        }
        let made = Made::empty().file("proc/meminfo", "MemTotal: 0 kB\nMemAvailable: 0 kB\n");
        made.expect("memory", Status::Warn, "0 B of 0 B");
    }
}
