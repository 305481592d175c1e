// SPDX-License-Identifier: Apache-2.0
use crate::output::lines::{Assembler, End, PIECE_BYTES};

/// The pieces of `text`, given in parts of `size` bytes, flushed at the end.
fn pieces(text: &str, size: usize) -> Vec<(String, End)> {
    let mut assembler = Assembler::default();
    let mut found = Vec::new();
    let mut keep =
        |piece: &[u8], end| found.push((String::from_utf8(piece.to_vec()).unwrap(), end));
    for part in text.as_bytes().chunks(size) {
        assembler.push(part, &mut keep);
    }
    assembler.flush(&mut keep);
    found
}

#[test]
fn pieces_do_not_depend_on_how_the_bytes_arrive() {
    let text = "one\ntwo\r\n10%\r20%\r\rthree\r\n\nend\r";
    let whole = pieces(text, text.len());
    let expected = [
        ("one", End::Line),
        ("two", End::Line),
        ("10%", End::Rewind),
        ("20%", End::Rewind),
        ("", End::Rewind),
        ("three", End::Line),
        ("", End::Line),
        ("end", End::Rewind),
    ];
    assert_eq!(whole, expected.map(|(text, end)| (text.to_owned(), end)));
    for size in 1..text.len() {
        assert_eq!(pieces(text, size), whole, "in parts of {size}");
    }
}

#[test]
fn long_lines_are_cut_and_nothing_is_lost() {
    let text = format!(
        "{}\n{}",
        "a".repeat(3 * PIECE_BYTES + 5),
        "b".repeat(2 * PIECE_BYTES)
    );
    for size in [1000, PIECE_BYTES, PIECE_BYTES + 1, text.len()] {
        let found = pieces(&text, size);
        assert!(
            found
                .iter()
                .all(|(piece, _)| piece.len() <= 2 * PIECE_BYTES)
        );
        let again: String = found
            .iter()
            .map(|(piece, end)| {
                if *end == End::Line {
                    format!("{piece}\n")
                } else {
                    piece.clone()
                }
            })
            .collect();
        assert!(again == text, "in parts of {size}");
    }
}
