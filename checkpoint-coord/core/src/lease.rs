// SPDX-License-Identifier: Apache-2.0
//! The lease that this node's records are bound to, and until when it surely vouches for this node.
//!
//! The time counts from when the last renewal that was answered was *sent*, on this machine's own clock, and only once
//! the member's record is known to be bound to the lease. A lease is short while training steps vouch for the workers,
//! since its loss does no harm then, and long otherwise. To change its length is to take another one: both are renewed
//! until the records have moved.

use std::time::Duration;

use crate::{Instant, LeaseId};

/// How long the keeper may take to kill the workers once the time is over.
pub(crate) const TIME_TO_KILL: Duration = Duration::from_millis(500);
/// Clocks run apart by no more than one in so many.
pub(crate) const CLOCK_DRIFT: u32 = 100;

/// A lease that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    id: LeaseId,
    ttl: Duration,
    /// When the last renewal that was answered, or the request for it, was sent.
    renewed: Instant,
    /// Whether the member's record is known to be bound to it.
    has_record: bool,
    /// Whether the leader's record is, or there is none of ours.
    has_leader: bool,
    /// Whether this keeper's node never had another one.
    is_first: bool,
}

/// The lease of the records, and the one that they are moving to.
#[derive(Debug)]
pub struct Lease {
    current: Held,
    next: Option<Held>,
    tenure: LeaseId,
}

/// What came of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal {
    /// When it was sent.
    pub sent: Instant,
    /// The lease to which it belongs.
    pub lease: LeaseId,
    /// The lease had ended, and this one was granted in its place.
    pub replaced_by: Option<LeaseId>,
}

impl Held {
    /// A lease that was asked for at `sent`.
    pub fn granted(id: LeaseId, ttl: Duration, sent: Instant) -> Self {
        Self {
            id,
            ttl,
            renewed: sent,
            has_record: false,
            has_leader: true,
            is_first: false,
        }
    }

    /// The lease.
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// A lease that is known to have the member's record already.
    #[must_use]
    pub fn with_record(self) -> Self {
        Self {
            has_record: true,
            ..self
        }
    }

    /// The first lease that this keeper's node has ever had.
    #[must_use]
    pub fn as_first(self) -> Self {
        Self {
            is_first: true,
            ..self
        }
    }

    fn until(&self) -> Instant {
        let margin = TIME_TO_KILL + self.ttl / CLOCK_DRIFT;
        if self.has_record {
            self.renewed + self.ttl.saturating_sub(margin)
        } else {
            Instant::default()
        }
    }
}

impl Lease {
    /// The lease with which an agent begins.
    pub fn new(current: Held) -> Self {
        Self {
            current,
            next: None,
            tenure: current.id,
        }
    }

    /// The lease that records are to be bound to.
    pub fn id(&self) -> LeaseId {
        self.next.map_or(self.current.id, |next| next.id)
    }

    /// The lease with which the time began for which this node's record has been there without a break. What was decided in
    /// another such time is worth nothing now: in between, others may have gone on without this node.
    pub fn tenure(&self) -> LeaseId {
        self.tenure
    }

    /// All leases that must be renewed, with their time.
    pub fn all(&self) -> Vec<(LeaseId, Duration)> {
        let held = std::iter::once(self.current).chain(self.next);
        held.map(|held| (held.id, held.ttl)).collect()
    }

    /// How often they must be renewed: three times in the shortest time.
    pub fn renewal_interval(&self) -> Duration {
        let next = self.next.map_or(self.current.ttl, |next| next.ttl);
        self.current.ttl.min(next) / 3
    }

    /// Whether a lease of this length must be taken.
    pub fn lacks(&self, ttl: Duration) -> bool {
        self.next.is_none() && self.current.ttl != ttl
    }

    /// Records are to move to this lease, the leader's among them if there is one of ours.
    pub fn move_to(&mut self, next: Held, is_leader: bool) {
        self.next = Some(Held {
            has_leader: !is_leader,
            ..next
        });
    }

    /// The member's record was written, bound to that lease.
    pub fn has_record(&mut self, id: LeaseId) {
        self.with(id, |held| held.has_record = true);
    }

    /// A plan names this node, so its record was seen in the store. It can have been bound to this lease only if there
    /// never was another one: a plan may be old news, and the record gone with the lease that it was bound to.
    pub fn is_named_by_plan(&mut self) {
        self.current.has_record |= self.current.is_first;
    }

