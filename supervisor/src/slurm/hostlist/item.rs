// SPDX-License-Identifier: Apache-2.0
//! One item of a list: a name, in which brackets stand for numbers.

/// Numbers next to one another, written alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    /// The first number.
    pub(super) low: u64,
    /// How many there are, 1 to [`super::MAX_RANGE`].
    pub(super) count: usize,
    /// Digits that a number has at least; zeros fill it up.
    pub(super) width: usize,
}

impl Range {
    /// The most bytes that a number of this range takes.
    pub(super) fn longest(self) -> usize {
        self.number(self.count - 1).len()
    }

    fn number(self, index: usize) -> String {
        format!("{:0width$}", self.low + index as u64, width = self.width)
    }
}

/// The ranges between two brackets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    /// Each range, and how many numbers stand before it.
    ranges: Vec<(usize, Range)>,
    count: usize,
}

impl Numbers {
    /// Adds a range at the end.
    pub(super) fn push(&mut self, range: Range) {
        self.ranges.push((self.count, range));
        self.count += range.count;
    }

    /// How many numbers there are, repeats included.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The number at `index`, which is below the length.
    fn number(&self, index: usize) -> String {
        let after = self.ranges.partition_point(|(before, _)| *before <= index);
        let (before, range) = self.ranges[after - 1];
        range.number(index - before)
    }
}

/// One item of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Item {
    /// Each bracket, with the text before it.
    pub(super) brackets: Vec<(String, Numbers)>,
    /// The text after the last bracket; the whole name where there is none.
    pub(super) suffix: String,
}

impl Item {
    /// How many hosts the item names, repeats included; more than `usize` holds counts as the most that it holds.
    pub(super) fn len(&self) -> usize {
        self.brackets.iter().fold(1, |count: usize, (_, numbers)| {
            count.saturating_mul(numbers.len())
        })
    }

    /// The host at `index`, which is below the length.
    ///
    /// The order is Slurm's: the last bracket runs fastest, then the first, the second and so on. Up to two brackets
    /// it is the order that one expects; beyond, it only looks odd.
    pub(super) fn host(&self, mut index: usize) -> String {
        let mut chosen = vec![0; self.brackets.len()];
        let last = self.brackets.len().saturating_sub(1);
        let fastest_first = self.brackets.iter().enumerate().skip(last);
        for (place, (_, numbers)) in
            fastest_first.chain(self.brackets.iter().enumerate().take(last))
        {
            chosen[place] = index % numbers.len();
            index /= numbers.len();
        }
        let mut host = String::new();
        for ((text, numbers), index) in self.brackets.iter().zip(chosen) {
            host.push_str(text);
            host.push_str(&numbers.number(index));
        }
        host.push_str(&self.suffix);
        host
    }
}
