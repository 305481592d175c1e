// SPDX-License-Identifier: Apache-2.0
//! Members come and go, and a store follows.

use std::time::Duration;

use steadfast_coord::Store as _;
use steadfast_coord::etcd::{EtcdEndpoint, EtcdSilence, EtcdStore, ask_status};

use crate::server::{Etcd, Options, Server, cluster, free_ports, own_address, wait_for};

on_each_etcd!(
    an_etcd_says_how_it_is_and_a_host_without_one_does_too,
    members_are_removed_and_a_store_uses_those_that_are_left,
);

fn endpoint(server: &Server) -> EtcdEndpoint {
    EtcdEndpoint {
        host: server.client_address.ip().to_string(),
        port: server.client_address.port(),
    }
}

async fn an_etcd_says_how_it_is_and_a_host_without_one_does_too(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    let within = Duration::from_secs(20);
    let settings = server.settings();
    let status = ask_status(&settings, &endpoint(&server), within).await;
    let status = status.unwrap();
    assert_eq!(status.leader, Some(status.member));
    let ids: Vec<_> = status.members.iter().map(|member| member.id).collect();
    assert_eq!(ids, [status.member]);
    let nobody = EtcdEndpoint {
        host: own_address().to_string(),
        port: free_ports(1)[0],
    };
    let silence = ask_status(&settings, &nobody, within).await;
    assert_eq!(silence, Err(EtcdSilence::NobodyThere));
    server.pause().await;
    let silence = ask_status(&settings, &endpoint(&server), Duration::from_millis(300)).await;
    server.go_on();
    assert!(
        matches!(silence, Err(EtcdSilence::NoAnswer(_))),
        "{silence:?}"
    );
}

async fn members_are_removed_and_a_store_uses_those_that_are_left(etcd: Etcd) {
    let mut servers = cluster(&etcd, 3, &Options::default());
    for server in &servers {
        server.wait_until_healthy().await;
    }
    // It knows of one member only.
    let store = EtcdStore::connect(servers[0].settings()).await.unwrap();
    let members = store.cluster().members().await.unwrap();
    assert_eq!(members.len(), 3);
    assert!(members.iter().all(|member| !member.client_urls.is_empty()));
    let first = members.iter().find(|member| member.name == "m0").unwrap();
    let again = store.cluster().add(&first.peer_urls[0]).await;
    assert!(again.is_err(), "its address is taken: {again:?}");

    store.use_endpoints(vec![]);
    store.use_endpoints(vec![endpoint(&servers[1]), endpoint(&servers[2])]);
    assert!(store.range("/").await.is_ok(), "the connection is kept");
    servers[0].kill();
    wait_for("another one is used", async || {
        store.range("/").await.is_ok()
    })
    .await;
    let cluster = store.cluster();
    wait_for("it is removed", async || {
        cluster.remove(first.id).await.is_ok()
    })
    .await;
    cluster.remove(first.id).await.expect("it is gone already");

    let peer_url = format!("http://{}:{}", own_address(), free_ports(1)[0]);
    let mut added = None;
    wait_for("another one is added", async || {
        added = cluster.add(&peer_url).await.ok();
        added.is_some()
    })
    .await;
    let (id, members) = added.unwrap();
    assert_eq!(members.len(), 3);
    let new = members.iter().find(|member| member.id == id).unwrap();
    assert_eq!(new.peer_urls, [peer_url]);
    assert!(new.client_urls.is_empty(), "it has not started");
}
