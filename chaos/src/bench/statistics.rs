// SPDX-License-Identifier: Apache-2.0
//! Median, least and greatest of a few measurements.

use std::fmt;

use serde::Serialize;

/// What a number of measurements come to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) count: usize,
}

impl Summary {
    /// `None` without measurements.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let upper = *sorted.get(middle)?;
        let lower = *sorted.get((sorted.len() - 1) / 2)?;
        Some(Self {
            median: f64::midpoint(lower, upper),
            min,
            max,
            count: sorted.len(),
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Small figures want a digit more.
        let digits = usize::from(self.max < 10.0);
        let text = format!(
            "{:.digits$} [{:.digits$}-{:.digits$}]",
            self.median, self.min, self.max
        );
        formatter.pad(&text)
    }
}

/// The value that so many percent of the values do not exceed; infinity without values. 0 gives the least of them.
pub(super) fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or(f64::INFINITY)
}

/// Nanoseconds as milliseconds.
pub(super) fn milliseconds(nanos: u64) -> f64 {
    std::time::Duration::from_nanos(nanos).as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let found = [0, 50, 99, 100].map(|percent| percentile(&values, percent));
        assert_eq!(format!("{found:?}"), "[1.0, 100.0, 198.0, 200.0]");
        assert!((percentile(&[7.0], 50) - 7.0).abs() < 1e-9);
        assert!(percentile(&[], 50).is_infinite());
    }

    #[test]
    fn medians() {
        assert_eq!(Summary::of(&[]), None);
        let odd = Summary::of(&[30.0, 10.0, 20.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (20.0, 10.0, 30.0));
        assert_eq!(
            Summary::of(&[10.0, 20.0]).unwrap().to_string(),
            "15 [10-20]"
        );
        assert_eq!(odd.to_string(), "20 [10-30]");
        assert_eq!(Summary::of(&[0.25]).unwrap().to_string(), "0.2 [0.2-0.2]");
    }
}
