// SPDX-License-Identifier: Apache-2.0
//! From the text of a list to its items.
//!
//! Commas, blanks and line ends separate items, except between brackets. There they belong to the number: Slurm counts
//! the blanks of `[ 1-2]` when it works out how wide the numbers are, and so does this.

use super::error::{Fault, HostListError};
use super::item::{Item, Numbers, Range};
use super::{MAX_HOSTS, MAX_NAME, MAX_RANGE};

/// What is wrong, and at which byte.
type Wrong = (usize, Fault);

/// The items of a list that names at least one and at most `limit` hosts.
pub(super) fn items(list: &[u8], limit: usize) -> Result<Vec<Item>, HostListError> {
    let wrong = |(at, fault): Wrong| HostListError::new(&String::from_utf8_lossy(list), at, fault);
    let text =
        std::str::from_utf8(list).map_err(|error| wrong((error.valid_up_to(), Fault::NotText)))?;
    let mut items = Vec::new();
    let mut room = limit;
    let mut at = 0;
    while let Some(character) = text[at..].chars().next() {
        if separates(character) {
            at += character.len_utf8();
            continue;
        }
        let (item, end) = item(text, at).map_err(wrong)?;
        room = room
            .checked_sub(item.len())
            .ok_or_else(|| wrong((at, Fault::TooManyHosts)))?;
        items.push(item);
        at = end;
    }
    if items.is_empty() {
        return Err(wrong((0, Fault::NoHost)));
    }
    Ok(items)
}

fn separates(character: char) -> bool {
    character == ',' || character.is_ascii_whitespace()
}

/// The item that starts at byte `start`, and the byte after it.
fn item(text: &str, start: usize) -> Result<(Item, usize), Wrong> {
    let mut item = Item::default();
    let mut longest = 0;
    let mut literal = start;
    let mut at = start;
    while let Some(character) = text[at..].chars().next() {
        match character {
            '[' => {
                let close = closing_bracket(text, at)?;
                let (numbers, width) = numbers(text, at + 1, close)?;
                longest += at - literal + width;
                item.brackets.push((text[literal..at].to_owned(), numbers));
                at = close + 1;
                literal = at;
            }
            ']' => return Err((at, Fault::NotOpened)),
            character if separates(character) => break,
            character if character.is_control() => return Err((at, Fault::Control)),
            character => at += character.len_utf8(),
        }
        if longest + (at - literal) > MAX_NAME {
            return Err((start, Fault::LongName));
        }
    }
    text[literal..at].clone_into(&mut item.suffix);
    Ok((item, at))
}

/// Where the bracket that opens at byte `open` closes.
fn closing_bracket(text: &str, open: usize) -> Result<usize, Wrong> {
    let inside = open + 1;
    match text[inside..]
        .find(['[', ']'])
        .map(|length| inside + length)
    {
        None => Err((open, Fault::NotClosed)),
        Some(found) if text[found..].starts_with('[') => Err((found, Fault::Nested)),
        Some(found) => Ok(found),
    }
}

/// The numbers from byte `start` to byte `end`, and the most bytes that one of them takes.
fn numbers(text: &str, start: usize, end: usize) -> Result<(Numbers, usize), Wrong> {
    let mut numbers = Numbers::default();
    let mut longest = 0;
    let mut at = start;
    for part in text[start..end].split(',') {
        let range = range(part).map_err(|fault| (at, fault))?;
        longest = longest.max(range.longest());
        numbers.push(range);
        // Not left to the count of the whole item: the ranges themselves take memory.
        if numbers.len() > MAX_HOSTS {
            return Err((at, Fault::TooManyHosts));
        }
        at += part.len() + 1;
    }
    Ok((numbers, longest))
}

fn range(text: &str) -> Result<Range, Fault> {
    if text.trim_ascii().is_empty() {
        return Err(Fault::NoNumber);
    }
    let number = |digits: &str| {
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Fault::not_a_number(text));
        }
        digits
            .parse::<u64>()
            .map_err(|_| Fault::LargeNumber(text.to_owned()))
    };
    let (low, high, width) = if let Some((low, high)) = text.split_once('-') {
        let width = low.len();
        (
            number(low.trim_ascii())?,
            number(high.trim_ascii_start())?,
            width,
        )
    } else {
        let low = number(text.trim_ascii_start())?;
        (low, low, text.len())
    };
    let beyond_first = high
        .checked_sub(low)
        .ok_or_else(|| Fault::Backwards(text.to_owned()))?;
    let count = usize::try_from(beyond_first)
        .ok()
        .filter(|beyond_first| *beyond_first < MAX_RANGE)
        .ok_or_else(|| Fault::LongRange(text.to_owned()))?
        + 1;
    if width > MAX_NAME {
        return Err(Fault::LongName);
    }
    Ok(Range { low, count, width })
}
