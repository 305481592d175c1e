// SPDX-License-Identifier: Apache-2.0
//! A simulated etcd: what the real one does with transactions, leases, watches and its history, without a network.
//!
//! It shares no code with the product's own stores, and a test compares it with a real etcd on random sequences of
//! operations. Times are virtual microseconds of its own clock.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use steadfast_core::{
    Change, ChangeBatch, Condition, KeyValue, LeaseId, Operation, Outcome, Revision, Transaction,
};

/// Why a request was refused; nothing was done then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The lease has ended or never existed.
    LeaseNotFound(LeaseId),
    /// One transaction writes the same key twice.
    DuplicateKey(String),
    /// The changes that were asked for are forgotten.
    Compacted {
        /// The revision up to which that is so.
        oldest: Revision,
    },
}

/// What a transaction did: its outcome, and what changed if anything did.
pub type Done = (Outcome, Option<Rc<ChangeBatch>>);

/// Keys, leases and the history of the changes.
#[derive(Debug)]
pub struct Etcd {
    entries: BTreeMap<String, KeyValue>,
    leases: BTreeMap<LeaseId, Lease>,
    next_lease: i64,
    /// One batch for each revision from 2 on. All are kept, for reads of the past; `compacted` says what clients may see.
    history: Vec<Rc<ChangeBatch>>,
    compacted: i64,
}

#[derive(Debug)]
struct Lease {
    ttl: u64,
    deadline: u64,
    keys: BTreeSet<String>,
}

impl Default for Etcd {
    /// Empty, at revision 1.
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            leases: BTreeMap::new(),
            next_lease: 1,
            history: Vec::new(),
            compacted: 0,
        }
    }
}

impl Etcd {
    /// The revision of the last write.
    pub fn revision(&self) -> Revision {
        Revision(i64::try_from(self.history.len()).unwrap_or(i64::MAX - 1) + 1)
    }

    /// The value of `key`, if it exists.
    pub fn get(&self, key: &str) -> Option<&KeyValue> {
        self.entries.get(key)
    }

    /// All keys that begin with `prefix`, in order.
    pub fn range(&self, prefix: &str) -> Vec<KeyValue> {
        with_prefix(&self.entries, prefix)
    }

    /// What [`Self::range`] gave at an earlier revision: what a client is told by a member that lags behind.
    pub fn range_at(&self, prefix: &str, revision: Revision) -> Vec<KeyValue> {
        let mut entries = BTreeMap::new();
        let past = self
            .history
            .iter()
            .take_while(|batch| batch.revision <= revision);
        for change in past.flat_map(|batch| &batch.changes) {
            match change {
                Change::Put(entry) => drop(entries.insert(entry.key.clone(), entry.clone())),
                Change::Delete { key } => drop(entries.remove(key)),
            }
        }
        with_prefix(&entries, prefix)
    }

    /// Does the transaction if all its conditions hold.
    ///
    /// # Errors
    /// When it writes a key twice or names a lease that is not there. As with the real one, a lease is only asked for if
    /// the conditions hold.
    pub fn transact(&mut self, transaction: &Transaction) -> Result<Done, Refusal> {
        let mut keys = BTreeSet::new();
        for operation in &transaction.then {
            if !keys.insert(operation.key()) {
                return Err(Refusal::DuplicateKey(operation.key().to_owned()));
            }
        }
        let succeeded = transaction.when.iter().all(|when| self.holds(when));
        let batch = if succeeded {
            self.check_leases(&transaction.then)?;
            self.write(&transaction.then)
        } else {
            None
        };
        let outcome = Outcome {
            succeeded,
            revision: self.revision(),
        };
        Ok((outcome, batch))
    }

    /// A new lease that ends `ttl` microseconds from `now` if it is not renewed.
    pub fn grant(&mut self, now: u64, ttl: u64) -> LeaseId {
        let lease = LeaseId(self.next_lease);
        self.next_lease += 1;
        let deadline = now + ttl;
        let keys = BTreeSet::new();
        self.leases.insert(
            lease,
            Lease {
                ttl,
                deadline,
                keys,
            },
        );
        lease
    }

