// SPDX-License-Identifier: Apache-2.0
//! Finds training step numbers in a program's output.
//!
//! What is recognised is written down for users in `docs/progress.md`. A number is taken only where the words around it
//! leave little doubt: a wrong step would make a job that gets nowhere look as if it got on.

mod bars;
mod lockstep;
mod loss;
mod patterns;
#[cfg(test)]
mod tests;
mod words;

use regex::bytes::Regex;

pub use lockstep::{Lockstep, Synchronised};
pub use loss::loss_in;

/// Most bytes of a line that are looked at.
const LOOK_BYTES: usize = 4096;

/// Watches one stream of output for steps.
///
/// It remembers what the stream has shown so far: programs that print steps in so many words also print progress bars
/// that count something else, and bars that start anew with each epoch make sense only together with it.
#[derive(Debug, Default)]
pub struct StepTracker {
    /// The user's expression; nothing else is looked for then.
    own: Option<Regex>,
    /// Steps were seen in words: bars do not count any more.
    has_words: bool,
    /// The largest total of a bar so far: smaller ones count something else, such as an evaluation.
    bar_total: u64,
    /// Epoch that a line of its own announced.
    epoch: Option<u64>,
}

impl StepTracker {
    /// With the user's `own` expression, which alone counts then: the group named `step`, or else the first group, or
    /// else the whole match must be a number.
    pub fn new(own: Option<Regex>) -> Self {
        Self {
            own,
            ..Self::default()
        }
    }

    /// The step that `line` (without its line end) speaks of, if it speaks of one. Looks at its first 4 KiB.
    pub fn observe(&mut self, line: &[u8]) -> Option<u64> {
        let line = &line[..line.len().min(LOOK_BYTES)];
        if let Some(own) = &self.own {
            return own_step(own, line);
        }
        if !patterns::CANDIDATE.is_match(line) {
            return None;
        }
        if let Some(step) = words::step(line) {
            self.has_words = true;
            return Some(step);
        }
        if let Some(found) = patterns::EPOCH_ALONE.captures(line) {
            self.epoch = patterns::number(&found, "epoch");
            return None;
        }
        if self.has_words {
            return None;
        }
        let bar = bars::find(line)?;
        if bar.total < self.bar_total {
            return None;
        }
        self.bar_total = bar.total;
        match bar.epoch.or(if bar.is_keras { self.epoch } else { None }) {
            Some(epoch) => epoch.checked_mul(bar.total)?.checked_add(bar.step),
            None => Some(bar.step),
        }
    }
}

fn own_step(own: &Regex, line: &[u8]) -> Option<u64> {
    let found = own.captures(line)?;
    let text = found
        .name("step")
        .or_else(|| found.get(1))
        .or_else(|| found.get(0))?;
    patterns::parse(text.as_bytes())
}
