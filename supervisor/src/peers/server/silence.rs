// SPDX-License-Identifier: Apache-2.0
//! Looks for nodes that went silent, and knows when it had better not judge.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::Instant;
use tokio::time::{MissedTickBehavior, interval};

use super::{PeerSettings, Shared, now};

/// Looks again and again until the server stops.
pub(super) async fn watch(shared: Arc<Shared>) {
    let period = shared.settings.silent_after / 10;
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut trust = Trust::new(period, &shared.settings);
    let look_again = async {
        loop {
            ticks.tick().await;
            let now = now();
            if !trust.allows(now, shared.events.capacity() > 0) {
                continue;
            }
            let tell = |event| shared.events.try_send(event).is_ok();
            shared.registry().find_silent(now, &shared.settings, tell);
        }
    };
    shared.stop.run_until_cancelled(look_again).await;
}

/// Whether silence can be judged: not when this process slept itself, or its sessions waited because nobody took events.
/// What came meanwhile has to be read first.
#[derive(Debug)]
struct Trust {
    /// More than this between two looks is a sleep.
    longest_gap: Duration,
    /// How long reading takes what has piled up.
    settle: Duration,
    last_look: Option<Instant>,
    not_before: Instant,
}

impl Trust {
    fn new(period: Duration, settings: &PeerSettings) -> Self {
        Self {
            longest_gap: period * 2,
            settle: settings.heartbeat * 2,
            last_look: None,
            not_before: Instant::default(),
        }
    }

    fn allows(&mut self, now: Instant, events_are_taken: bool) -> bool {
        let slept = self
            .last_look
            .is_some_and(|last| now.saturating_since(last) > self.longest_gap);
        self.last_look = Some(now);
        if slept || !events_are_taken {
            self.not_before = now + self.settle;
        }
        now >= self.not_before
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::peers::server::registry::{Entry, Registry};
    use crate::peers::{CloseReason, PeerEvent, PeerIdentity};

    const fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn silence_is_noticed_within_three_seconds_and_said_once() {
        let settings = PeerSettings::new("job");
        let period = settings.silent_after / 10;
        let identity = PeerIdentity::generate().unwrap();
        for heard_ms in 0..1_000 {
            let mut registry = Registry::default();
            let (end, mut ended) = oneshot::channel();
            let entry = Entry {
                certificate: identity.fingerprint(),
                heard_at: at(heard_ms),
                asks: mpsc::channel(1).0,
                end: Some(end),
            };
            registry.open(&"a".into(), entry);
            let mut trust = Trust::new(period, &settings);
            let mut said = Vec::new();
            let looks = (0_u32..).map(|look| at(0) + period * look);
            for now in looks.take_while(|now| *now < at(30_000)) {
                if !trust.allows(now, true) {
                    continue;
                }
                registry.find_silent(now, &settings, |event| {
                    said.push((now, event));
                    true
                });
            }
            let [(now, PeerEvent::Silent { silent_for, .. })] = said.as_slice() else {
                panic!("{said:?}")
            };
            assert_eq!(*silent_for, now.saturating_since(at(heard_ms)));
            assert!(*silent_for >= settings.silent_after);
            assert!(*silent_for <= settings.silent_after + period);
            assert!(*silent_for < Duration::from_secs(3));
            // Given up in the end.
            assert!(matches!(ended.try_recv(), Ok(CloseReason::Silent(_))));
        }
    }

    #[test]
    fn who_has_slept_does_not_judge_before_it_has_read() {
        let settings = PeerSettings::new("job");
        let mut trust = Trust::new(Duration::from_millis(250), &settings);
        assert!(trust.allows(at(1_000), true));
        assert!(trust.allows(at(1_250), true));
        assert!(!trust.allows(at(1_751), true), "slept");
        assert!(!trust.allows(at(2_001), true));
        assert!(!trust.allows(at(2_501), true));
        assert!(trust.allows(at(2_751), true));
        assert!(!trust.allows(at(3_000), false), "nobody took events");
        assert!(!trust.allows(at(3_250), true));
        assert!(!trust.allows(at(3_500), true));
        assert!(!trust.allows(at(3_750), true));
        assert!(trust.allows(at(4_000), true));
    }
}
