// SPDX-License-Identifier: Apache-2.0
//! Cuts a stream of bytes into pieces that can be shown whole.

/// Longest piece; a longer line is shown in several.
pub(super) const PIECE_BYTES: usize = 8 * 1024;

/// How a piece ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With the end of the line (the piece does not include it).
    Line,
    /// With a carriage return alone: what follows overwrites it, as progress bars do.
    Rewind,
    /// It does not: the line goes on.
    Open,
}

/// Holds what has no end yet.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    held: Vec<u8>,
}

impl Assembler {
    /// Takes in `bytes` and passes every piece that is complete to `piece`. What is left is held.
    pub(crate) fn push(&mut self, bytes: &[u8], mut piece: impl FnMut(&[u8], End)) {
        let mut rest = bytes;
        if !self.held.is_empty() {
            let Some(taken) = self.complete_held(rest, &mut piece) else {
                return;
            };
            rest = &rest[taken..];
        }
        while let Some((length, end, skip)) = first_end(rest) {
            emit(&rest[..length], end, &mut piece);
            rest = &rest[length + skip..];
        }
        while rest.len() > PIECE_BYTES {
            piece(&rest[..PIECE_BYTES], End::Open);
            rest = &rest[PIECE_BYTES..];
        }
        self.held.extend_from_slice(rest);
    }

    /// Passes on what is held, as it is.
    pub(super) fn flush(&mut self, mut piece: impl FnMut(&[u8], End)) {
        if self.held.is_empty() {
            return;
        }
        match self.held.strip_suffix(b"\r") {
            Some(text) => piece(text, End::Rewind),
            None => piece(&self.held, End::Open),
        }
        self.held.clear();
    }

    /// How many bytes are held.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Adds to what is held as much of `rest` as completes it. Returns how much that was, or `None` if nothing did and
    /// all of it is held now.
    fn complete_held(&mut self, rest: &[u8], piece: &mut impl FnMut(&[u8], End)) -> Option<usize> {
        // A return at the very end could not be told from half of a line end.
        if self.held.last() == Some(&b'\r') {
            self.held.pop();
            let is_line_end = rest.first() == Some(&b'\n');
            let end = if is_line_end { End::Line } else { End::Rewind };
            if rest.is_empty() {
                self.held.push(b'\r');
                return None;
            }
            emit(&self.held, end, piece);
            self.held.clear();
            return Some(usize::from(is_line_end));
        }
        if let Some((length, end, skip)) = first_end(rest) {
            self.held.extend_from_slice(&rest[..length]);
            emit(&self.held, end, piece);
            self.held.clear();
            return Some(length + skip);
        }
        self.held.extend_from_slice(rest);
        if self.held.len() > PIECE_BYTES {
            let returned = self.held.last() == Some(&b'\r');
            let text = &self.held[..self.held.len() - usize::from(returned)];
            for part in text.chunks(PIECE_BYTES) {
                piece(part, End::Open);
            }
            self.held.clear();
            if returned {
                self.held.push(b'\r');
            }
        }
        None
    }
}

/// Passes on one piece, in parts if it is long.
fn emit(text: &[u8], end: End, piece: &mut impl FnMut(&[u8], End)) {
    let mut rest = text;
    while rest.len() > PIECE_BYTES {
        piece(&rest[..PIECE_BYTES], End::Open);
        rest = &rest[PIECE_BYTES..];
    }
    piece(rest, end);
}

/// The first end in `bytes`: where it is, what it is, and how many bytes it takes. A return in the last place is none,
/// as long as nobody knows what follows.
fn first_end(bytes: &[u8]) -> Option<(usize, End, usize)> {
    let at = memchr::memchr2(b'\n', b'\r', bytes)?;
    if bytes[at] == b'\n' {
        return Some((at, End::Line, 1));
    }
    match bytes.get(at + 1)? {
        b'\n' => Some((at, End::Line, 2)),
        _ => Some((at, End::Rewind, 1)),
    }
}
