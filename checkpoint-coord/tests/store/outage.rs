// SPDX-License-Identifier: Apache-2.0
//! etcd members that die, stop, disagree or take their time.

use std::time::Duration;

use steadfast_coord::etcd::{EtcdSettings, EtcdStore};
use steadfast_coord::{Store, StoreError};
use steadfast_core::{Condition, Operation, Outcome, Revision, Transaction};

use crate::proxy::{Mode, Proxy};
use crate::server::wait_for;
use crate::server::{DEADLINE, Etcd, Options, Server, cluster, free_ports, own_address, settings};

on_each_etcd!(
    a_transaction_without_an_answer_is_an_error_and_its_fate_can_be_read,
    a_silent_member_is_left_within_the_time_of_one_request,
    the_death_of_the_member_in_use_is_survived,
    without_a_majority_nothing_is_done,
    a_slow_network_is_only_slow,
    a_connection_that_is_busy_is_not_given_up,
    a_member_of_another_cluster_is_not_used,
);

async fn write(store: &EtcdStore, key: &str, value: &str) -> Result<Outcome, StoreError> {
    store
        .transact(Transaction {
            when: vec![],
            then: vec![put(key, value)],
        })
        .await
}

fn put(key: &str, value: &str) -> Operation {
    Operation::Put {
        key: key.to_owned(),
        value: value.into(),
        lease: None,
    }
}

