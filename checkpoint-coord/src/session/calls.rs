// SPDX-License-Identifier: Apache-2.0
//! Store calls in flight, at most one of each kind.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use steadfast_core::{
    Condition, KeyValue, LeaderRecord, LeaseId, MemberSettings, Operation, Outcome, RECORD_VERSION,
    Revision, Transaction,
};

use crate::{Store, StoreError, Watch};

type InFlight<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;
type Call<T> = Option<InFlight<T>>;
type Listing = (Vec<KeyValue>, Revision, Watch);

/// A store call that is over.
pub(super) enum Done {
    MemberWrite(Result<Outcome, StoreError>),
    LeaderWrite(Result<Outcome, StoreError>),
    /// The leader's key was written.
    Elected(Result<Outcome, StoreError>),
    /// The key of an earlier life of this agent was removed.
    Retired(Result<Outcome, StoreError>),
    /// The lease was renewed; another one was granted if it had ended.
    Renewed(Result<LeaseId, StoreError>),
    Relisted(Result<Listing, StoreError>),
}

pub(super) struct Calls<S> {
    store: S,
    member_write: Call<Outcome>,
    leader_write: Call<Outcome>,
    election: Call<Outcome>,
    retirement: Call<Outcome>,
    renewal: Call<LeaseId>,
    relisting: Call<Listing>,
}

impl<S: Store> Calls<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            member_write: None,
            leader_write: None,
            election: None,
            retirement: None,
            renewal: None,
            relisting: None,
        }
    }

    pub(super) fn write_for_member(&mut self, transaction: Transaction) {
        self.member_write = Some(self.transact(transaction));
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
        let record = LeaderRecord {
            version: RECORD_VERSION,
            node: own.node.clone(),
            incarnation: own.incarnation,
            extra: BTreeMap::new(),
        };
        self.election = Some(self.transact(Transaction {
            when: vec![Condition::absent(own.keys.leader())],
            then: vec![Operation::Put {
                key: own.keys.leader(),
                value: record.to_json(),
                lease: Some(lease),
            }],
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

    pub(super) fn renew(&mut self, lease: LeaseId, ttl: Duration) {
        let store = self.store.clone();
        self.renewal = Some(Box::pin(async move {
            match store.lease_keepalive(lease).await {
                Err(StoreError::LeaseNotFound(_)) => store.lease_grant(ttl).await,
                other => other.map(|()| lease),
            }
        }));
    }

    pub(super) fn relist(&mut self, prefix: &str) {
        let store = self.store.clone();
        let prefix = prefix.to_owned();
        self.relisting = Some(Box::pin(async move {
            let (entries, revision) = store.range(&prefix).await?;
            let watch = store.watch(&prefix, Revision(revision.0 + 1)).await?;
            Ok((entries, revision, watch))
        }));
    }

    /// The next call that is over; waits for ever when none is in flight. Cancel-safe.
    pub(super) async fn next(&mut self) -> Done {
        std::future::poll_fn(|context| {
            let mut poll = Polling(context);
            let done = poll
                .call(&mut self.member_write, Done::MemberWrite)
                .or_else(|| poll.call(&mut self.leader_write, Done::LeaderWrite))
                .or_else(|| poll.call(&mut self.retirement, Done::Retired))
                .or_else(|| poll.call(&mut self.election, Done::Elected))
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
