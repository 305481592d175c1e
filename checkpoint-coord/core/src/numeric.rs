// SPDX-License-Identifier: Apache-2.0
//! Is the loss still a number, and does it not run away?
//!
//! One loss that is no number can be a batch that a mixed-precision trainer skips; several in a row cannot be got over. A
//! loss that grows is common, too: only one that stays far above everything that the training has shown counts.

use std::collections::VecDeque;

/// Losses in a row that are no numbers after which the training cannot recover by itself.
const LASTING: u32 = 3;
/// Losses that the usual one is taken from, and how many of them are needed.
const RECENT: usize = 64;
const ENOUGH: usize = 16;
/// A loss this many times the usual one is far above it...
const FAR: f64 = 10.0;
/// ... and if so many in a row are, the training has diverged.
const DIVERGED: u32 = 20;

/// Watches the losses of one rank in one generation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LossWatch {
    last_step: Option<u64>,
    /// The last losses that were as usual.
    usual: VecDeque<f64>,
    /// The largest loss of all that were as usual: a training begins with large ones.
    largest: f64,
    last_good: Option<(Option<u64>, f64)>,
    /// Losses in a row that are no numbers, and that are far too large.
    broken: u32,
    high: u32,
}

/// What is wrong with the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossTrouble {
    /// It is not a number.
    NotANumber,
    /// It is infinite.
    Infinite,
    /// It stays far above what it was.
    Diverging,
}

/// A loss that something is wrong with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossFinding {
    /// What.
    pub trouble: LossTrouble,
    /// The step of the loss, where that is known.
    pub step: Option<u64>,
    /// The loss.
    pub loss: f64,
    /// The last step with a usual loss, and that loss.
    pub last_good: Option<(Option<u64>, f64)>,
    /// Whether it has lasted so long that the training will not recover by itself.
    pub is_lasting: bool,
}

impl LossWatch {
    /// Takes in the loss of a step. The finding comes with the first loss that something is wrong with, and again when it is
    /// clear that it lasts.
    pub fn note(&mut self, step: Option<u64>, loss: f64) -> Option<LossFinding> {
        if step.is_some() && step == self.last_step {
            return None;
        }
        self.last_step = step;
        let trouble = self.judge(step, loss);
        let (trouble, is_lasting) = trouble?;
        Some(LossFinding {
            trouble,
            step,
            loss,
            last_good: self.last_good,
            is_lasting,
        })
    }

    fn judge(&mut self, step: Option<u64>, loss: f64) -> Option<(LossTrouble, bool)> {
        if !loss.is_finite() {
            self.broken = self.broken.saturating_add(1);
            let trouble = if loss.is_nan() {
                LossTrouble::NotANumber
            } else {
                LossTrouble::Infinite
            };
            let is_news = self.broken == 1 || self.broken == LASTING;
            return is_news.then_some((trouble, self.broken == LASTING));
        }
        self.broken = 0;
        if self.is_far(loss) {
            self.high = self.high.saturating_add(1);
            return (self.high == DIVERGED).then_some((LossTrouble::Diverging, true));
        }
        self.high = 0;
        self.largest = self.largest.max(loss.abs());
        if self.usual.len() == RECENT {
            self.usual.pop_front();
        }
        self.usual.push_back(loss);
        self.last_good = Some((step, loss));
        None
    }

    /// Whether it is far above the usual loss, and above all that were ever seen.
    fn is_far(&self, loss: f64) -> bool {
        if self.usual.len() < ENOUGH {
            return false;
        }
        let mut sorted: Vec<f64> = self.usual.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let usual = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        // Losses around or below zero say nothing by their size.
        usual > 0.0 && loss > FAR * usual && loss > self.largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(losses: &[f64]) -> Vec<LossFinding> {
        let mut watch = LossWatch::default();
        let steps = (1_u64..).map(Some);
        let found = steps.zip(losses);
        found
            .filter_map(|(step, &loss)| watch.note(step, loss))
            .collect()
    }

    #[test]
    fn a_loss_that_is_no_number_is_told_at_once_and_again_when_it_lasts() {
        let found = noted(&[0.5, f64::NAN, f64::NAN, f64::INFINITY, f64::NAN, f64::NAN]);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].trouble, found[0].step, found[0].is_lasting),
            (LossTrouble::NotANumber, Some(2), false)
        );
        assert_eq!(found[0].last_good, Some((Some(1), 0.5)));
        assert!(found[1].is_lasting && found[1].step == Some(4));
        // A batch that is skipped now and then is no more than that.
        let skipped = noted(&[0.5, f64::INFINITY, 0.5, f64::INFINITY, 0.5]);
        assert!(skipped.iter().all(|found| !found.is_lasting));
    }

    #[test]
    fn the_same_step_is_not_counted_twice() {
        let mut watch = LossWatch::default();
        assert!(watch.note(Some(7), f64::NAN).is_some());
        for _ in 0..10 {
            assert_eq!(watch.note(Some(7), f64::NAN), None);
        }
    }

    #[test]
    fn a_loss_that_stays_far_above_all_before_has_diverged() {
        let mut losses: Vec<f64> = (0..40).map(|n| 3.0 / f64::from(n + 1)).collect();
        losses.extend([50.0; 19]);
        assert_eq!(noted(&losses), [], "it may come back");
        losses.push(50.0);
        let found = noted(&losses);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].trouble, LossTrouble::Diverging);
        // From the size that it began with, it can come down again.
        let mut restarted: Vec<f64> = (0..40).map(|n| 3.0 / f64::from(n + 1)).collect();
        restarted.extend([2.9; 50]);
        assert_eq!(noted(&restarted), []);
        assert_eq!(noted(&[-5.0; 90]), []);
    }
}