    /// Renews a lease for its full time.
    ///
    /// # Errors
    /// [`Refusal::LeaseNotFound`] when it has ended.
    pub fn keep_alive(&mut self, now: u64, lease: LeaseId) -> Result<(), Refusal> {
        let held = self
            .leases
            .get_mut(&lease)
            .ok_or(Refusal::LeaseNotFound(lease))?;
        // A new leader may have given it longer than that.
        held.deadline = held.deadline.max(now + held.ttl);
        Ok(())
    }

    /// Ends a lease; its keys go with it, in one revision and in the order of their names.
    ///
    /// # Errors
    /// [`Refusal::LeaseNotFound`] when it has ended already.
    pub fn revoke(&mut self, lease: LeaseId) -> Result<Option<Rc<ChangeBatch>>, Refusal> {
        let held = self
            .leases
            .remove(&lease)
            .ok_or(Refusal::LeaseNotFound(lease))?;
        let deletes: Vec<_> = held
            .keys
            .into_iter()
            .map(|key| Operation::Delete { key })
            .collect();
        Ok(self.write(&deletes))
    }

    /// When that lease ends if nobody renews it.
    pub fn deadline(&self, lease: LeaseId) -> Option<u64> {
        self.leases.get(&lease).map(|lease| lease.deadline)
    }

    /// Another member of the cluster leads: it does not know how long each lease had left, and gives all of them their
    /// full time anew.
    pub fn change_leader(&mut self, now: u64) {
        for lease in self.leases.values_mut() {
            lease.deadline = lease.deadline.max(now + lease.ttl);
        }
    }

    /// Forgets the changes up to `revision`, that one included.
    pub fn compact(&mut self, revision: Revision) {
        let newest = self.revision().0;
        self.compacted = self.compacted.max(revision.0.min(newest));
    }

    /// The revision up to which the history is forgotten; 0 for none. Of its own changes a real one still shows what it
    /// has, but not what was deleted, so that nobody should rely on them.
    pub fn oldest(&self) -> Revision {
        Revision(self.compacted)
    }

    /// All changes from revision `from` on.
    ///
    /// # Errors
    /// [`Refusal::Compacted`] when they are forgotten.
    pub fn changes_since(&self, from: Revision) -> Result<&[Rc<ChangeBatch>], Refusal> {
        if from.0 <= self.compacted {
            return Err(Refusal::Compacted {
                oldest: self.oldest(),
            });
        }
        let begin = usize::try_from(from.0 - 2).unwrap_or(0);
        Ok(self.history.get(begin..).unwrap_or_default())
    }

    fn holds(&self, condition: &Condition) -> bool {
        let entry = self.entries.get(condition.key());
        let (actual, wanted) = match condition {
            Condition::ModRevision { revision, .. } => {
                (entry.map(|entry| entry.mod_revision), *revision)
            }
            Condition::CreateRevision { revision, .. } => {
                (entry.map(|entry| entry.create_revision), *revision)
            }
        };
        actual.unwrap_or_default() == wanted
    }

    fn check_leases(&self, operations: &[Operation]) -> Result<(), Refusal> {
        let named = operations.iter().filter_map(|operation| match operation {
            Operation::Put { lease, .. } => *lease,
            Operation::Delete { .. } => None,
        });
        for lease in named {
            if !self.leases.contains_key(&lease) {
                return Err(Refusal::LeaseNotFound(lease));
            }
        }
        Ok(())
    }

    fn write(&mut self, operations: &[Operation]) -> Option<Rc<ChangeBatch>> {
        let revision = Revision(self.revision().0 + 1);
        let changes: Vec<_> = operations
            .iter()
            .filter_map(|operation| self.write_one(revision, operation))
            .collect();
        if changes.is_empty() {
            return None;
        }
        let batch = Rc::new(ChangeBatch { revision, changes });
        self.history.push(Rc::clone(&batch));
        Some(batch)
    }

