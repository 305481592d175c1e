// SPDX-License-Identifier: Apache-2.0
//! The simulated store: what etcd promises, and nothing of the product's own store.

use std::collections::BTreeMap;

use steadfast_core::{
    Change, ChangeBatch, Condition, KeyValue, LeaseId, Operation, Outcome, Revision, Transaction,
};

use super::plant::Plant;

/// Keys with their revisions, at the latest revision.
#[derive(Debug)]
pub(crate) struct Store {
    revision: i64,
    entries: BTreeMap<String, KeyValue>,
    plant: Option<Plant>,
}

impl Store {
    pub(crate) fn new(plant: Option<Plant>) -> Self {
        Self {
            revision: 1,
            entries: BTreeMap::new(),
            plant,
        }
    }

    pub(crate) fn revision(&self) -> Revision {
        Revision(self.revision)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&KeyValue> {
        self.entries.get(key)
    }

    /// Everything, in the order of the keys.
    pub(crate) fn list(&self) -> Vec<KeyValue> {
        self.entries.values().cloned().collect()
    }

    /// Does all of the transaction, or nothing.
    pub(crate) fn transact(&mut self, transaction: &Transaction) -> (Outcome, Option<ChangeBatch>) {
        let unguarded = self.plant == Some(Plant::UnguardedStore);
        let succeeded = unguarded
            || transaction
                .when
                .iter()
                .all(|condition| self.holds(condition));
        let batch = if succeeded {
            self.write(&transaction.then)
        } else {
            None
        };
        let outcome = Outcome {
            succeeded,
            revision: self.revision(),
        };
        (outcome, batch)
    }

    /// The lease has ended: its keys go.
    pub(crate) fn end_lease(&mut self, lease: LeaseId) -> Option<ChangeBatch> {
        let keys = self
            .entries
            .values()
            .filter(|entry| entry.lease == Some(lease));
        let deletes: Vec<_> = keys
            .map(|entry| Operation::Delete {
                key: entry.key.clone(),
            })
            .collect();
        self.write(&deletes)
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
        actual.unwrap_or(Revision(0)) == wanted
    }

    fn write(&mut self, operations: &[Operation]) -> Option<ChangeBatch> {
        let revision = Revision(self.revision + 1);
        let changes: Vec<_> = operations
            .iter()
            .filter_map(|operation| self.write_one(revision, operation))
            .collect();
        if changes.is_empty() {
            return None;
        }
        self.revision += 1;
        Some(ChangeBatch { revision, changes })
    }

    fn write_one(&mut self, revision: Revision, operation: &Operation) -> Option<Change> {
        match operation {
            Operation::Put { key, value, lease } => {
                let before = self.entries.get(key).map(|entry| entry.create_revision);
                let entry = KeyValue {
                    key: key.clone(),
                    value: value.clone(),
                    create_revision: before.unwrap_or(revision),
                    mod_revision: revision,
                    lease: *lease,
                };
                self.entries.insert(key.clone(), entry.clone());
                Some(Change::Put(entry))
            }
            Operation::Delete { key } => self
                .entries
                .remove(key)
                .map(|_| Change::Delete { key: key.clone() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, lease: Option<LeaseId>) -> Operation {
        Operation::Put {
            key: key.to_owned(),
            value: String::new(),
            lease,
        }
    }

    #[test]
    fn guards_revisions_and_leases_are_those_of_etcd() {
        let mut store = Store::new(None);
        let create = Transaction {
            when: vec![Condition::absent("a".to_owned())],
            then: vec![put("a", Some(LeaseId(1))), put("b", None)],
        };
        let (outcome, batch) = store.transact(&create);
        assert!(outcome.succeeded);
        assert_eq!(batch.unwrap().changes.len(), 2);
        assert_eq!(outcome.revision, Revision(2));
        assert!(!store.transact(&create).0.succeeded);
        assert_eq!(store.revision(), Revision(2));
        assert_eq!(store.end_lease(LeaseId(1)).unwrap().revision, Revision(3));
        assert!(store.get("a").is_none() && store.get("b").is_some());
        assert_eq!(store.end_lease(LeaseId(1)), None);
    }
}
