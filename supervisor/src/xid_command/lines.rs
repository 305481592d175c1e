// SPDX-License-Identifier: Apache-2.0
//! Cuts a stream of bytes into lines.

/// The most bytes of a line that are kept; the rest of it is skipped.
const MAX_LINE: usize = 64 << 10;

/// Holds what has come of the line that is not complete yet.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    /// Takes the next bytes, and calls `with` on each line that they complete, without its end.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut with: impl FnMut(&[u8])) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(end);
            if self.pending.is_empty() {
                with(line);
            } else {
                self.keep(line);
                with(&self.pending);
                self.pending.clear();
            }
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.keep(bytes);
    }

    /// Calls `with` on a last line that had no end.
    pub(super) fn finish(&mut self, mut with: impl FnMut(&[u8])) {
        if !self.pending.is_empty() {
            with(&self.pending);
            self.pending.clear();
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = MAX_LINE.saturating_sub(self.pending.len());
        self.pending
            .extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_the_bytes_come() {
        let text = b"one\n\ntwo two\nlast";
        for size in 1..=text.len() {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for chunk in text.chunks(size) {
                lines.push(chunk, |line| found.push(line.to_vec()));
            }
            lines.finish(|line| found.push(line.to_vec()));
            assert_eq!(found, [&b"one"[..], b"", b"two two", b"last"]);
        }
    }

    #[test]
    fn a_line_without_end_stays_bounded() {
        let mut lines = Lines::default();
        for _ in 0..100 {
            lines.push(&[b'x'; 4096], |_| {});
        }
        assert_eq!(lines.pending.len(), MAX_LINE);
    }
}
