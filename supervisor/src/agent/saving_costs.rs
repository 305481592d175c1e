// SPDX-License-Identifier: Apache-2.0
//! What checkpoints cost this job, as far as it was seen, and how often they should be made.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use steadfast_core::{NODE_MTTF, Outlook, mtbf, observed_mtbf};
use steadfast_health::progress_page::PagePhase;

use crate::span;

/// How many checkpoints are remembered: what one costs changes with the load of the file system.
const RECENT: usize = 9;
/// Pages are read so often: a checkpoint that no page shows has taken less.
const SHORTEST_SEEN: Duration = Duration::from_millis(100);
/// An advice that differs from the last one by less than this part (one in so many) is no news.
const NEWS: u32 = 5;
/// How often one is asked for while it is not known what they cost.
pub(super) const UNTIL_KNOWN: Duration = Duration::from_mins(30);

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct SavingCosts {
    /// Since when ranks of this node save, on the monotonic clock.
    saving: BTreeMap<u32, u64>,
    /// The last time that ranks saved, from and until.
    last: Option<(u64, u64)>,
    /// For how long the training stood still.
    blocking: VecDeque<Duration>,
    /// From the beginning of a save until it was on stable storage.
    persisting: VecDeque<Duration>,
    /// Whether anything was seen of the checkpoint that is being made.
    is_seen: bool,
    told: Option<Duration>,
}

/// How the job fares.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Nodes of the running generation.
    pub(super) nodes: u32,
    /// For how long the job has been running.
    pub(super) uptime: Duration,
    /// Failures in that time.
    pub(super) failures: u32,
}

/// How often checkpoints should be made, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advice {
    /// For how long a checkpoint keeps the training from going on.
    pub(super) blocking: Duration,
    /// How long it takes until it is on stable storage, if that was seen.
    pub(super) persisting: Option<Duration>,
    /// Mean time between failures: what is expected of so many nodes, and what was seen.
    pub(super) mtbf: Duration,
    /// How much training between two checkpoints keeps most.
    pub(super) interval: Duration,
}

impl SavingCosts {
    /// Another generation: whoever was saving is gone.
    pub(super) fn begin(&mut self) {
        self.saving.clear();
        self.last = None;
        self.is_seen = false;
    }

    /// Takes in what a rank is busy with, since when, on the monotonic clock.
    pub(super) fn note_phase(&mut self, local_rank: u32, phase: PagePhase, since_ns: u64) {
        if phase == PagePhase::Checkpoint {
            self.saving.insert(local_rank, since_ns);
            return;
        }
        let Some(from) = self.saving.remove(&local_rank) else {
            return;
        };
        self.is_seen = true;
        // Ranks that save at the same time keep the training from going on once.
        match &mut self.last {
            Some((first, until)) if from <= *until => {
                *first = from.min(*first);
                *until = since_ns.max(*until);
                self.blocking.pop_back();
            }
            _ => self.last = Some((from, since_ns)),
        }
        if let Some((from, until)) = self.last {
            let time = Duration::from_nanos(until.saturating_sub(from));
            remember(&mut self.blocking, time);
        }
    }

    /// A checkpoint was found whole. `shows_phases`: whether the ranks show when they save.
    pub(super) fn note_made(&mut self, shows_phases: bool) {
        let is_seen = std::mem::take(&mut self.is_seen) || !self.saving.is_empty();
        if !is_seen && shows_phases {
            remember(&mut self.blocking, SHORTEST_SEEN);
        }
    }

    /// It is on stable storage, now, on the monotonic clock.
    pub(super) fn note_flushed(&mut self, now_ns: u64) {
        if let Some((from, _)) = self.last {
            let time = Duration::from_nanos(now_ns.saturating_sub(from));
            remember(&mut self.persisting, time);
        }
    }

