// SPDX-License-Identifier: Apache-2.0
//! What every store must do. One macro line makes a store pass through all of it.

use std::collections::BTreeMap;
use std::future::{Ready, ready};
use std::time::Duration;

use steadfast_coord::embedded::{EmbeddedStore, MemoryMedium};
use steadfast_coord::etcd::{EtcdSettings, EtcdStore};
use steadfast_coord::{Store, StoreError, Watch};
use steadfast_core::{
    Change, ChangeBatch, Condition, LeaseId, Operation, Outcome, Revision, Transaction,
};

use crate::server::{DEADLINE, Etcd, Server};

fn put_operation(key: &str, value: &str, lease: Option<LeaseId>) -> Operation {
    Operation::Put {
        key: key.to_owned(),
        value: value.into(),
        lease,
    }
}

async fn put(store: &impl Store, key: &str, value: &str) -> Revision {
    write(store, vec![], vec![put_operation(key, value, None)])
        .await
        .revision
}

async fn write(store: &impl Store, when: Vec<Condition>, then: Vec<Operation>) -> Outcome {
    store.transact(Transaction { when, then }).await.unwrap()
}

async fn next(watch: &mut Watch) -> ChangeBatch {
    tokio::time::timeout(DEADLINE, watch.next())
        .await
        .unwrap()
        .unwrap()
}

async fn revisions_grow_by_one_and_tell_creation_from_change(store: impl Store) {
    let first = put(&store, "r/a", "1").await;
    let second = put(&store, "r/a", "2").await;
    assert_eq!(second.0, first.0 + 1);
    let (entries, revision) = store.range("r/").await.unwrap();
    assert_eq!(revision, second);
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].value, "2");
    assert_eq!(
        (entries[0].create_revision, entries[0].mod_revision),
        (first, second)
    );
}

async fn guards_are_all_or_nothing(store: impl Store) {
    let created = put(&store, "g/a", "1").await;
    let holds = Condition::CreateRevision {
        key: "g/a".into(),
        revision: created,
    };
    let fails = Condition::absent("g/a".into());
    let then = vec![
        put_operation("g/a", "2", None),
        put_operation("g/b", "2", None),
    ];
    let refused = write(&store, vec![holds.clone(), fails], then.clone()).await;
    assert!(!refused.succeeded);
    assert_eq!(store.range("g/").await.unwrap().0.len(), 1);
    let done = write(&store, vec![holds, Condition::absent("g/b".into())], then).await;
    assert!(done.succeeded);
    let (entries, _) = store.range("g/").await.unwrap();
    assert!(
        entries
            .iter()
            .all(|entry| entry.mod_revision == done.revision)
    );
    assert_eq!(entries.len(), 2);
}

async fn a_key_written_twice_in_one_transaction_is_refused(store: impl Store) {
    let then = vec![put_operation("d", "1", None), put_operation("d", "2", None)];
    let error = store.transact(Transaction { when: vec![], then }).await;
    assert!(matches!(error, Err(StoreError::DuplicateKey(_))));
}

async fn a_watch_has_no_gaps_and_keeps_to_its_prefix(store: impl Store) {
    let before = put(&store, "w/a", "0").await;
    let mut watch = store.watch("w/", Revision(before.0 + 1)).await.unwrap();
    let mut revisions = Vec::new();
    for number in 0..50 {
        put(&store, "elsewhere", "x").await;
        revisions.push(put(&store, &format!("w/{}", number % 7), "x").await);
    }
    for revision in revisions {
        let batch = next(&mut watch).await;
        assert_eq!(batch.revision, revision);
        assert_eq!(batch.changes.len(), 1);
        assert!(batch.changes[0].key().starts_with("w/"));
    }
}

async fn a_watch_may_begin_in_the_past(store: impl Store) {
    let first = put(&store, "p/a", "1").await;
    let then = vec![
        put_operation("p/b", "2", None),
        put_operation("p/c", "3", None),
    ];
    let second = write(&store, vec![], then).await.revision;
    let mut watch = store.watch("p/", first).await.unwrap();
    assert_eq!(next(&mut watch).await.revision, first);
    let batch = next(&mut watch).await;
    assert_eq!(batch.revision, second);
    assert_eq!(batch.changes.len(), 2, "one transaction comes as one batch");
}

async fn deletions_are_seen_and_a_void_one_makes_no_revision(store: impl Store) {
    let created = put(&store, "x/a", "1").await;
    let mut watch = store.watch("x/", Revision(created.0 + 1)).await.unwrap();
    let delete = Operation::Delete { key: "x/a".into() };
    let deleted = write(&store, vec![], vec![delete.clone()]).await;
    let again = write(&store, vec![], vec![delete]).await;
    assert!(again.succeeded);
    assert_eq!(again.revision, deleted.revision);
    let batch = next(&mut watch).await;
    assert_eq!(batch.revision, deleted.revision);
    assert_eq!(batch.changes, [Change::Delete { key: "x/a".into() }]);
    let recreated = put(&store, "x/a", "1").await;
    let (entries, _) = store.range("x/").await.unwrap();
    assert_eq!(entries[0].create_revision, recreated);
}

