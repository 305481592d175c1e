// SPDX-License-Identifier: Apache-2.0
//! What the console looks like after everything that was queued: whose line is open, and what the next one needs.

use super::super::Stream;
use super::super::lines::End;

/// The state of one console stream, and the making of what is written to it.
#[derive(Debug)]
pub(super) struct Screen {
    /// The stream whose line has no end yet, and whether the cursor is at the start of that line.
    open: Option<(Stream, bool)>,
    /// Control characters would do harm here.
    is_terminal: bool,
}

/// Pieces of one stream's output, one after the other.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    text: Vec<u8>,
    ends: Vec<(usize, End)>,
}

impl Pieces {
    pub(super) fn push(&mut self, piece: &[u8], end: End) {
        self.text.extend_from_slice(piece);
        self.ends.push((self.text.len(), end));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.text.len() + self.ends.len()
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], End)> {
        let mut start = 0;
        self.ends.iter().map(move |&(stop, end)| {
            let piece = &self.text[start..stop];
            start = stop;
            (piece, end)
        })
    }
}

impl Screen {
    pub(super) fn new(is_terminal: bool) -> Self {
        Self {
            open: None,
            is_terminal,
        }
    }

    /// Renders `pieces` of `stream`, each line behind `prefix`.
    pub(super) fn lines(&mut self, stream: Stream, prefix: &str, pieces: &Pieces) -> Vec<u8> {
        let mut out = Vec::with_capacity(pieces.bytes() + pieces.ends.len() * prefix.len() + 1);
        for (piece, end) in pieces.iter() {
            let at_start = match self.open {
                Some((owner, at_start)) if owner == stream => at_start,
                Some(_) => {
                    out.push(b'\n');
                    true
                }
                None => true,
            };
            if at_start {
                out.extend_from_slice(prefix.as_bytes());
            }
            self.text(piece, &mut out);
            self.open = match end {
                End::Line => {
                    out.push(b'\n');
                    None
                }
                End::Rewind => {
                    out.push(b'\r');
                    Some((stream, true))
                }
                End::Open => Some((stream, false)),
            };
        }
        out
    }

    /// Renders bytes that are passed on untouched.
    pub(super) fn raw(&mut self, stream: Stream, bytes: &[u8]) -> Vec<u8> {
        self.open = match bytes.last() {
            Some(b'\n') => None,
            Some(_) => Some((stream, false)),
            None => self.open,
        };
        bytes.to_vec()
    }

    /// Renders a line of the supervisor's own.
    pub(super) fn own_line(&mut self, line: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(line.len() + 2);
        if self.open.take().is_some() {
            out.push(b'\n');
        }
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
        out
    }

    fn text(&self, piece: &[u8], out: &mut Vec<u8>) {
        if self.is_terminal && piece.iter().any(|&byte| needs_a_look(byte)) {
            escape(piece, out);
        } else {
            out.extend_from_slice(piece);
        }
    }
}

/// Whether a byte is, or may begin, a control character. 0xC2 begins the control characters beyond ASCII.
fn needs_a_look(byte: u8) -> bool {
    (byte < 0x20 && byte != b'\t') || byte == 0x7f || byte == 0xc2
}

/// Writes out control characters, so that a worker's bytes cannot move the cursor, rename the window or make the
/// terminal answer. Colours and the erasing of the rest of a line stay.
fn escape(piece: &[u8], out: &mut Vec<u8>) {
    let mut rest = piece;
    while let Some(&byte) = rest.first() {
        let taken = match byte {
            0x1b => harmless_sequence(rest),
            0xc2 if rest.get(1).is_some_and(|next| (0x80..0xa0).contains(next)) => 0,
            _ if needs_a_look(byte) && byte != 0xc2 => 0,
            _ => 1,
        };
        if taken > 0 {
            out.extend_from_slice(&rest[..taken]);
            rest = &rest[taken..];
        } else {
            let length = if byte == 0xc2 { 2 } else { 1 };
            for byte in &rest[..length] {
                out.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
            }
            rest = &rest[length..];
        }
    }
}

/// Length of the colour or erase-line sequence at the start of `bytes`, 0 if there is none.
fn harmless_sequence(bytes: &[u8]) -> usize {
    let Some(parameters) = bytes.strip_prefix(b"\x1b[") else {
        return 0;
    };
    let count = parameters
        .iter()
        .take_while(|byte| byte.is_ascii_digit() || matches!(byte, b';' | b':'))
        .count();
    match parameters.get(count) {
        Some(b'm' | b'K') => count + 3,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::StreamKind;
    use super::*;

    fn stream(local_rank: u32) -> Stream {
        Stream {
            generation: 1,
            restart_count: 0,
            rank: local_rank,
            local_rank,
            kind: StreamKind::Stdout,
        }
    }

    fn show(screen: &mut Screen, local_rank: u32, pieces: &[(&str, End)]) -> String {
        let mut all = Pieces::default();
        for (text, end) in pieces {
            all.push(text.as_bytes(), *end);
        }
        let prefix = format!("[{local_rank}] ");
        String::from_utf8(screen.lines(stream(local_rank), &prefix, &all)).unwrap()
    }

    #[test]
    fn an_open_line_goes_on_without_a_second_prefix() {
        let mut screen = Screen::new(false);
        assert_eq!(
            show(&mut screen, 0, &[("loading ", End::Open)]),
            "[0] loading "
        );
        assert_eq!(show(&mut screen, 0, &[("done", End::Line)]), "done\n");
        assert_eq!(show(&mut screen, 0, &[("next", End::Line)]), "[0] next\n");
    }

    #[test]
    fn another_streams_line_closes_the_open_one() {
        let mut screen = Screen::new(false);
        show(&mut screen, 0, &[("half", End::Open)]);
        assert_eq!(
            show(&mut screen, 1, &[("whole", End::Line)]),
            "\n[1] whole\n"
        );
        assert_eq!(show(&mut screen, 0, &[(" line", End::Line)]), "[0]  line\n");
        show(&mut screen, 0, &[("half", End::Open)]);
        assert_eq!(screen.own_line("restarting"), b"\nrestarting\n");
    }

    #[test]
    fn a_progress_bar_is_rewritten_with_its_prefix() {
        let mut screen = Screen::new(false);
        assert_eq!(
            show(
                &mut screen,
                0,
                &[("10%", End::Rewind), ("20%", End::Rewind)]
            ),
            "[0] 10%\r[0] 20%\r"
        );
        assert_eq!(show(&mut screen, 0, &[("", End::Line)]), "[0] \n");
    }

    #[test]
    fn a_terminal_gets_colours_but_no_other_control_characters() {
        let mut screen = Screen::new(true);
        let pieces = [(
            "\x1b[1;31mred\x1b[0m \x1b]0;title\x07 \x1b[2J tab\there \u{e9}\u{9b}",
            End::Line,
        )];
        let shown = show(&mut screen, 0, &pieces);
        assert_eq!(
            shown,
            "[0] \x1b[1;31mred\x1b[0m \\x1b]0;title\\x07 \\x1b[2J tab\there \u{e9}\\xc2\\x9b\n"
        );
        let mut file = Screen::new(false);
        assert_eq!(
            show(&mut file, 0, &[("\x1b[2J", End::Line)]),
            "[0] \x1b[2J\n"
        );
    }
}
