// SPDX-License-Identifier: Apache-2.0
//! Store calls in flight, at most one of each kind.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use steadfast_core::{
    Condition, Instant, KeyValue, LeaderRecord, LeaseId, MemberSettings, Operation, Outcome,
    Renewal, Revision, Transaction,
};

use super::reading::read_own;
use crate::{Store, StoreError, Watch};

type InFlight<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;
type Call<T> = Option<InFlight<T>>;
type Listing = (Vec<KeyValue>, Revision, Watch);

type OwnRecord = (Option<KeyValue>, Revision);

/// A store call that is over.
pub(super) enum Done {
    /// The member's report was written, bound to that lease.
    MemberWrite(Result<Outcome, StoreError>, LeaseId),
    /// The member's record was read, for that reason.
    OwnRecord(Result<OwnRecord, StoreError>, Reading),
    LeaderWrite(Result<Outcome, StoreError>),
    /// The leader's key was written, bound to that lease.
    Elected(Result<Outcome, StoreError>, LeaseId),
    /// The leader's key was bound to that lease.
    LeaderMoved(Result<Outcome, StoreError>, LeaseId),
    /// The key of an earlier life of this agent was removed.
    Retired(Result<Outcome, StoreError>),
    /// Another lease of that length was granted; it was asked for at that time.
    Granted(Result<LeaseId, StoreError>, Duration, Instant),
    /// The leases were renewed; others were granted for those that had ended.
    Renewed(Result<Vec<Renewal>, StoreError>),
    Relisted(Result<Listing, StoreError>),
}

/// Why the member's record is read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reading {
    /// A write of it was refused.
    AfterRefusal(Outcome),
    /// Nobody knows what became of a write of it.
    AfterUnknown,
    /// To see whether it has changed.
    ByItself,
}

pub(super) struct Calls<S> {
    store: S,
    member_write: Call<Outcome>,
    member_write_lease: LeaseId,
    own_record: Call<OwnRecord>,
    own_record_reading: Reading,
    leader_write: Call<Outcome>,
    election: Call<Outcome>,
    election_lease: LeaseId,
    leader_move: Call<Outcome>,
    leader_move_lease: LeaseId,
    retirement: Call<Outcome>,
    grant: Call<LeaseId>,
    grant_asked: (Duration, Instant),
    renewal: Call<Vec<Renewal>>,
    relisting: Call<Listing>,
}