fn unavailable<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Err(StoreError::Unavailable(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

/// Requests that wait no longer than this, for tests in which they are in vain.
const SHORT: Duration = Duration::from_millis(1_500);

async fn a_transaction_without_an_answer_is_an_error_and_its_fate_can_be_read(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    let store = EtcdStore::connect(EtcdSettings {
        request_timeout: SHORT,
        ..server.settings()
    })
    .await
    .unwrap();
    write(&store, "t", "before").await.unwrap();
    server.pause().await;
    let stuck = tokio::time::timeout(DEADLINE, write(&store, "t", "after")).await;
    let reason = unavailable(stuck.expect("a request takes no longer than its time"));
    assert!(reason.contains("may or may not"), "{reason}");
    assert!(
        reason.contains(&server.client_address.to_string()),
        "{reason}"
    );
    // While it is stopped, nothing else gets through either, and says why.
    let reason = unavailable(store.range("t").await);
    assert!(reason.contains("no answer"), "{reason}");
    server.go_on();
    wait_for("etcd answers again", async || {
        store.range("t").await.is_ok()
    })
    .await;
    // A write that depends on what was read is done only if what was read is still so.
    let mut tries = 0;
    loop {
        let entry = store.range("t").await.unwrap().0.remove(0);
        assert!(["before", "after"].contains(&entry.value.as_str()));
        let guarded = Transaction {
            when: vec![Condition::ModRevision {
                key: "t".to_owned(),
                revision: entry.mod_revision,
            }],
            then: vec![put("t", "last")],
        };
        if store.transact(guarded).await.unwrap().succeeded {
            break;
        }
        tries += 1;
        assert!(tries < 3, "only the stuck transaction can come between");
    }
    assert_eq!(store.range("t").await.unwrap().0[0].value, "last");
}

async fn a_silent_member_is_left_within_the_time_of_one_request(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    let proxies = [
        Proxy::to(server.client_address).await,
        Proxy::to(server.client_address).await,
    ];
    let both = settings(proxies.each_ref().map(|proxy| proxy.address));
    let store = EtcdStore::connect(EtcdSettings {
        request_timeout: Duration::from_secs(4),
        ..both
    })
    .await
    .unwrap();
    let lease = store.lease_grant(Duration::from_mins(1)).await.unwrap();
    for _ in 0..2 {
        let used = store.endpoint().unwrap();
        for proxy in &proxies {
            let silent = used.ends_with(&proxy.address.to_string());
            proxy.set(if silent { Mode::Hold } else { Mode::Pass });
        }
        store.lease_keepalive(lease).await.unwrap();
        assert_ne!(store.endpoint().unwrap(), used);
        // A new connection proves that the other end answers, so a transaction is not wasted on a silent one.
        write(&store, "m", "x").await.unwrap();
    }
}

/// Three members, and a store that knows them all.
async fn three(etcd: &Etcd, request_timeout: Duration) -> (Vec<Server>, EtcdStore) {
    let servers = cluster(etcd, 3, &Options::default());
    for server in &servers {
        server.wait_until_healthy().await;
    }
    let store = EtcdStore::connect(EtcdSettings {
        request_timeout,
        ..settings(servers.iter().map(|server| server.client_address))
    })
    .await
    .unwrap();
    (servers, store)
}

fn in_use(servers: &[Server], store: &EtcdStore) -> usize {
    let url = store.endpoint().unwrap();
    servers
        .iter()
        .position(|server| url.ends_with(&server.client_address.to_string()))
        .unwrap()
}

async fn the_death_of_the_member_in_use_is_survived(etcd: Etcd) {
    let (mut servers, store) = three(&etcd, Duration::from_secs(20)).await;
    let written = write(&store, "k/1", "x").await.unwrap().revision;
    let mut watch = store.watch("k/", Revision(written.0 + 1)).await.unwrap();
    let lease = store.lease_grant(Duration::from_mins(1)).await.unwrap();
    let member = in_use(&servers, &store);
    servers[member].kill();
    store.lease_keepalive(lease).await.unwrap();
    assert_eq!(store.range("k/").await.unwrap().0.len(), 1);
    let mut tries = 0;
    while write(&store, "k/2", "x").await.is_err() {
        tries += 1;
        assert!(tries < 10, "the other two are a majority");
    }
    let batch = tokio::time::timeout(DEADLINE, watch.next()).await.unwrap();
    assert_eq!(batch.unwrap().changes[0].key(), "k/2");
    assert_ne!(in_use(&servers, &store), member);
}

async fn without_a_majority_nothing_is_done(etcd: Etcd) {
    let (mut servers, store) = three(&etcd, SHORT).await;
    wait_for("the cluster takes a write", async || {
        write(&store, "q", "1").await.is_ok()
    })
    .await;
    let survivor = in_use(&servers, &store);
    let others: Vec<_> = (0..3).filter(|member| *member != survivor).collect();
    for member in &others {
        servers[*member].kill();
    }
    let reason = unavailable(write(&store, "q", "2").await);
    assert!(!reason.is_empty());
    // Once it has noticed, it says so.
    wait_for("the survivor says why", async || {
        let reason = unavailable(store.range("q").await);
        reason.contains("no leader") && reason.contains("Connection refused")
    })
    .await;
    servers[others[0]].start_again();
    wait_for("two of three are a majority", async || {
        write(&store, "q", "3").await.is_ok()
    })
    .await;
    assert_eq!(store.range("q").await.unwrap().0[0].value, "3");
}

async fn a_slow_network_is_only_slow(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    let proxy = Proxy::to(server.client_address).await;
    proxy.set(Mode::Slow);
    let store = EtcdStore::connect(settings([proxy.address])).await.unwrap();
    let revision = write(&store, "slow", "1").await.unwrap().revision;
    let mut watch = store.watch("slow", revision).await.unwrap();
    assert_eq!(watch.next().await.unwrap().revision, revision);
    let lease = store.lease_grant(Duration::from_mins(1)).await.unwrap();
    store.lease_keepalive(lease).await.unwrap();
    store.lease_revoke(lease).await.unwrap();
}

/// As with the plan of a large job, which takes etcd longer to send to all nodes than a request may take: who connected
/// anew would be sent it from its beginning again.
async fn a_connection_that_is_busy_is_not_given_up(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    let proxy = Proxy::to(server.client_address).await;
    let store = EtcdStore::connect(EtcdSettings {
        request_timeout: SHORT,
        lease_timeout: SHORT,
        ..settings([proxy.address])
    })
    .await
    .unwrap();
    let lease = store.lease_grant(Duration::from_mins(5)).await.unwrap();
    let mut watch = store.watch("large/", Revision(1)).await.unwrap();
    proxy.set(Mode::Narrow);
    let value = "x".repeat(400_000);
    write(&server.store().await, "large/1", &value)
        .await
        .unwrap();
    let mut unanswered = 0;
    let renewing = async {
        loop {
            let renewed = store.lease_keepalive(lease).await;
            unanswered += u32::from(renewed.is_err());
        }
    };
    let batch = tokio::select! {
        batch = tokio::time::timeout(DEADLINE, watch.next()) => batch.unwrap().unwrap(),
        () = renewing => unreachable!(),
    };
    assert_eq!(batch.changes[0].key(), "large/1");
    assert!(unanswered > 0, "the requests had to wait behind the value");
    assert_eq!(proxy.connections(), 1);
}

async fn a_member_of_another_cluster_is_not_used(etcd: Etcd) {
    let (mut one, other) = (Server::start(&etcd).await, Server::start(&etcd).await);
    // Not known which of the two the store begins with, so it is told of the other one by way of a network that it
    // cannot use at first.
    let proxy = Proxy::to(other.client_address).await;
    proxy.set(Mode::Cut);
    let store = EtcdStore::connect(EtcdSettings {
        request_timeout: SHORT,
        ..settings([one.client_address, proxy.address])
    })
    .await
    .unwrap();
    write(&store, "a", "1").await.unwrap();
    proxy.set(Mode::Pass);
    one.kill();
    let mut reason = String::new();
    wait_for("the other cluster is found out", async || {
        reason = unavailable(store.range("a").await);
        reason.contains("another etcd cluster")
    })
    .await;
    assert!(reason.contains("Connection refused"), "{reason}");
    assert_eq!(other.store().await.range("a").await.unwrap().0.len(), 0);
}

#[tokio::test]
async fn nobody_there_is_said_with_every_address() {
    let ports = free_ports(2);
    let addresses = ports.iter().map(|port| (own_address(), *port).into());
    let settings = EtcdSettings {
        request_timeout: Duration::from_millis(300),
        ..settings(addresses)
    };
    let reason = unavailable(EtcdStore::connect(settings).await);
    for port in ports {
        let address = format!("http://{}:{port}: ", own_address());
        assert!(reason.contains(&address), "{reason}");
    }
    assert!(reason.contains("Connection refused"), "{reason}");
}
