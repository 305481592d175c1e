// SPDX-License-Identifier: Apache-2.0
//! The store of a job on one machine: in this process, its contents in a medium that outlives it.

mod journal;
mod medium;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use steadfast_core::{
    Change, ChangeBatch, KeyValue, LeaseId, Operation, Outcome, Revision, StoreState, Transaction,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::{Store, StoreError, Watch, WatchFeed, watch_channel};
use journal::{Journal, Record, Snapshot};
pub use medium::{FileMedium, Medium, MemoryMedium};

/// Revisions that are remembered for watches that begin in the past.
const HISTORY_LIMIT: usize = 4_096;
/// Revisions that a watcher may be behind.
const WATCH_CAPACITY: usize = 8_192;

/// A handle of an embedded store. The store closes when the last handle goes.
#[derive(Debug, Clone)]
pub struct EmbeddedStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    /// Woken when the set of leases or their deadlines change.
    leases_changed: Arc<Notify>,
}

#[derive(Debug)]
struct Inner {
    state: StoreState,
    journal: Journal,
    history: VecDeque<ChangeBatch>,
    watchers: Vec<Watcher>,
    leases: BTreeMap<LeaseId, Lease>,
    next_lease: i64,
}

#[derive(Debug)]
struct Watcher {
    prefix: String,
    feed: WatchFeed,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    ttl: Duration,
    deadline: Instant,
}

impl EmbeddedStore {
    /// Opens the store whose contents are in `medium`; an empty medium is a new store. Leases that were alive get their
    /// full time anew, counted from now. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the medium fails or holds something else. A last record that was not fully written is none of these: its
    /// write was never acknowledged, and it is left out.
    pub fn open(medium: impl Medium) -> Result<Self, StoreError> {
        let (journal, snapshot, records) = Journal::open(Box::new(medium))?;
        let mut inner = Inner {
            state: snapshot.state,
            journal,
            history: VecDeque::new(),
            watchers: Vec::new(),
            leases: BTreeMap::new(),
            next_lease: snapshot.next_lease,
        };
        for (lease, ttl_ms) in snapshot.leases {
            inner.set_lease(lease, Duration::from_millis(ttl_ms));
        }
        for record in records {
            inner.replay(record);
        }
        let leases_changed = Arc::new(Notify::new());
        let shared = Arc::new(Shared {
            inner: Mutex::new(inner),
            leases_changed: Arc::clone(&leases_changed),
        });
        tokio::spawn(expire_leases(Arc::downgrade(&shared), leases_changed));
        Ok(Self { shared })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.shared.lock()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Lets the lease task notice that the store is gone.
        self.leases_changed.notify_one();
    }
}

impl Shared {
    /// Nothing that can panic half-way runs under the lock, so a poisoned one holds sound contents.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for EmbeddedStore {
    async fn range(&self, prefix: &str) -> Result<(Vec<KeyValue>, Revision), StoreError> {
        let inner = self.lock();
        let entries = inner.state.range(prefix).cloned().collect();
        Ok((entries, inner.state.revision()))
    }

    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision), StoreError> {
        let inner = self.lock();
        Ok((inner.state.get(key).cloned(), inner.state.revision()))
    }

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.lock().transact(transaction)
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        self.lock().watch(prefix, from)
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let lease = self.lock().grant(ttl)?;
        self.shared.leases_changed.notify_one();
        Ok(lease)
    }

    async fn lease_keepalive(&self, lease: LeaseId) -> Result<(), StoreError> {
        let mut inner = self.lock();
        let held = inner
            .leases
            .get_mut(&lease)
            .ok_or(StoreError::LeaseNotFound(lease))?;
        held.deadline = Instant::now() + held.ttl;
        Ok(())
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.lock().end_lease(lease)
    }
}

impl Inner {
    fn transact(&mut self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.check(&transaction.then)?;
        if !self.state.satisfies(&transaction.when) {
            return Ok(Outcome {
                succeeded: false,
                revision: self.state.revision(),
            });
        }
        let writes = transaction.then.iter().any(|operation| {
            matches!(operation, Operation::Put { .. }) || self.state.get(operation.key()).is_some()
        });
        if !writes {
            return Ok(Outcome {
                succeeded: true,
                revision: self.state.revision(),
            });
        }
        let record = Record::Write(transaction.then);
        self.journal.append(&record)?;
        self.replay(record);
        self.compact_if_grown();
        Ok(Outcome {
            succeeded: true,
            revision: self.state.revision(),
        })
    }

    fn check(&self, operations: &[Operation]) -> Result<(), StoreError> {
        let mut keys = BTreeSet::new();
        for operation in operations {
            if !keys.insert(operation.key()) {
                return Err(StoreError::DuplicateKey(operation.key().to_owned()));
            }
            if let Operation::Put {
                lease: Some(lease), ..
            } = operation
                && !self.leases.contains_key(lease)
            {
                return Err(StoreError::LeaseNotFound(*lease));
            }
        }
        Ok(())
    }

