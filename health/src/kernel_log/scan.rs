// SPDX-License-Identifier: Apache-2.0
//! Reads a text from its start, piece by piece.

/// What is left of a text. A step that finds nothing takes nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scan<'a> {
    rest: &'a str,
}

impl<'a> Scan<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    pub(super) const fn rest(&self) -> &'a str {
        self.rest
    }

    /// Takes this text, if it comes next.
    pub(super) fn eat(&mut self, text: &str) -> bool {
        self.rest
            .strip_prefix(text)
            .map(|rest| self.rest = rest)
            .is_some()
    }

    /// Takes blanks, if there are any.
    pub(super) fn blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    /// Takes a decimal number; absent if there is none or it does not fit.
    pub(super) fn number<T: std::str::FromStr>(&mut self) -> Option<T> {
        let end = self
            .rest
            .bytes()
            .position(|byte| !byte.is_ascii_digit())
            .unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at_checked(end)?;
        let number = digits.parse().ok()?;
        self.rest = rest;
        Some(number)
    }

    /// Takes a decimal number that may be negative.
    pub(super) fn signed(&mut self) -> Option<i64> {
        let mut ahead = *self;
        let negative = ahead.eat("-");
        let number: i64 = ahead.number()?;
        *self = ahead;
        Some(if negative { -number } else { number })
    }

    /// Takes a hexadecimal number of at most `most` digits, without prefix.
    pub(super) fn hex(&mut self, most: usize) -> Option<u32> {
        let end = self
            .rest
            .bytes()
            .position(|byte| !byte.is_ascii_hexdigit())
            .unwrap_or(self.rest.len());
        if end > most {
            return None;
        }
        let (digits, rest) = self.rest.split_at_checked(end)?;
        let number = u32::from_str_radix(digits, 16).ok()?;
        self.rest = rest;
        Some(number)
    }

    /// Takes a hexadecimal number with its `0x`.
    pub(super) fn prefixed_hex(&mut self) -> Option<u32> {
        let mut ahead = *self;
        ahead.eat("0x").then_some(())?;
        let number = ahead.hex(8)?;
        *self = ahead;
        Some(number)
    }

    /// Takes everything up to `end`, and `end`; absent if `end` does not come.
    pub(super) fn until(&mut self, end: &str) -> Option<&'a str> {
        let (taken, rest) = self.rest.split_once(end)?;
        self.rest = rest;
        Some(taken)
    }

    /// Takes everything up to the first of these characters, or all.
    pub(super) fn up_to(&mut self, ends: &[char]) -> &'a str {
        let end = self.rest.find(ends).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at_checked(end).unwrap_or((self.rest, ""));
        self.rest = rest;
        taken
    }
}

/// What stands between two marks, the first of which may be anywhere in the text.
pub(super) fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, after) = text.split_once(start)?;
    after.split_once(end).map(|(found, _)| found)
}
