// SPDX-License-Identifier: Apache-2.0
//! Between the core's words and etcd's. Keys lose and gain the cluster's prefix here.

use std::collections::BTreeSet;

use etcd_client::{Compare, CompareOp, EventType, PutOptions, Txn, TxnOp};
use steadfast_core::{
    Change, ChangeBatch, Condition, KeyValue, LeaseId, Operation, Revision, Transaction,
};

use crate::StoreError;

/// etcd's form of a transaction.
pub(super) fn to_etcd(prefix: &str, transaction: &Transaction) -> Txn {
    let when: Vec<_> = transaction
        .when
        .iter()
        .map(|condition| compare(prefix, condition))
        .collect();
    let then: Vec<_> = transaction
        .then
        .iter()
        .map(|operation| operation_to_etcd(prefix, operation))
        .collect();
    Txn::new().when(when).and_then(then)
}

/// Refuses what etcd would refuse, but with the key's name.
pub(super) fn check(transaction: &Transaction) -> Result<(), StoreError> {
    let mut keys = BTreeSet::new();
    for operation in &transaction.then {
        if !keys.insert(operation.key()) {
            return Err(StoreError::DuplicateKey(operation.key().to_owned()));
        }
    }
    Ok(())
}

/// The first lease that a transaction ties a key to.
pub(super) fn lease_of(transaction: &Transaction) -> Option<LeaseId> {
    transaction
        .then
        .iter()
        .find_map(|operation| match operation {
            Operation::Put { lease, .. } => *lease,
            Operation::Delete { .. } => None,
        })
}

/// A key and its value as etcd has them; an error in words when they cannot be this program's.
pub(super) fn from_etcd(prefix: &str, entry: &etcd_client::KeyValue) -> Result<KeyValue, String> {
    let key = own_key(prefix, entry)?;
    let value = entry
        .value_str()
        .map_err(|_| format!("the value of {key} is not UTF-8 text"))?
        .into();
    Ok(KeyValue {
        key,
        value,
        create_revision: Revision(entry.create_revision()),
        mod_revision: Revision(entry.mod_revision()),
        lease: (entry.lease() != 0).then_some(LeaseId(entry.lease())),
    })
}

/// Events of etcd, which may be of several revisions, as one batch for each revision from `from` on.
pub(super) fn batches(
    prefix: &str,
    events: &[etcd_client::Event],
    from: Revision,
) -> Result<Vec<ChangeBatch>, String> {
    let mut batches: Vec<ChangeBatch> = Vec::new();
    for event in events {
        let entry = event.kv().ok_or("an event without a key")?;
        let revision = Revision(entry.mod_revision());
        if revision < from {
            continue;
        }
        let change = match event.event_type() {
            EventType::Put => Change::Put(from_etcd(prefix, entry)?),
            EventType::Delete => Change::Delete {
                key: own_key(prefix, entry)?,
            },
        };
        match batches.last_mut() {
            Some(batch) if batch.revision == revision => batch.changes.push(change),
            _ => batches.push(ChangeBatch {
                revision,
                changes: vec![change],
            }),
        }
    }
    Ok(batches)
}

fn own_key(prefix: &str, entry: &etcd_client::KeyValue) -> Result<String, String> {
    let key = entry
        .key_str()
        .map_err(|_| format!("a key is not UTF-8 text: {:?}", entry.key()))?;
    let own = key
        .strip_prefix(prefix)
        .ok_or_else(|| format!("the key {key} is not under {prefix}"))?;
    Ok(own.to_owned())
}

fn compare(prefix: &str, condition: &Condition) -> Compare {
    let key = format!("{prefix}{}", condition.key());
    match condition {
        Condition::ModRevision { revision, .. } => {
            Compare::mod_revision(key, CompareOp::Equal, revision.0)
        }
        Condition::CreateRevision { revision, .. } => {
            Compare::create_revision(key, CompareOp::Equal, revision.0)
        }
    }
}

fn operation_to_etcd(prefix: &str, operation: &Operation) -> TxnOp {
    let key = format!("{prefix}{}", operation.key());
    match operation {
        Operation::Put { value, lease, .. } => {
            let options = lease.map(|lease| PutOptions::new().with_lease(lease.0));
            TxnOp::put(key, value.as_str(), options)
        }
        Operation::Delete { .. } => TxnOp::delete(key, None),
    }
}