    /// What follows from it; `None` while it is not known what a checkpoint costs.
    pub(super) fn advice(&self, record: Record) -> Option<Advice> {
        let blocking = median(&self.blocking)?;
        let persisting = median(&self.persisting);
        let expected = mtbf(record.nodes, NODE_MTTF);
        let mtbf = observed_mtbf(expected, record.uptime, record.failures);
        let outlook = Outlook {
            mtbf,
            checkpoint_cost: blocking,
            restart_time: Duration::ZERO,
        };
        Some(Advice {
            blocking,
            persisting,
            mtbf,
            // One must have been written before the next.
            interval: outlook.interval().max(persisting.unwrap_or_default()),
        })
    }

    /// The same, if it differs from what was told last.
    pub(super) fn news(&mut self, record: Record) -> Option<Advice> {
        let advice = self.advice(record)?;
        let is_news = self.told.is_none_or(|told| {
            let difference = told.abs_diff(advice.interval);
            difference > told / NEWS
        });
        if !is_news {
            return None;
        }
        self.told = Some(advice.interval);
        Some(advice)
    }
}

impl Advice {
    /// For people.
    pub(super) fn in_words(&self) -> String {
        let mut text = format!(
            "one keeps the training from going on for {}",
            span::rounded(self.blocking)
        );
        if let Some(time) = self.persisting {
            // Writing into a string cannot fail.
            let _infallible = write!(
                text,
                " and is on stable storage after {}",
                span::rounded(time)
            );
        }
        let _infallible = write!(
            text,
            "; with a failure every {}, one every {} keeps most",
            span::rounded(self.mtbf),
            span::rounded(self.interval)
        );
        text
    }
}

fn remember(times: &mut VecDeque<Duration>, time: Duration) {
    times.push_back(time);
    if times.len() > RECENT {
        times.pop_front();
    }
}

fn median(times: &VecDeque<Duration>) -> Option<Duration> {
    let mut sorted: Vec<Duration> = times.iter().copied().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn record(failures: u32) -> Record {
        Record {
            nodes: 100,
            uptime: Duration::from_hours(36),
            failures,
        }
    }

    fn saved(costs: &mut SavingCosts, at: u64, took: u64) {
        for rank in 0..3 {
            // The others notice a little later, and one is done first.
            costs.note_phase(
                rank,
                PagePhase::Checkpoint,
                (at * 10 + u64::from(rank)) * SECOND / 10,
            );
        }
        for rank in [1, 0, 2] {
            costs.note_phase(rank, PagePhase::Train, (at + took) * SECOND);
        }
        costs.note_made(true);
        costs.note_flushed((at + took + 5) * SECOND);
    }

    #[test]
    fn ranks_that_save_together_count_once_and_the_usual_cost_counts() {
        let mut costs = SavingCosts::default();
        assert_eq!(costs.advice(record(0)), None);
        for (at, took) in [(100, 10), (200, 10), (300, 90), (500, 10), (600, 11)] {
            saved(&mut costs, at, took);
        }
        let advice = costs.advice(record(0)).unwrap();
        assert_eq!(advice.blocking, Duration::from_secs(10));
        assert_eq!(advice.persisting, Some(Duration::from_secs(15)));
        // 150 days over 100 nodes, and as long again without a failure.
        assert_eq!(advice.mtbf, Duration::from_hours(72));
        assert!(
            (2_200..2_300).contains(&advice.interval.as_secs()),
            "{advice:?}"
        );
    }

    #[test]
    fn what_no_page_has_shown_took_less_than_a_look() {
        let mut costs = SavingCosts::default();
        costs.note_made(false);
        assert_eq!(costs.advice(record(0)), None);
        costs.note_made(true);
        assert_eq!(costs.advice(record(0)).unwrap().blocking, SHORTEST_SEEN);
    }

    #[test]
    fn only_what_has_changed_noticeably_is_news() {
        let mut costs = SavingCosts::default();
        saved(&mut costs, 100, 10);
        assert!(costs.news(record(0)).is_some());
        assert_eq!(costs.news(record(0)), None);
        let more_often = costs.news(record(5)).unwrap();
        assert!(
            more_often.in_words().ends_with("keeps most"),
            "{}",
            more_often.in_words()
        );
        assert_eq!(
            more_often.in_words(),
            "one keeps the training from going on for 10 s and is on stable storage after 15 s; with a failure every 12 h, \
             one every 15 min 22 s keeps most"
        );
    }
}