    fn write_one(&mut self, revision: Revision, operation: &Operation) -> Option<Change> {
        match operation {
            Operation::Put { key, value, lease } => {
                let before = self.entries.get(key);
                let (created, held) = before.map_or((revision, None), |entry| {
                    (entry.create_revision, entry.lease)
                });
                if held != *lease {
                    self.detach(held, key);
                    if let Some(lease) = lease.and_then(|lease| self.leases.get_mut(&lease)) {
                        lease.keys.insert(key.clone());
                    }
                }
                let entry = KeyValue {
                    key: key.clone(),
                    value: value.clone(),
                    create_revision: created,
                    mod_revision: revision,
                    lease: *lease,
                };
                self.entries.insert(key.clone(), entry.clone());
                Some(Change::Put(entry))
            }
            Operation::Delete { key } => {
                let entry = self.entries.remove(key)?;
                self.detach(entry.lease, key);
                Some(Change::Delete { key: key.clone() })
            }
        }
    }

    fn detach(&mut self, lease: Option<LeaseId>, key: &str) {
        if let Some(lease) = lease.and_then(|lease| self.leases.get_mut(&lease)) {
            lease.keys.remove(key);
        }
    }
}

/// The part of a batch that is about keys under `prefix`.
pub fn narrow(batch: &ChangeBatch, prefix: &str) -> Option<ChangeBatch> {
    if !batch
        .changes
        .iter()
        .any(|change| change.key().starts_with(prefix))
    {
        return None;
    }
    let changes = batch
        .changes
        .iter()
        .filter(|change| change.key().starts_with(prefix))
        .cloned()
        .collect();
    Some(ChangeBatch {
        revision: batch.revision,
        changes,
    })
}

fn with_prefix(entries: &BTreeMap<String, KeyValue>, prefix: &str) -> Vec<KeyValue> {
    entries
        .range(prefix.to_owned()..)
        .take_while(|(key, _)| key.starts_with(prefix))
        .map(|(_, entry)| entry.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, lease: Option<LeaseId>) -> Operation {
        Operation::Put {
            key: key.to_owned(),
            value: "".into(),
            lease,
        }
    }

    fn always(then: Vec<Operation>) -> Transaction {
        Transaction { when: vec![], then }
    }

    #[test]
    fn leases_outlive_a_change_of_leader_and_take_their_keys_with_them() {
        let mut etcd = Etcd::default();
        let lease = etcd.grant(0, 10);
        let write = always(vec![
            put("b", Some(lease)),
            put("a", Some(lease)),
            put("c", None),
        ]);
        etcd.transact(&write).unwrap();
        etcd.change_leader(8);
        assert_eq!(etcd.deadline(lease), Some(18));
        etcd.keep_alive(1, lease).unwrap();
        assert_eq!(etcd.deadline(lease), Some(18));
        // A key that was written without the lease is not the lease's any more.
        etcd.transact(&always(vec![put("b", None)])).unwrap();
        let batch = etcd.revoke(lease).unwrap().unwrap();
        assert_eq!(batch.revision, Revision(4));
        assert_eq!(batch.changes, [Change::Delete { key: "a".into() }]);
        assert!(etcd.keep_alive(9, lease).is_err());
    }

    #[test]
    fn the_past_can_be_read_and_forgotten() {
        let mut etcd = Etcd::default();
        for key in ["a", "b"] {
            etcd.transact(&always(vec![put(key, None)])).unwrap();
        }
        let delete = Operation::Delete { key: "a".into() };
        etcd.transact(&always(vec![delete])).unwrap();
        let keys = |entries: Vec<KeyValue>| -> Vec<String> {
            entries.into_iter().map(|entry| entry.key).collect()
        };
        assert_eq!(keys(etcd.range_at("", Revision(2))), ["a"]);
        assert_eq!(keys(etcd.range("")), ["b"]);
        assert_eq!(etcd.changes_since(Revision(3)).unwrap().len(), 2);
        etcd.compact(Revision(3));
        assert!(etcd.changes_since(Revision(3)).is_err());
        assert_eq!(etcd.changes_since(Revision(4)).unwrap().len(), 1);
        assert!(etcd.changes_since(Revision(5)).unwrap().is_empty());
    }
}
