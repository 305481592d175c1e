// SPDX-License-Identifier: Apache-2.0
//! The last lines of a stream, for reports.

use std::collections::VecDeque;

use super::lines::End;

/// Most lines kept.
const LINES: usize = 100;
/// Most bytes kept of one line.
const LINE_BYTES: usize = 2048;
/// Most bytes kept in all.
const BYTES: usize = 32 * 1024;

/// A bounded memory of the last lines. A progress bar that rewrites its line counts as one line.
#[derive(Debug, Default)]
pub(super) struct Tail {
    lines: VecDeque<Entry>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    text: Vec<u8>,
    end: End,
}

impl Tail {
    /// Adds a piece of output. It goes on the last line if that one is open, and replaces it if that one is to be
    /// overwritten.
    pub(super) fn push(&mut self, piece: &[u8], end: End) {
        let mut entry = match self.lines.back().map(|last| last.end) {
            Some(End::Open) => self.take_last(),
            Some(End::Rewind) => {
                let mut last = self.take_last();
                // The bare return of a line that the next piece does not rewrite keeps what it shows.
                if !piece.is_empty() {
                    last.text.clear();
                }
                last
            }
            Some(End::Line) | None => Entry {
                text: self.reused(),
                end,
            },
        };
        let room = LINE_BYTES.saturating_sub(entry.text.len());
        entry
            .text
            .extend_from_slice(&piece[..piece.len().min(room)]);
        entry.end = end;
        self.bytes += entry.text.len();
        self.lines.push_back(entry);
        while self.lines.len() > LINES || (self.bytes > BYTES && self.lines.len() > 1) {
            if let Some(oldest) = self.lines.pop_front() {
                self.bytes -= oldest.text.len();
            }
        }
    }

    /// The lines, oldest first.
    pub(super) fn lines(&self) -> Vec<String> {
        self.lines
            .iter()
            .map(|entry| String::from_utf8_lossy(&entry.text).into_owned())
            .collect()
    }

    fn take_last(&mut self) -> Entry {
        let last = self.lines.pop_back().unwrap_or(Entry {
            text: Vec::new(),
            end: End::Open,
        });
        self.bytes -= last.text.len();
        last
    }

    /// A buffer for a new line: the oldest line's own, once there are as many as are kept.
    fn reused(&mut self) -> Vec<u8> {
        if self.lines.len() < LINES {
            return Vec::new();
        }
        let Some(mut oldest) = self.lines.pop_front() else {
            return Vec::new();
        };
        self.bytes -= oldest.text.len();
        oldest.text.clear();
        oldest.text
    }
}
