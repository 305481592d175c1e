// SPDX-License-Identifier: Apache-2.0
//! Expressions that are part of the program.

use regex::Regex;

/// Compiles a constant expression.
#[expect(
    clippy::expect_used,
    reason = "the expressions are constants, and the tests use each"
)]
pub(crate) fn compile(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is valid")
}

/// The text of the group `name`.
pub(crate) fn group<'a>(found: &regex::Captures<'a>, name: &str) -> Option<&'a str> {
    found.name(name).map(|group| group.as_str())
}

/// The number in the group `name`.
pub(crate) fn number<T: std::str::FromStr>(found: &regex::Captures<'_>, name: &str) -> Option<T> {
    group(found, name)?.parse().ok()
}
