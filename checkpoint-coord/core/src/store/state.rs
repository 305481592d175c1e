// SPDX-License-Identifier: Apache-2.0
//! The contents of a store as plain data: what etcd does with a transaction, without etcd.

use std::collections::BTreeMap;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::{
    Change, ChangeBatch, Condition, KeyValue, LeaseId, Operation, Outcome, Revision, Transaction,
};

/// Keys, values and revisions. The embedded store and simulated worlds are built on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreState {
    revision: Revision,
    entries: BTreeMap<String, KeyValue>,
}

impl Default for StoreState {
    /// Empty, at revision 1, as a new etcd is.
    fn default() -> Self {
        Self {
            revision: Revision(1),
            entries: BTreeMap::new(),
        }
    }
}

impl StoreState {
    /// The revision of the last write.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The value of `key`, if it exists.
    pub fn get(&self, key: &str) -> Option<&KeyValue> {
        self.entries.get(key)
    }

    /// All keys that begin with `prefix`, in order.
    pub fn range<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a KeyValue> + 'a {
        self.entries
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .map(|(_, entry)| entry)
            .take_while(move |entry| entry.key.starts_with(prefix))
    }

    /// Whether every condition holds now.
    pub fn satisfies(&self, conditions: &[Condition]) -> bool {
        conditions.iter().all(|condition| {
            let entry = self.entries.get(condition.key());
            match condition {
                Condition::ModRevision { revision, .. } => {
                    entry.map_or(Revision(0), |entry| entry.mod_revision) == *revision
                }
                Condition::CreateRevision { revision, .. } => {
                    entry.map_or(Revision(0), |entry| entry.create_revision) == *revision
                }
            }
        })
    }

    /// Does the transaction if its conditions hold. Returns what changed, if anything did: a transaction
    /// without any effect makes no new revision.
    pub fn apply(&mut self, transaction: &Transaction) -> (Outcome, Option<ChangeBatch>) {
        if !self.satisfies(&transaction.when) {
            return (self.outcome(false), None);
        }
        let batch = self.write(&transaction.then);
        (self.outcome(true), batch)
    }

    /// Removes every key that belongs to `lease`, in one revision.
    pub fn drop_lease(&mut self, lease: LeaseId) -> Option<ChangeBatch> {
        let operations: Vec<_> = self
            .entries
            .values()
            .filter(|entry| entry.lease == Some(lease))
            .map(|entry| Operation::Delete {
                key: entry.key.clone(),
            })
            .collect();
        self.write(&operations)
    }

    fn outcome(&self, succeeded: bool) -> Outcome {
        Outcome {
            succeeded,
            revision: self.revision,
        }
    }

    fn write(&mut self, operations: &[Operation]) -> Option<ChangeBatch> {
        let revision = Revision(self.revision.0 + 1);
        let mut changes = Vec::new();
        for operation in operations {
            match operation {
                Operation::Put { key, value, lease } => {
                    let create_revision = self
                        .entries
                        .get(key)
                        .map_or(revision, |entry| entry.create_revision);
                    let entry = KeyValue {
                        key: key.clone(),
                        value: value.clone(),
                        create_revision,
                        mod_revision: revision,
                        lease: *lease,
                    };
                    self.entries.insert(key.clone(), entry.clone());
                    changes.push(Change::Put(entry));
                }
                Operation::Delete { key } => {
                    if self.entries.remove(key).is_some() {
                        changes.push(Change::Delete { key: key.clone() });
                    }
                }
            }
        }
        if changes.is_empty() {
            return None;
        }
        self.revision = revision;
        Some(ChangeBatch { revision, changes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> Operation {
        Operation::Put {
            key: key.to_owned(),
            value: value.into(),
            lease: None,
        }
    }

    #[test]
    fn guards_hold_all_or_nothing() {
        let mut state = StoreState::default();
        let create = Transaction {
            when: vec![Condition::absent("a".into())],
            then: vec![put("a", "1"), put("b", "1")],
        };
        let (outcome, batch) = state.apply(&create);
        assert!(outcome.succeeded);
        assert_eq!(batch.unwrap().changes.len(), 2);
        let (outcome, batch) = state.apply(&create);
        assert!(!outcome.succeeded && batch.is_none());
        assert_eq!(outcome.revision, Revision(2));
    }

    #[test]
    fn rewriting_keeps_the_create_revision_and_recreating_does_not() {
        let mut state = StoreState::default();
        for operation in [put("a", "1"), put("a", "2")] {
            state.apply(&Transaction {
                when: vec![],
                then: vec![operation],
            });
        }
        let entry = state.get("a").unwrap();
        assert_eq!((entry.create_revision.0, entry.mod_revision.0), (2, 3));
        state.apply(&Transaction {
            when: vec![],
            then: vec![Operation::Delete { key: "a".into() }],
        });
        state.apply(&Transaction {
            when: vec![],
            then: vec![put("a", "3")],
        });
        assert_eq!(state.get("a").unwrap().create_revision, Revision(5));
    }

    #[test]
    fn range_is_by_prefix() {
        let mut state = StoreState::default();
        state.apply(&Transaction {
            when: vec![],
            then: vec![put("a/1", ""), put("a/2", ""), put("b", "")],
        });
        let keys: Vec<_> = state.range("a/").map(|entry| entry.key.as_str()).collect();
        assert_eq!(keys, ["a/1", "a/2"]);
    }
}
