// SPDX-License-Identifier: Apache-2.0
//! Reading what a member must know: the keys that everybody watches, its own record, and its own findings.
//!
//! A member does not read what the others write about themselves, so that a job of N nodes costs each of them the same.

use steadfast_core::{Generation, KeyValue, Keys, NodeName, Revision, View};

use crate::{Store, StoreError};

/// The entries that a member must know: what everybody watches, its own record, and its findings of its generation.
pub(super) async fn read_own<S: Store>(
    store: &S,
    keys: &Keys,
    node: &NodeName,
) -> Result<(Vec<KeyValue>, Revision), StoreError> {
    let own = keys.member(node);
    let (record, _) = store.get(&own).await?;
    let (mut entries, revision) = store.range(&keys.common()).await?;
    let generation = record
        .as_ref()
        .map(|record| View::load(keys.clone(), std::slice::from_ref(record), revision))
        .and_then(|view| Some(view.member(node)?.value.generation));
    let planned = View::load(keys.clone(), &entries, revision)
        .plan()
        .map(|plan| plan.value.generation);
    let mut generations: Vec<Generation> = generation.into_iter().chain(planned).collect();
    generations.dedup();
    for generation in generations {
        let (findings, _) = store.get(&keys.findings(generation, node)).await?;
        entries.extend(findings);
    }
    entries.extend(record);
    Ok((entries, revision))
}
