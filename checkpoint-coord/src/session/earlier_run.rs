// SPDX-License-Identifier: Apache-2.0
//! What an earlier run of a job with the same name has left in a shared store.
//!
//! Keys of a job that has ended stay, so that its result can be read. A supervisor that is started anew finds them. When
//! nobody of that run is left, they are removed, the one last that tells others that there is something to remove, so that
//! nobody joins in between.

use std::time::Duration;

use steadfast_core::{Condition, JobResult, JobSpec, KeyValue, Keys, Operation, Transaction, View};

use crate::{Store, StoreError};

/// How often to look whether those of the earlier run are gone.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Keys that one transaction removes; etcd allows 128 operations.
const KEYS_AT_ONCE: usize = 100;

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum EarlierRun {
    /// Nothing that ended.
    None,
    /// It ended like this, and its keys are removed.
    Ended(Box<JobResult>),
    /// Everybody in it was gone, and it was another program: what differed, in words. Its keys are removed.
    Abandoned(String),
}

/// Sees to it that a new run can begin under the job's name. Waits while an earlier run is still ending.
pub(super) async fn clear<S: Store>(
    store: &S,
    keys: &Keys,
    spec: &JobSpec,
) -> Result<EarlierRun, StoreError> {
    let mut found = EarlierRun::None;
    loop {
        let (entries, revision) = store.range(&keys.common()).await?;
        let view = View::load(keys.clone(), &entries, revision);
        let (marker, what) = if let Some(result) = view.result() {
            (keys.result(), EarlierRun::Ended(Box::new(result.clone())))
        } else if let Some(difference) = difference(&view, spec) {
            (keys.spec(), EarlierRun::Abandoned(difference))
        } else {
            return Ok(found);
        };
        let is_empty = view.leader().is_none() && store.range(&keys.members()).await?.0.is_empty();
        if is_empty {
            if remove_all(store, keys, &marker).await? {
                found = what;
            }
        } else if matches!(what, EarlierRun::Abandoned(_)) {
            // Somebody is in: the member will be refused, with the reason.
            return Ok(found);
        } else {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

fn difference(view: &View, spec: &JobSpec) -> Option<String> {
    view.spec()?.value.disagreement(spec)
}

/// Removes all keys of the job, `marker` last, as long as nobody leads it. Says whether that worked out.
async fn remove_all<S: Store>(store: &S, keys: &Keys, marker: &str) -> Result<bool, StoreError> {
    let (entries, _) = store.range(keys.prefix()).await?;
    let Some(mark) = entries.iter().find(|entry| entry.key == marker) else {
        return Ok(false);
    };
    let guards = vec![
        Condition::absent(keys.leader()),
        Condition::ModRevision {
            key: marker.to_owned(),
            revision: mark.mod_revision,
        },
    ];
    let (first, last): (Vec<&KeyValue>, Vec<&KeyValue>) =
        entries.iter().partition(|entry| entry.key != marker);
    for chunk in first.chunks(KEYS_AT_ONCE).chain([last.as_slice()]) {
        let delete = |entry: &&KeyValue| Operation::Delete {
            key: entry.key.clone(),
        };
        let transaction = Transaction {
            when: guards.clone(),
            then: chunk.iter().map(delete).collect(),
        };
        if !store.transact(transaction).await?.succeeded {
            return Ok(false);
        }
    }
    Ok(true)
}
