// SPDX-License-Identifier: Apache-2.0
//! One node at a time changes the members: it holds a key with a lease.

use std::time::Duration;

use steadfast_coord::etcd::EtcdStore;
use steadfast_coord::{Store as _, StoreError};
use steadfast_core::{Condition, Operation, Transaction};

/// The key. It is none of the job's own records.
const KEY: &str = "/steadfast-etcd/change";
/// How long it is held by a node that dies over it. Much longer than a change takes.
const LEASE: Duration = Duration::from_mins(1);

/// Does `change` if no other node changes something. `None` if one does.
///
/// # Errors
///
/// Whatever `change` reports, and errors of the store.
pub(super) async fn exclusively<T>(
    store: &EtcdStore,
    who: &str,
    change: impl AsyncFnOnce() -> Result<T, StoreError>,
) -> Result<Option<T>, StoreError> {
    let lease = store.lease_grant(LEASE).await?;
    let taken = store
        .transact(Transaction {
            when: vec![Condition::absent(KEY.to_owned())],
            then: vec![Operation::Put {
                key: KEY.to_owned(),
                value: who.into(),
                lease: Some(lease),
            }],
        })
        .await;
    let result = match taken {
        Ok(outcome) if outcome.succeeded => change().await.map(Some),
        Ok(_) => Ok(None),
        Err(error) => Err(error),
    };
    // If this fails, the key goes with the lease by itself.
    let _ends_by_itself = store.lease_revoke(lease).await;
    result
}