    fn watch(&mut self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        let oldest = self
            .history
            .front()
            .map_or(Revision(self.state.revision().0 + 1), |batch| {
                batch.revision
            });
        if from < oldest {
            return Err(StoreError::Compacted { from, oldest });
        }
        let (feed, watch) = watch_channel(WATCH_CAPACITY);
        let missed = self.history.iter().filter(|batch| batch.revision >= from);
        let delivered = missed
            .filter_map(|batch| narrow(batch, prefix))
            .all(|batch| feed.deliver(batch));
        if delivered {
            self.watchers.push(Watcher {
                prefix: prefix.to_owned(),
                feed,
            });
        }
        Ok(watch)
    }

    fn grant(&mut self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let lease = LeaseId(self.next_lease);
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let record = Record::Grant { lease, ttl_ms };
        self.journal.append(&record)?;
        self.replay(record);
        Ok(lease)
    }

    fn end_lease(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        if !self.leases.contains_key(&lease) {
            return Err(StoreError::LeaseNotFound(lease));
        }
        let record = Record::EndLease(lease);
        self.journal.append(&record)?;
        self.replay(record);
        Ok(())
    }

    /// Does what a record says. Its conditions were checked when it was written.
    fn replay(&mut self, record: Record) {
        let batch = match record {
            Record::Write(then) => {
                let always = Transaction { when: vec![], then };
                self.state.apply(&always).1
            }
            Record::Grant { lease, ttl_ms } => {
                self.set_lease(lease, Duration::from_millis(ttl_ms));
                None
            }
            Record::EndLease(lease) => {
                self.leases.remove(&lease);
                self.state.drop_lease(lease)
            }
        };
        if let Some(batch) = batch {
            self.publish(batch);
        }
    }

    fn set_lease(&mut self, lease: LeaseId, ttl: Duration) {
        self.next_lease = self.next_lease.max(lease.0 + 1);
        let deadline = Instant::now() + ttl;
        self.leases.insert(lease, Lease { ttl, deadline });
    }

    fn publish(&mut self, batch: ChangeBatch) {
        self.watchers.retain(|watcher| {
            watcher.feed.is_watched()
                && narrow(&batch, &watcher.prefix)
                    .is_none_or(|narrowed| watcher.feed.deliver(narrowed))
        });
        self.history.push_back(batch);
        if self.history.len() > HISTORY_LIMIT {
            self.history.pop_front();
        }
    }

    /// A compaction that fails does no harm: the log just stays as long as it is.
    fn compact_if_grown(&mut self) {
        if !self.journal.is_grown() {
            return;
        }
        let leases = self
            .leases
            .iter()
            .map(|(lease, held)| {
                let ttl_ms = u64::try_from(held.ttl.as_millis()).unwrap_or(u64::MAX);
                (*lease, ttl_ms)
            })
            .collect();
        let compacted = self.journal.compact(&Snapshot {
            state: self.state.clone(),
            leases,
            next_lease: self.next_lease,
        });
        if let Err(error) = compacted {
            tracing::warn!(%error, "Failed to compact the store's log; it is tried again.");
        }
    }

    /// Ends the leases whose time is up; says when the next one's is.
    fn expire(&mut self, now: Instant) -> Option<Instant> {
        let over: Vec<_> = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.deadline <= now)
            .map(|(lease, _)| *lease)
            .collect();
        for lease in over {
            if let Err(error) = self.end_lease(lease) {
                tracing::warn!(%error, lease = lease.0, "Failed to end a lease; it is tried again.");
                return Some(now + Duration::from_secs(1));
            }
        }
        self.leases.values().map(|lease| lease.deadline).min()
    }
}

/// The part of a batch that is about keys under `prefix`.
fn narrow(batch: &ChangeBatch, prefix: &str) -> Option<ChangeBatch> {
    let changes: Vec<Change> = batch
        .changes
        .iter()
        .filter(|change| change.key().starts_with(prefix))
        .cloned()
        .collect();
    (!changes.is_empty()).then_some(ChangeBatch {
        revision: batch.revision,
        changes,
    })
}

async fn expire_leases(store: Weak<Shared>, changed: Arc<Notify>) {
    loop {
        let Some(shared) = store.upgrade() else {
            return;
        };
        let next = shared.lock().expire(Instant::now());
        drop(shared);
        match next {
            Some(deadline) => {
                tokio::select! {
                    () = tokio::time::sleep_until(deadline) => {}
                    () = changed.notified() => {}
                }
            }
            None => changed.notified().await,
        }
    }
}
