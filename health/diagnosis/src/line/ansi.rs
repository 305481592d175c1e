// SPDX-License-Identifier: Apache-2.0
//! Colours and cursor movements in output.

use std::borrow::Cow;

/// The text without escape sequences and other control characters; of a progress bar that redraws itself, what stood last.
pub(crate) fn without_colour(text: &str) -> Cow<'_, str> {
    let text = text.trim_end_matches(['\r', '\n']);
    let text = match text.rfind('\r') {
        Some(index) => &text[index + 1..],
        None => text,
    };
    if !text.bytes().any(|byte| byte < b' ' && byte != b'\t') {
        return Cow::Borrowed(text.trim_start_matches('\u{feff}'));
    }
    let mut clean = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            match characters.next() {
                // A control sequence ends in a letter or the like; what names a link or a title ends in a bell.
                Some('[') => {
                    while characters
                        .next_if(|next| !('@'..='~').contains(next))
                        .is_some()
                    {}
                }
                Some(']') => while characters.next_if(|next| *next != '\u{7}').is_some() {},
                _ => continue,
            }
            characters.next();
        } else if character >= ' ' || character == '\t' {
            clean.push(character);
        }
    }
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_overwritten_bars_go() {
        assert_eq!(without_colour("\x1b[31mRed\x1b[0m text\r"), "Red text");
        assert_eq!(without_colour("10%\r20%"), "20%");
        assert_eq!(without_colour("plain"), "plain");
        assert_eq!(without_colour("\x1b]0;title\u{7}x\x1b"), "x");
        assert_eq!(without_colour("\x1b["), "");
    }
}
