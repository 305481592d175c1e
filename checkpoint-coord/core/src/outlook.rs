// SPDX-License-Identifier: Apache-2.0
//! How often to save, how much of the time is trained, and how many spares are enough: what failure rates imply.
//!
//! Failures come independently of each other and of time, as those of large jobs do to a good approximation. The interval is
//! Daly's optimum of higher order; the goodput is exact for such failures, counting what is lost, saved and restarted.

use std::time::Duration;

/// After how long one node fails, on average, where nothing better is known: what published failure rates of large training
/// clusters amount to is between 100 and 400 days.
pub const NODE_MTTF: Duration = Duration::from_hours(150 * 24);

/// More spares than anybody keeps: the sum below ends there.
const MOST_SPARES: u32 = 1_000_000;

/// What is known of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outlook {
    /// Mean time between two failures of the whole job, while it trains. More than 0.
    pub mtbf: Duration,
    /// For how long one checkpoint keeps the training from going on.
    pub checkpoint_cost: Duration,
    /// From a failure until training goes on from the last checkpoint.
    pub restart_time: Duration,
}

/// Mean time between failures of a job on that many nodes (at least 1), each of which fails after `node_mttf` on average.
pub fn mtbf(nodes: u32, node_mttf: Duration) -> Duration {
    node_mttf / nodes.max(1)
}

/// The same, after `failures` were seen within `observed`: what was expected beforehand counts as one failure.
pub fn observed_mtbf(expected: Duration, observed: Duration, failures: u32) -> Duration {
    expected.saturating_add(observed) / failures.saturating_add(1)
}

/// How many spares are enough with this probability (below 1), when a node that has failed is back after `repair_time`.
pub fn spares(nodes: u32, node_mttf: Duration, repair_time: Duration, probability: f64) -> u32 {
    let rate = f64::from(nodes) * repair_time.as_secs_f64() / node_mttf.as_secs_f64();
    if !rate.is_finite() {
        return MOST_SPARES;
    }
    // As logarithms, since the first terms of a large job are too small for a number.
    let mut logarithm = -rate;
    let mut sum = logarithm.exp();
    let mut count = 0;
    while sum < probability && count < MOST_SPARES {
        count += 1;
        logarithm += rate.ln() - f64::from(count).ln();
        sum += logarithm.exp();
    }
    count
}

impl Outlook {
    /// The time of training between two checkpoints with which most is trained.
    pub fn interval(&self) -> Duration {
        let (cost, mtbf) = (self.checkpoint_cost, self.mtbf);
        if cost >= mtbf.saturating_mul(2) {
            return mtbf;
        }
        let ratio = cost.as_secs_f64() / (2.0 * mtbf.as_secs_f64());
        let first = (2.0 * cost.as_secs_f64() * mtbf.as_secs_f64()).sqrt();
        let seconds = first * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - cost.as_secs_f64();
        Duration::try_from_secs_f64(seconds).unwrap_or(mtbf)
    }

    /// Which part of all time is training that is kept, from 0 to 1, when a checkpoint is made after each `interval` of it.
    pub fn goodput(&self, interval: Duration) -> f64 {
        let mtbf = self.mtbf.as_secs_f64();
        let part = (interval + self.checkpoint_cost).as_secs_f64() / mtbf;
        let takes = mtbf * (self.restart_time.as_secs_f64() / mtbf).exp() * part.exp_m1();
        let goodput = interval.as_secs_f64() / takes;
        if goodput.is_finite() { goodput } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn outlook(mtbf: u64, cost: u64, restart: u64) -> Outlook {
        Outlook {
            mtbf: Duration::from_secs(mtbf),
            checkpoint_cost: Duration::from_secs(cost),
            restart_time: Duration::from_secs(restart),
        }
    }

    #[test]
    fn a_day_between_failures_and_half_a_minute_for_a_checkpoint() {
        let outlook = outlook(86_400, 30, 180);
        // Young: sqrt(2 * 30 * 86400) = 2277 s.
        assert_eq!(outlook.interval().as_secs(), 2256);
        let goodput = outlook.goodput(outlook.interval());
        assert!((0.969..0.973).contains(&goodput), "{goodput}");
    }

    #[test]
    fn extremes_have_an_answer() {
        assert_eq!(outlook(100, 300, 0).interval(), Duration::from_secs(100));
        assert_eq!(outlook(100, 0, 0).interval(), Duration::ZERO);
        assert!(outlook(1, 86_400, 0).goodput(Duration::from_secs(1)) < 1e-9);
        assert!(outlook(86_400, 30, 1).goodput(Duration::ZERO) < 1e-9);
        assert_eq!(
            spares(10, Duration::ZERO, Duration::from_secs(1), 0.99),
            MOST_SPARES
        );
        assert_eq!(spares(10, NODE_MTTF, Duration::ZERO, 0.99), 0);
    }

    #[test]
    fn as_many_spares_are_enough_as_a_table_of_the_poisson_distribution_says() {
        let day = Duration::from_hours(24);
        // Means 0.1, 1, 10 and 1000 of nodes that are being repaired.
        for (nodes, enough) in [(10, 1), (100, 4), (1_000, 18), (100_000, 1_074)] {
            assert_eq!(spares(nodes, day * 100, day, 0.99), enough);
        }
    }

    #[test]
    fn failures_that_are_seen_outweigh_what_was_expected() {
        let hour = Duration::from_hours(1);
        assert_eq!(observed_mtbf(hour * 100, Duration::ZERO, 0), hour * 100);
        assert_eq!(observed_mtbf(hour * 100, hour * 20, 5), hour * 20);
    }

    proptest! {
        #[test]
        fn no_other_interval_keeps_noticeably_more(
            mtbf in 600_u64..10_000_000, cost in 1_u64..300, restart in 0_u64..600, other in 0.2_f64..5.0,
        ) {
            let outlook = outlook(mtbf, cost, restart);
            let best = outlook.interval();
            prop_assert!(outlook.goodput(best.mul_f64(other)) <= outlook.goodput(best) + 0.002);
        }
    }
}
