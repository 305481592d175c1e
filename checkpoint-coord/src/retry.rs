// SPDX-License-Identifier: Apache-2.0
//! How long to wait before something is tried again. The only place that knows the crate `backoff`.
//!
//! Waiting times grow and are scattered, so that the nodes of a large job do not come back all at once. None of the
//! policies ever gives up: whoever tries again decides by its own deadline when enough is enough.

use std::time::Duration;

use backoff::backoff::Backoff;

/// What is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Beginning a session on a store that cannot be used yet.
    SessionBeginning,
    /// Asking all endpoints of a store once more, within one request that is waited for.
    EndpointsWithinRequest,
    /// Taking up a watch that broke off.
    WatchForever,
    /// Connecting to the agent of the node that leads.
    LeaderForever,
}

/// Waiting times, each longer than the one before up to a limit. Endless.
#[derive(Debug)]
pub struct Delays {
    #[expect(
        clippy::disallowed_types,
        reason = "this module is the one that may use it"
    )]
    backoff: backoff::ExponentialBackoff,
}

impl RetryPolicy {
    /// The waiting times of a new series of tries.
    pub fn delays(self) -> Delays {
        let (first, longest) = self.bounds();
        #[expect(
            clippy::disallowed_types,
            reason = "this module is the one that may use it"
        )]
        let backoff = backoff::ExponentialBackoffBuilder::new()
            .with_initial_interval(first)
            .with_max_interval(longest)
            .with_multiplier(2.0)
            .with_randomization_factor(SCATTER)
            .with_max_elapsed_time(None)
            .build();
        Delays { backoff }
    }

    /// First and longest waiting time before they are scattered.
    const fn bounds(self) -> (Duration, Duration) {
        match self {
            Self::SessionBeginning => (Duration::from_millis(200), Duration::from_secs(2)),
            Self::EndpointsWithinRequest => (Duration::from_millis(20), Duration::from_millis(250)),
            Self::WatchForever => (Duration::from_millis(50), Duration::from_secs(2)),
            Self::LeaderForever => (Duration::from_millis(50), Duration::from_secs(2)),
        }
    }
}

/// A waiting time is shortened or lengthened by up to this share of itself.
const SCATTER: f64 = 0.5;

impl Delays {
    /// How long to wait before the next try.
    pub fn next_delay(&mut self) -> Duration {
        // Without a limit of the elapsed time there always is a next one.
        self.backoff
            .next_backoff()
            .unwrap_or(self.backoff.max_interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_their_limit_and_never_end() {
        for policy in [
            RetryPolicy::SessionBeginning,
            RetryPolicy::EndpointsWithinRequest,
            RetryPolicy::WatchForever,
            RetryPolicy::LeaderForever,
        ] {
            let (first, longest) = policy.bounds();
            let mut delays = policy.delays();
            assert!(delays.next_delay() <= first.mul_f64(1.0 + SCATTER));
            let many: Vec<_> = (0..1_000).map(|_| delays.next_delay()).collect();
            let most = longest.mul_f64(1.0 + SCATTER);
            let least = longest.mul_f64(1.0 - SCATTER);
            assert!(many.iter().all(|delay| *delay <= most), "{policy:?}");
            assert!(
                many[20..].iter().all(|delay| *delay >= least),
                "{policy:?}: {:?}",
                &many[..30]
            );
        }
    }

    #[test]
    fn delays_are_scattered() {
        let mut delays = RetryPolicy::WatchForever.delays();
        let late: Vec<_> = (0..50).map(|_| delays.next_delay()).skip(20).collect();
        assert!(late.windows(2).any(|pair| pair[0] != pair[1]));
    }
}
