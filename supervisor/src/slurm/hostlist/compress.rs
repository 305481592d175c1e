// SPDX-License-Identifier: Apache-2.0
//! From hosts to a short list.
//!
//! The numbers of the names are folded into brackets from the right to the left. Hosts that differ in their last number
//! alone become one item; then items that differ in the number before that alone, and so on:
//!
//! ```text
//! rack1n1 rack1n2 rack2n1 rack2n2  ->  rack1n[1-2] rack2n[1-2]  ->  rack[1-2]n[1-2]
//! ```
//!
//! Slurm before 23.11 takes no text after the last bracket, so a name that does not end in a digit is left as it is, and
//! a name that does ends in a bracket as soon as there is any bracket in it.

use std::collections::{BTreeMap, BTreeSet};

use super::MAX_RANGE;

/// The most digits that are read as one number. Slurm counts in 64 bits, which hold any 18 digits.
const MAX_DIGITS: usize = 18;

/// A short list that names each of these hosts once, and that every release of Slurm takes; empty for no hosts.
///
/// The names must be such as [`super::HostList::hosts`] gives: no separators and no brackets. The items are in the order
/// of their text, the numbers of an item in the order of their value.
pub(crate) fn compress(hosts: impl Iterator<Item = String>) -> String {
    let mut finished = BTreeSet::new();
    let mut open: Vec<Folded> = Vec::new();
    for host in hosts.collect::<BTreeSet<_>>() {
        if host.ends_with(|last: char| last.is_ascii_digit()) {
            open.push(Folded::whole(host));
        } else {
            finished.insert(host);
        }
    }
    while !open.is_empty() {
        let mut groups: BTreeMap<Group, BTreeSet<Number>> = BTreeMap::new();
        for item in open.drain(..) {
            match item.split() {
                Ok((group, number)) => {
                    groups.entry(group).or_default().insert(number);
                }
                Err(text) => {
                    finished.insert(text);
                }
            }
        }
        open.extend(groups.into_iter().flat_map(fold));
    }
    finished.into_iter().collect::<Vec<_>>().join(",")
}

/// An item whose right part has been folded.
struct Folded {
    /// The left part, where every number is still one of a single host.
    head: String,
    /// The right part, which ends in a bracket; empty before the first round.
    tail: String,
    /// Whether its brackets must stay: it names several hosts, or a number that Slurm reads only in a bracket.
    bracketed: bool,
}

/// What items that can be folded into one have in common. Its fields are those of [`Folded`], apart from the last number
/// of the head.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    head: String,
    tail: String,
    bracketed: bool,
}

/// A number as it is written: by value, then by how many digits it has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Number {
    value: u64,
    width: usize,
}

impl Folded {
    fn whole(host: String) -> Self {
        Self {
            head: host,
            tail: String::new(),
            bracketed: false,
        }
    }

    /// Takes the last number out of the head; gives the finished text where the head has none.
    fn split(self) -> Result<(Group, Number), String> {
        let is_digit = |character: char| character.is_ascii_digit();
        let without_text = self.head.trim_end_matches(|character| !is_digit(character));
        let digits = without_text
            .bytes()
            .rev()
            .take(MAX_DIGITS)
            .take_while(u8::is_ascii_digit)
            .count();
        let (head, number) = without_text.split_at(without_text.len() - digits);
        let Ok(value) = number.parse() else {
            return Err(self.text());
        };
        let group = Group {
            head: head.to_owned(),
            tail: format!("{}{}", &self.head[without_text.len()..], self.tail),
            bracketed: self.bracketed,
        };
        let number = Number {
            value,
            width: digits,
        };
        Ok((group, number))
    }

    fn text(self) -> String {
        let text = self.head + &self.tail;
        // A single host is written plainly, although its last number was put into a bracket at first.
        if self.bracketed {
            text
        } else {
            text.replace(['[', ']'], "")
        }
    }
}

impl Number {
    fn next(self) -> Self {
        let value = self.value + 1;
        let digits = value.ilog10() as usize + 1;
        Self {
            value,
            width: self.width.max(digits),
        }
    }

    fn text(self) -> String {
        format!("{:0width$}", self.value, width = self.width)
    }
}

/// The items of one group: one, unless there are more ranges than Slurm takes between two brackets.
fn fold((group, numbers): (Group, BTreeSet<Number>)) -> Vec<Folded> {
    let Group {
        head,
        tail,
        bracketed,
    } = group;
    // Slurm takes all digits at the end of a plain name for one number, and gets one of more than 64 bits wrong.
    let is_cut = tail.is_empty() && head.ends_with(|last: char| last.is_ascii_digit());
    let bracketed = bracketed || is_cut || numbers.len() > 1;
    if numbers.len() == 1 && !tail.is_empty() {
        let number = numbers
            .iter()
            .map(|number| number.text())
            .collect::<String>();
        return vec![Folded {
            // The number is not to be taken out again, so it goes to the right part.
            tail: number + &tail,
            head,
            bracketed,
        }];
    }
    ranges(numbers)
        .chunks(MAX_RANGE)
        .map(|ranges| Folded {
            head: head.clone(),
            tail: format!("[{}]{tail}", ranges.join(",")),
            bracketed,
        })
        .collect()
}

/// As few ranges as there can be. `09-10` and `9-10` are both ranges: the numbers after the first one are written with
/// as many digits as the first.
fn ranges(mut numbers: BTreeSet<Number>) -> Vec<String> {
    let mut ranges = Vec::new();
    while let Some(first) = numbers.pop_first() {
        let mut last = first;
        let mut count = 1;
        while count < MAX_RANGE && numbers.remove(&last.next()) {
            last = last.next();
            count += 1;
        }
        ranges.push(if count == 1 {
            first.text()
        } else {
            format!("{}-{}", first.text(), last.text())
        });
    }
    ranges
}