    /// The leader's record was written, bound to that lease, or is no longer ours.
    pub fn has_leader(&mut self, id: LeaseId) {
        self.with(id, |held| held.has_leader = true);
    }

    /// Takes in a renewal. Says whether records must be bound to another lease.
    pub fn renewed(&mut self, renewal: Renewal) -> bool {
        if let Some(id) = renewal.replaced_by {
            self.tenure = id;
        }
        self.with(renewal.lease, |held| {
            held.renewed = renewal.sent;
            if let Some(id) = renewal.replaced_by {
                held.id = id;
                held.has_record = false;
                held.is_first = false;
            }
        });
        renewal.replaced_by.is_some()
    }

    /// Until when this node's record is surely there: whichever of the two leases it is bound to by now.
    pub fn until(&self) -> Instant {
        match self.next {
            // The record is bound to the old one, or to the new one that we do not know of yet.
            Some(next) if !next.has_record => {
                let unknown = Held {
                    has_record: true,
                    ..next
                };
                self.current.until().min(unknown.until())
            }
            Some(next) => next.until(),
            None => self.current.until(),
        }
    }

    fn with(&mut self, id: LeaseId, change: impl FnOnce(&mut Held)) {
        let held = std::iter::once(&mut self.current).chain(self.next.as_mut());
        if let Some(held) = held.into_iter().find(|held| held.id == id) {
            change(held);
        }
        if let Some(next) = self.next.take_if(|next| next.has_record && next.has_leader) {
            self.current = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_secs(2);

    fn held(id: i64, ttl: Duration, renewed: u64) -> Held {
        Held::granted(LeaseId(id), ttl, milliseconds(renewed * 1_000))
    }

    fn milliseconds(value: u64) -> Instant {
        Instant::from_nanos(value * 1_000_000)
    }

    fn renewal(id: i64, sent: u64, replaced_by: Option<i64>) -> Renewal {
        Renewal {
            sent: milliseconds(sent * 1_000),
            lease: LeaseId(id),
            replaced_by: replaced_by.map(LeaseId),
        }
    }

    #[test]
    fn the_time_counts_from_when_the_renewal_was_sent_less_a_margin() {
        let mut lease = Lease::new(held(1, LONG, 100));
        assert_eq!(lease.until(), Instant::default());
        lease.has_record(LeaseId(1));
        assert_eq!(lease.until(), milliseconds(109_400));
        assert!(!lease.renewed(renewal(1, 103, None)));
        assert_eq!(lease.until(), milliseconds(112_400));
    }

    #[test]
    fn while_records_move_the_lease_that_ends_first_counts() {
        let mut lease = Lease::new(held(1, SHORT, 100).with_record());
        assert!(!lease.lacks(SHORT) && lease.lacks(LONG));
        lease.move_to(held(2, LONG, 101), true);
        assert!(!lease.lacks(SHORT));
        assert_eq!((lease.id(), lease.all().len()), (LeaseId(2), 2));
        assert_eq!(lease.until(), milliseconds(101_480));
        lease.has_record(LeaseId(2));
        // The leader's record may die with the old one, so that is still renewed.
        assert_eq!(
            (lease.until(), lease.all().len()),
            (milliseconds(110_400), 2)
        );
        lease.has_leader(LeaseId(2));
        assert_eq!(lease.all(), [(LeaseId(2), LONG)]);
    }

    #[test]
    fn a_lease_that_ended_vouches_for_nothing_until_the_record_is_bound_to_another() {
        let mut lease = Lease::new(held(1, SHORT, 100).with_record());
        assert!(lease.renewed(renewal(1, 200, Some(9))));
        assert_eq!(
            (lease.id(), lease.until()),
            (LeaseId(9), Instant::default())
        );
        lease.has_record(LeaseId(9));
        assert_eq!(lease.until(), milliseconds(201_480));
    }

    #[test]
    fn a_plan_vouches_for_the_first_lease_only() {
        let mut lease = Lease::new(held(1, LONG, 100).as_first());
        lease.is_named_by_plan();
        assert_eq!(lease.until(), milliseconds(109_400));
        lease.renewed(renewal(1, 300, Some(2)));
        lease.is_named_by_plan();
        assert_eq!(lease.until(), Instant::default());
        let mut lease = Lease::new(held(1, LONG, 100));
        lease.is_named_by_plan();
        assert_eq!(lease.until(), Instant::default());
    }
}
