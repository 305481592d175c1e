// SPDX-License-Identifier: Apache-2.0
//! Watches of etcd through everything that can break them.

use std::collections::BTreeMap;
use std::time::Duration;

use steadfast_coord::etcd::{EtcdSettings, EtcdStore};
use steadfast_coord::{Store, StoreError, Watch, WatchError};
use steadfast_core::{Change, ChangeBatch, Condition, Operation, Revision, Transaction};

use crate::proxy::{Mode, Proxy};
use crate::server::{DEADLINE, Etcd, Options, Server, settings, wait_for};

on_each_etcd!(
    a_watch_loses_and_repeats_nothing_when_etcd_is_killed,
    a_watch_whose_history_was_compacted_says_so,
    a_watch_from_a_forgotten_revision_is_refused,
    a_watch_leaves_a_connection_that_has_gone_silent,
    a_quiet_watch_keeps_up_with_the_history,
    a_watch_notices_that_etcd_has_lost_its_data,
    a_watch_ends_when_nobody_watches,
);

/// Writes each value once, however often it must be tried.
async fn put_once(store: &impl Store, key: &str) {
    let transaction = Transaction {
        when: vec![Condition::absent(key.to_owned())],
        then: vec![Operation::Put {
            key: key.to_owned(),
            value: "x".into(),
            lease: None,
        }],
    };
    let tries = async {
        // Whoever finds it there has written it before without hearing of it.
        while store.transact(transaction.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, tries).await.unwrap();
}

async fn next(watch: &mut Watch) -> Result<ChangeBatch, WatchError> {
    tokio::time::timeout(DEADLINE, watch.next()).await.unwrap()
}

async fn now(store: &impl Store) -> Revision {
    store.range("nothing").await.unwrap().1
}

async fn from_now(store: &impl Store, prefix: &str) -> Watch {
    let from = Revision(now(store).await.0 + 1);
    store.watch(prefix, from).await.unwrap()
}

async fn compact(server: &Server, revision: Revision) {
    let mut client = server.client().await;
    client.compact(revision.0, None).await.unwrap();
}

async fn through(proxy: &Proxy) -> EtcdStore {
    EtcdStore::connect(settings([proxy.address])).await.unwrap()
}

async fn a_watch_loses_and_repeats_nothing_when_etcd_is_killed(etcd: Etcd) {
    const WRITES: usize = 120;
    let mut server = Server::start(&etcd).await;
    let store = server.store().await;
    let mut watch = from_now(&store, "w/").await;
    let writing = tokio::spawn({
        let store = server.store().await;
        async move {
            for number in 0..WRITES {
                put_once(&store, &format!("w/{number:03}")).await;
            }
        }
    });
    let mut seen = BTreeMap::new();
    let mut last = Revision(0);
    while seen.len() < WRITES {
        let batch = next(&mut watch).await.unwrap();
        assert!(batch.revision > last, "{batch:?} after {last}");
        last = batch.revision;
        for change in batch.changes {
            let Change::Put(entry) = change else {
                panic!("{change:?}");
            };
            assert_eq!(seen.insert(entry.key, entry.mod_revision), None);
        }
        if [30, 80].contains(&seen.len()) {
            server.kill();
            server.start_again();
        }
    }
    writing.await.unwrap();
    let (entries, _) = store.range("w/").await.unwrap();
    let stored: BTreeMap<_, _> = entries
        .into_iter()
        .map(|entry| (entry.key, entry.mod_revision))
        .collect();
    assert_eq!(seen, stored);
}

async fn a_watch_whose_history_was_compacted_says_so(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    let proxy = Proxy::to(server.client_address).await;
    let (far, near) = (through(&proxy).await, server.store().await);
    let mut watch = from_now(&far, "c/").await;
    put_once(&near, "c/1").await;
    assert_eq!(next(&mut watch).await.unwrap().changes.len(), 1);
    proxy.set(Mode::Cut);
    for number in 2..6 {
        put_once(&near, &format!("c/{number}")).await;
    }
    compact(&server, now(&near).await).await;
    proxy.set(Mode::Pass);
    assert_eq!(next(&mut watch).await, Err(WatchError::Missed));
    // As the session does then.
    let (entries, revision) = far.range("c/").await.unwrap();
    assert_eq!(entries.len(), 5);
    let mut watch = far.watch("c/", Revision(revision.0 + 1)).await.unwrap();
    put_once(&near, "c/6").await;
    assert_eq!(next(&mut watch).await.unwrap().changes[0].key(), "c/6");
}

async fn a_watch_from_a_forgotten_revision_is_refused(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    let store = server.store().await;
    let first = Revision(now(&store).await.0 + 1);
    for number in 0..5 {
        put_once(&store, &format!("f/{number}")).await;
    }
    let last = now(&store).await;
    compact(&server, last).await;
    match store.watch("f/", first).await {
        Err(StoreError::Compacted { from, oldest }) => {
            assert_eq!((from, oldest), (first, last));
        }
        other => panic!("{other:?}"),
    }
    // What is left of the history can be watched, the last revision included.
    let mut watch = store.watch("f/", last).await.unwrap();
    assert_eq!(next(&mut watch).await.unwrap().revision, last);
}

async fn a_watch_leaves_a_connection_that_has_gone_silent(etcd: Etcd) {
    let options = Options {
        arguments: vec!["--grpc-keepalive-min-time=50ms".to_owned()],
        ..Options::default()
    };
    let server = Server::start_with(&etcd, &options).await;
    let proxies = [
        Proxy::to(server.client_address).await,
        Proxy::to(server.client_address).await,
    ];
    let store = EtcdStore::connect(EtcdSettings {
        keepalive_interval: Duration::from_millis(200),
        keepalive_timeout: Duration::from_millis(500),
        ..settings(proxies.each_ref().map(|proxy| proxy.address))
    })
    .await
    .unwrap();
    let mut watch = from_now(&store, "s/").await;
    let used = store.endpoint().unwrap();
    let silent = proxies
        .iter()
        .find(|proxy| used.ends_with(&proxy.address.to_string()))
        .unwrap();
    silent.set(Mode::Hold);
    put_once(&server.store().await, "s/1").await;
    // No request of the store finds the silence out; only the watch itself can.
    assert_eq!(next(&mut watch).await.unwrap().changes[0].key(), "s/1");
    assert_ne!(store.endpoint().unwrap(), used);
}

async fn a_quiet_watch_keeps_up_with_the_history(etcd: Etcd) {
    let options = Options {
        arguments: vec!["--experimental-watch-progress-notify-interval=100ms".to_owned()],
        ..Options::default()
    };
    let server = Server::start_with(&etcd, &options).await;
    let proxy = Proxy::to(server.client_address).await;
    let (far, near) = (through(&proxy).await, server.store().await);
    let mut watch = from_now(&far, "quiet/").await;
    for number in 0..5 {
        put_once(&near, &format!("elsewhere/{number}")).await;
    }
    // Nothing else than signs of life comes to a quiet watch.
    let heard = proxy.answers();
    wait_for("etcd tells twice how far it is", async || {
        proxy.answers() >= heard + 2
    })
    .await;
    proxy.set(Mode::Cut);
    compact(&server, now(&near).await).await;
    proxy.set(Mode::Pass);
    put_once(&near, "quiet/1").await;
    assert_eq!(next(&mut watch).await.unwrap().changes[0].key(), "quiet/1");
}

async fn a_watch_notices_that_etcd_has_lost_its_data(etcd: Etcd) {
    let mut server = Server::start(&etcd).await;
    let store = server.store().await;
    for number in 0..20 {
        put_once(&store, &format!("l/{number}")).await;
    }
    let mut watch = from_now(&store, "l/").await;
    server.kill();
    server.forget_everything();
    server.start_again();
    assert_eq!(next(&mut watch).await, Err(WatchError::Missed));
    server.wait_until_healthy().await;
    assert_eq!(store.range("l/").await.unwrap().0.len(), 0);
}

async fn a_watch_ends_when_nobody_watches(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    let store = server.store().await;
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let watch = from_now(&store, "e/").await;
    assert!(tasks() > before);
    drop(watch);
    wait_for("the watch's task ends", async || tasks() <= before).await;
}