impl<S: Store> Calls<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            member_write: None,
            member_write_lease: LeaseId(0),
            own_record: None,
            own_record_reading: Reading::ByItself,
            leader_write: None,
            election: None,
            election_lease: LeaseId(0),
            leader_move: None,
            leader_move_lease: LeaseId(0),
            retirement: None,
            grant: None,
            grant_asked: (Duration::ZERO, Instant::default()),
            renewal: None,
            relisting: None,
        }
    }

    pub(super) fn write_for_member(&mut self, transaction: Transaction, lease: LeaseId) {
        self.member_write_lease = lease;
        self.member_write = Some(self.transact(transaction));
    }

    /// Reads the member's record after a write of it that did not succeed, or of which nobody knows.
    pub(super) fn read_own(&mut self, own: &MemberSettings, reading: Reading) {
        self.own_record_reading = reading;
        self.own_record = Some(self.get_own(own));
    }

    /// Reads the member's record to see whether it has changed.
    pub(super) fn look_for_own(&mut self, own: &MemberSettings) {
        if self.own_record.is_none() {
            self.own_record_reading = Reading::ByItself;
            self.own_record = Some(self.get_own(own));
        }
    }

    fn get_own(&self, own: &MemberSettings) -> InFlight<OwnRecord> {
        let store = self.store.clone();
        let key = own.keys.member(&own.node);
        Box::pin(async move { store.get(&key).await })
    }

    pub(super) fn write_for_leader(&mut self, transaction: Transaction) {
        self.leader_write = Some(self.transact(transaction));
    }

    /// Nobody waits for the answer any more; the guards decide whether the write still takes effect.
    pub(super) fn forget_leader(&mut self) {
        self.leader_write = None;
    }

    pub(super) fn is_campaigning(&self) -> bool {
        self.election.is_some() || self.retirement.is_some()
    }

    /// Becomes the leader if nobody is.
    pub(super) fn elect(&mut self, own: &MemberSettings, lease: LeaseId) {
        self.election_lease = lease;
        self.election = Some(self.transact(Transaction {
            when: vec![Condition::absent(own.keys.leader())],
            then: vec![put_leader(own, lease)],
        }));
    }

    /// Binds the leader's key of that epoch to another lease.
    pub(super) fn move_leader(&mut self, own: &MemberSettings, epoch: Revision, lease: LeaseId) {
        self.leader_move_lease = lease;
        self.leader_move = Some(self.transact(Transaction {
            when: vec![Condition::CreateRevision {
                key: own.keys.leader(),
                revision: epoch,
            }],
            then: vec![put_leader(own, lease)],
        }));
    }

    /// Removes the leader's key as it was at `revision`, so that writes of that epoch can no longer take effect.
    pub(super) fn retire(&mut self, own: &MemberSettings, revision: Revision) {
        let key = own.keys.leader();
        self.retirement = Some(self.transact(Transaction {
            when: vec![Condition::ModRevision {
                key: key.clone(),
                revision,
            }],
            then: vec![Operation::Delete { key }],
        }));
    }

    pub(super) fn grant(&mut self, ttl: Duration, now: Instant) {
        if self.grant.is_none() {
            let store = self.store.clone();
            self.grant_asked = (ttl, now);
            self.grant = Some(Box::pin(async move { store.lease_grant(ttl).await }));
        }
    }

    /// Renews the leases, each of which has that length.
    pub(super) fn renew(&mut self, leases: Vec<(LeaseId, Duration)>, now: Instant) {
        let store = self.store.clone();
        self.renewal = Some(Box::pin(async move {
            let mut renewals = Vec::new();
            for (lease, ttl) in leases {
                let replaced_by = match store.lease_keepalive(lease).await {
                    Err(StoreError::LeaseNotFound(_)) => Some(store.lease_grant(ttl).await?),
                    other => other.map(|()| None)?,
                };
                renewals.push(Renewal {
                    // All of them were sent later than that.
                    sent: now,
                    lease,
                    replaced_by,
                });
            }
            Ok(renewals)
        }));
    }

    /// Reads what this node must know, or everything that belongs to the job, and watches it from there.
    pub(super) fn relist(&mut self, own: &MemberSettings, everything: bool) {
        let store = self.store.clone();
        let keys = own.keys.clone();
        let node = own.node.clone();
        self.relisting = Some(Box::pin(async move {
            let prefix = if everything {
                keys.prefix().to_owned()
            } else {
                keys.common()
            };
            let (entries, revision) = if everything {
                store.range(&prefix).await?
            } else {
                read_own(&store, &keys, &node).await?
            };
            let watch = store.watch(&prefix, Revision(revision.0 + 1)).await?;
            Ok((entries, revision, watch))
        }));
    }

    /// The next call that is over; waits for ever when none is in flight. Cancel-safe.
    pub(super) async fn next(&mut self) -> Done {
        std::future::poll_fn(|context| {
            let mut poll = Polling(context);
            let lease = self.member_write_lease;
            let done = poll
                .call(&mut self.member_write, |answer| {
                    Done::MemberWrite(answer, lease)
                })
                .or_else(|| poll.call(&mut self.leader_write, Done::LeaderWrite))
                .or_else(|| {
                    let reading = self.own_record_reading;
                    poll.call(&mut self.own_record, |read| Done::OwnRecord(read, reading))
                })
                .or_else(|| poll.call(&mut self.retirement, Done::Retired))
                .or_else(|| {
                    let lease = self.election_lease;
                    poll.call(&mut self.election, |answer| Done::Elected(answer, lease))
                })
                .or_else(|| {
                    let lease = self.leader_move_lease;
                    poll.call(&mut self.leader_move, |answer| {
                        Done::LeaderMoved(answer, lease)
                    })
                })
                .or_else(|| {
                    let (ttl, sent) = self.grant_asked;
                    poll.call(&mut self.grant, |answer| Done::Granted(answer, ttl, sent))
                })
                .or_else(|| poll.call(&mut self.renewal, Done::Renewed))
                .or_else(|| poll.call(&mut self.relisting, Done::Relisted));
            done.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn transact(&self, transaction: Transaction) -> InFlight<Outcome> {
        let store = self.store.clone();
        Box::pin(async move { store.transact(transaction).await })
    }
}

fn put_leader(own: &MemberSettings, lease: LeaseId) -> Operation {
    let record = LeaderRecord {
        agent: own.agent.clone(),
        ..LeaderRecord::new(own.node.clone(), own.incarnation)
    };
    Operation::Put {
        key: own.keys.leader(),
        value: record.to_json(),
        lease: Some(lease),
    }
}

struct Polling<'a, 'b>(&'a mut std::task::Context<'b>);

impl Polling<'_, '_> {
    fn call<T>(
        &mut self,
        call: &mut Call<T>,
        done: impl FnOnce(Result<T, StoreError>) -> Done,
    ) -> Option<Done> {
        match call.as_mut()?.as_mut().poll(self.0) {
            Poll::Ready(result) => {
                *call = None;
                Some(done(result))
            }
            Poll::Pending => None,
        }
    }
}