async fn a_lease_takes_its_keys_along(store: impl Store) {
    let lease = store.lease_grant(Duration::from_secs(2)).await.unwrap();
    let then = vec![
        put_operation("l/a", "1", Some(lease)),
        put_operation("l/b", "1", Some(lease)),
        put_operation("l/c", "1", None),
    ];
    let written = write(&store, vec![], then).await.revision;
    let mut watch = store.watch("l/", Revision(written.0 + 1)).await.unwrap();
    store.lease_keepalive(lease).await.unwrap();
    let mut gone = Vec::new();
    while gone.len() < 2 {
        gone.extend(next(&mut watch).await.changes);
    }
    assert!(
        gone.iter()
            .all(|change| matches!(change, Change::Delete { .. }))
    );
    assert_eq!(store.range("l/").await.unwrap().0.len(), 1);
    let late = store.lease_keepalive(lease).await;
    assert!(matches!(late, Err(StoreError::LeaseNotFound(_))));
}

async fn a_revoked_lease_ends_at_once(store: impl Store) {
    let lease = store.lease_grant(Duration::from_hours(1)).await.unwrap();
    write(&store, vec![], vec![put_operation("v/a", "1", Some(lease))]).await;
    // A key that was written anew without the lease stays.
    write(&store, vec![], vec![put_operation("v/b", "1", Some(lease))]).await;
    put(&store, "v/b", "2").await;
    store.lease_revoke(lease).await.unwrap();
    let (entries, _) = store.range("v/").await.unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].key, "v/b");
    let then = vec![put_operation("v/a", "2", Some(lease))];
    let error = store.transact(Transaction { when: vec![], then }).await;
    assert!(matches!(error, Err(StoreError::LeaseNotFound(_))));
}

async fn large_values_come_back_whole(store: impl Store) {
    let text = "häuser ".repeat(100_000);
    put(&store, "big", &text).await;
    assert_eq!(store.range("big").await.unwrap().0[0].value, text);
}

async fn of_concurrent_writers_one_wins_each_round(store: impl Store) {
    const WRITERS: usize = 8;
    const ROUNDS: usize = 25;
    let mut watch = store
        .watch("c", Revision(store.range("c").await.unwrap().1.0 + 1))
        .await
        .unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut won = 0;
                while won < ROUNDS {
                    let entries = store.range("c").await.unwrap().0;
                    let (revision, value) = entries.first().map_or((Revision(0), 0), |entry| {
                        (entry.mod_revision, entry.value.parse().unwrap())
                    });
                    let guard = Condition::ModRevision {
                        key: "c".into(),
                        revision,
                    };
                    let next: usize = value + 1;
                    let then = vec![put_operation("c", &next.to_string(), None)];
                    won += usize::from(write(&store, vec![guard], then).await.succeeded);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let mut seen = BTreeMap::new();
    for expected in 1..=WRITERS * ROUNDS {
        let batch = next(&mut watch).await;
        let [Change::Put(entry)] = batch.changes.as_slice() else {
            panic!("{batch:?}");
        };
        assert_eq!(entry.value, expected.to_string());
        assert_eq!(seen.insert(batch.revision, expected), None);
    }
}

/// Runs the whole contract; `$open` makes a new, empty store and what it lives in, or `None` where there cannot be one.
macro_rules! contract_tests {
    ($store:ident, $open:expr) => {
        contract_tests!(
            $store,
            $open,
            [
                revisions_grow_by_one_and_tell_creation_from_change,
                guards_are_all_or_nothing,
                a_key_written_twice_in_one_transaction_is_refused,
                a_watch_has_no_gaps_and_keeps_to_its_prefix,
                a_watch_may_begin_in_the_past,
                deletions_are_seen_and_a_void_one_makes_no_revision,
                a_lease_takes_its_keys_along,
                a_revoked_lease_ends_at_once,
                large_values_come_back_whole,
                of_concurrent_writers_one_wins_each_round,
            ]
        );
    };
    ($store:ident, $open:expr, [$($case:ident),* $(,)?]) => {
        mod $store {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let Some((store, _home)) = $open.await else {
                        return;
                    };
                    super::$case(store).await;
                }
            )*
        }
    };
}

fn in_memory() -> Ready<Option<(EmbeddedStore, ())>> {
    let store = EmbeddedStore::open(MemoryMedium::default()).unwrap();
    ready(Some((store, ())))
}

/// With a prefix, as on a cluster that others use too.
async fn in_etcd(etcd: Option<Etcd>) -> Option<(EtcdStore, Server)> {
    let server = Server::start(&etcd?).await;
    let settings = EtcdSettings {
        prefix: "/contract".to_owned(),
        ..server.settings()
    };
    let store = EtcdStore::connect(settings).await.unwrap();
    Some((store, server))
}

contract_tests!(embedded, super::in_memory());
contract_tests!(etcd_system, super::in_etcd(crate::server::system_etcd()));
contract_tests!(etcd_newer, super::in_etcd(crate::server::newer_etcd()));
