// SPDX-License-Identifier: Apache-2.0
//! What could not be shown or written, counted by cause.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::lock;

/// Counts of everything dropped by this process.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<BTreeMap<String, Lost>>);

#[derive(Clone, Copy, Debug, Default)]
struct Lost {
    bytes: u64,
    lines: u64,
}

impl Ledger {
    /// Adds to what was lost to `what`, a phrase such as "from /a/stdout.log (no space left on device)".
    pub(super) fn add(&self, what: &str, bytes: u64, lines: u64) {
        if bytes == 0 && lines == 0 {
            return;
        }
        let mut all = lock(&self.0);
        // Most of the time the cause is known already: no allocation then.
        let lost = match all.get_mut(what) {
            Some(lost) => lost,
            None => all.entry(what.to_owned()).or_default(),
        };
        lost.bytes += bytes;
        lost.lines += lines;
    }

    /// One phrase per cause.
    pub(super) fn in_words(&self) -> Vec<String> {
        lock(&self.0)
            .iter()
            .map(|(what, lost)| match lost.lines {
                0 => format!("{} missing {what}", in_bytes(lost.bytes)),
                1 => format!("1 line ({}) missing {what}", in_bytes(lost.bytes)),
                lines => format!("{lines} lines ({}) missing {what}", in_bytes(lost.bytes)),
            })
            .collect()
    }
}

/// A size for people: `999 bytes`, `1.5 KiB`.
pub(super) fn in_bytes(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "one decimal place is shown")]
    let size = bytes as f64;
    match bytes {
        1 => "1 byte".to_owned(),
        0 | 2..1024 => format!("{bytes} bytes"),
        1024..0x10_0000 => format!("{:.1} KiB", size / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", size / 1_048_576.0),
        _ => format!("{:.1} GiB", size / 1_073_741_824.0),
    }
}
