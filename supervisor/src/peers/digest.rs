// SPDX-License-Identifier: Apache-2.0
//! How far a node is, as its heartbeats say it.

use std::time::Duration;

use steadfast_core::{Generation, Instant};
use steadfast_proto::v1::{Heartbeat, LeaseState, Overdue, TrainingPhase};

/// How far a node is. Instants are of the clock of whoever holds it: ages travel, not instants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest {
    /// The generation that the rest speaks of; 0 when the node runs none.
    pub(crate) generation: Generation,
    /// The last step that all workers of the node have made, and when. What comes from another node is never too early,
    /// and late by the time that it was on its way.
    pub(crate) step: Option<(u64, Instant)>,
    /// What the slowest worker is doing.
    pub(crate) phase: TrainingPhase,
    /// How the node stands with its lease.
    pub(crate) lease: LeaseState,
    /// Whether its training gets on, as it sees it.
    pub(crate) movement: Movement,
}

/// Whether the training gets on, as one node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Movement {
    /// It cannot tell.
    #[default]
    Unseen,
    /// Nothing is overdue.
    Moving,
    /// The next step is.
    Overdue {
        /// When something was last seen to move.
        since: Instant,
        /// How long it may take until the next step.
        bound: Duration,
        /// How long a step takes as a rule, if that is known.
        typical: Option<Duration>,
    },
}

impl Movement {
    /// Whether the next step is overdue.
    pub(crate) const fn is_overdue(self) -> bool {
        matches!(self, Self::Overdue { .. })
    }
}

impl Default for Digest {
    fn default() -> Self {
        Self {
            generation: Generation(0),
            step: None,
            phase: TrainingPhase::Unknown,
            lease: LeaseState::Unknown,
            movement: Movement::Unseen,
        }
    }
}

impl Digest {
    /// As it is sent at that instant.
    pub(super) fn to_heartbeat(self, now: Instant) -> Heartbeat {
        let age = |at| milliseconds(now.saturating_since(at));
        let overdue = match self.movement {
            Movement::Overdue {
                since,
                bound,
                typical,
            } => Some(Overdue {
                age_ms: age(since),
                bound_ms: milliseconds(bound),
                typical_ms: typical.map(milliseconds),
            }),
            Movement::Unseen | Movement::Moving => None,
        };
        Heartbeat {
            generation: self.generation.0,
            step: self.step.map(|(step, _)| step),
            // Rounded down, so that a step never seems to be older than it is.
            step_age_ms: self.step.map_or(0, |(_, at)| age(at)),
            phase: self.phase.into(),
            lease: self.lease.into(),
            sees_progress: self.movement != Movement::Unseen,
            overdue,
            // Whoever sends it adds that.
            wall_ms: 0,
        }
    }

    /// As it was received at that instant. Names that a later version may have added count as unknown.
    pub(super) fn from_heartbeat(heartbeat: &Heartbeat, now: Instant) -> Self {
        let at = now.saturating_sub(Duration::from_millis(heartbeat.step_age_ms));
        let movement = match &heartbeat.overdue {
            Some(overdue) => Movement::Overdue {
                since: now.saturating_sub(Duration::from_millis(overdue.age_ms)),
                bound: Duration::from_millis(overdue.bound_ms),
                typical: overdue.typical_ms.map(Duration::from_millis),
            },
            None if heartbeat.sees_progress => Movement::Moving,
            None => Movement::Unseen,
        };
        Self {
            generation: Generation(heartbeat.generation),
            step: heartbeat.step.map(|step| (step, at)),
            phase: heartbeat.phase(),
            lease: heartbeat.lease(),
            movement,
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;
    use steadfast_proto::v1::{Report, report};

    use super::*;

    #[test]
    fn an_age_travels_and_not_an_instant() {
        let digest = Digest {
            generation: Generation(3),
            step: Some((70, Instant::from_nanos(9_000_000_000))),
            phase: TrainingPhase::Eval,
            lease: LeaseState::Uncertain,
            movement: Movement::Overdue {
                since: Instant::from_nanos(7_250_000_000),
                bound: Duration::from_millis(1500),
                typical: None,
            },
        };
        let sent = digest.to_heartbeat(Instant::from_nanos(9_250_999_999));
        assert_eq!(sent.step_age_ms, 250);
        let received = Digest::from_heartbeat(&sent, Instant::from_nanos(77_000_000_000));
        assert_eq!(
            received,
            Digest {
                step: Some((70, Instant::from_nanos(76_750_000_000))),
                movement: Movement::Overdue {
                    since: Instant::from_nanos(75_000_000_000),
                    bound: Duration::from_millis(1500),
                    typical: None,
                },
                ..digest
            }
        );
    }

    #[test]
    fn a_step_from_before_the_clock_began_is_no_surprise() {
        let heartbeat = Heartbeat {
            step: Some(1),
            step_age_ms: u64::MAX,
            phase: 99,
            lease: -1,
            ..Heartbeat::default()
        };
        let digest = Digest::from_heartbeat(&heartbeat, Instant::from_nanos(5));
        assert_eq!(digest.step, Some((1, Instant::from_nanos(0))));
        assert_eq!(digest.phase, TrainingPhase::Unknown);
        assert_eq!(digest.lease, LeaseState::Unknown);
    }

    proptest! {
        #[test]
        fn any_heartbeat_that_can_be_decoded_can_be_read(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            now: u64,
        ) {
            if let Ok(Report { kind: Some(report::Kind::Heartbeat(heartbeat)) }) = Report::decode(&bytes[..]) {
                let now = Instant::from_nanos(now);
                let digest = Digest::from_heartbeat(&heartbeat, now);
                prop_assert_eq!(digest.generation.0, heartbeat.generation);
                prop_assert!(digest.step.is_none_or(|(_, at)| at <= now));
            }
        }

        #[test]
        fn what_is_sent_is_what_was_meant(generation: u64, step: Option<u64>, age_ms in 0..1_000_000_u64, phase in 0..6_i32) {
            let now = Instant::from_nanos(u64::MAX / 2);
            let digest = Digest {
                generation: Generation(generation),
                step: step.map(|step| (step, now - Duration::from_millis(age_ms))),
                phase: TrainingPhase::try_from(phase).unwrap(),
                lease: LeaseState::Held,
                movement: Movement::Moving,
            };
            let bytes = digest.to_heartbeat(now).encode_to_vec();
            let heartbeat = Heartbeat::decode(&bytes[..]).unwrap();
            prop_assert_eq!(Digest::from_heartbeat(&heartbeat, now), digest);
            prop_assert!(bytes.len() <= 40);
        }
    }
}
