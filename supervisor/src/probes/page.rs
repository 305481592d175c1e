// SPDX-License-Identifier: Apache-2.0
//! The memory that a probe and its agent share: which call each thread of the probe is in, and since when.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use steadfast_process::memory_file;

/// Bytes of a slot: an instant, the length of the name, and the name.
const SLOT: usize = 64;
const NAME: usize = SLOT - 9;
/// More threads than any probe has.
const MAX_SLOTS: usize = 1024;

/// The shared memory. Slot 0 is the probe's heartbeat, the others are its threads'.
#[derive(Debug)]
pub(crate) struct Page {
    file: File,
}

/// A call that has not returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    /// The thread, from 0.
    pub(crate) thread: usize,
    /// The call.
    pub(crate) call: String,
    /// Since when, on the monotonic clock.
    pub(crate) since_ns: u64,
}

impl Page {
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(crate) fn create() -> io::Result<Page> {
        Ok(Page {
            file: memory_file::create("steadfast-probe")?,
        })
    }

    /// The page that the agent has handed over as standard input.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub(crate) fn inherited() -> io::Result<Page> {
        let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        Ok(Page { file })
    }

    pub(crate) fn as_file(&self) -> &File {
        &self.file
    }

    /// The probe is well at this instant.
    pub(crate) fn beat(&self, now_ns: u64) {
        self.write(0, now_ns, "");
    }

    /// When the probe was last well; 0 before its first heartbeat.
    pub(crate) fn last_beat(&self) -> u64 {
        self.read(0).map_or(0, |(since_ns, _)| since_ns)
    }

    /// The thread makes this call.
    pub(crate) fn begin(&self, thread: usize, call: &str, now_ns: u64) {
        self.write(thread + 1, now_ns, call);
    }

    /// The thread's call has returned.
    pub(crate) fn end(&self, thread: usize) {
        self.write(thread + 1, 0, "");
    }

    /// The calls that have not returned.
    pub(crate) fn pending(&self) -> Vec<Pending> {
        let slots = (1..MAX_SLOTS).map_while(|slot| Some((slot, self.read(slot)?)));
        slots
            .filter(|(_, (since_ns, _))| *since_ns != 0)
            .map(|(slot, (since_ns, call))| Pending {
                thread: slot - 1,
                call,
                since_ns,
            })
            .collect()
    }

    fn write(&self, slot: usize, since_ns: u64, name: &str) {
        if slot >= MAX_SLOTS {
            return;
        }
        let mut bytes = [0; SLOT];
        bytes[..8].copy_from_slice(&since_ns.to_ne_bytes());
        let length = name.len().min(NAME);
        bytes[8] = u8::try_from(length).unwrap_or(0);
        bytes[9..9 + length].copy_from_slice(&name.as_bytes()[..length]);
        // Memory that cannot be written shows as a probe without heartbeat.
        let _shows_as_silence = self.file.write_all_at(&bytes, offset(slot));
    }

    /// The instant and the name in a slot; absent beyond the last one that was ever written.
    fn read(&self, slot: usize) -> Option<(u64, String)> {
        let mut bytes = [0; SLOT];
        self.file.read_exact_at(&mut bytes, offset(slot)).ok()?;
        let (since, rest) = bytes.split_first_chunk::<8>()?;
        let (length, name) = rest.split_first()?;
        let name = name.get(..usize::from(*length)).unwrap_or_default();
        Some((
            u64::from_ne_bytes(*since),
            String::from_utf8_lossy(name).into_owned(),
        ))
    }
}

const fn offset(slot: usize) -> u64 {
    (slot * SLOT) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_pending_from_begin_to_end() {
        let page = Page::create().unwrap();
        assert_eq!((page.pending(), page.last_beat()), (Vec::new(), 0));
        page.beat(7);
        page.begin(2, &"x".repeat(200), 9);
        page.begin(0, "nvmlInit_v2", 8);
        let pending = page.pending();
        assert_eq!(pending.len(), 2);
        assert_eq!(
            (
                pending[0].thread,
                pending[0].call.as_str(),
                pending[0].since_ns
            ),
            (0, "nvmlInit_v2", 8)
        );
        assert_eq!((pending[1].thread, pending[1].call.len()), (2, NAME));
        page.end(2);
        page.end(0);
        assert_eq!((page.pending(), page.last_beat()), (Vec::new(), 7));
        page.begin(MAX_SLOTS, "beyond", 1);
        assert_eq!(page.pending(), []);
    }
}
