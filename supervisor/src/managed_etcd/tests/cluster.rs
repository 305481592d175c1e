// SPDX-License-Identifier: Apache-2.0
//! What a job can rely on, and what must not happen.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Duration;

use steadfast_coord::Store as _;
use steadfast_coord::etcd::{
    EtcdMember, EtcdSettings, EtcdSilence, EtcdStore, EtcdTls, ask_status,
};
use steadfast_core::{Operation, Transaction};

use super::etcd_is_there;
use super::node::{Node, SECRET, hosts, pace, wait_for};
use crate::managed_etcd::certificates::CertificateFiles;
use crate::managed_etcd::secret::{SecretSources, SecretText};
use crate::managed_etcd::{Departure, Layout};

async fn write(store: &EtcdStore, key: &str) -> bool {
    let put = Operation::Put {
        key: key.to_owned(),
        value: "1".into(),
        lease: None,
    };
    let done = store.transact(Transaction {
        when: vec![],
        then: vec![put],
    });
    done.await.is_ok_and(|outcome| outcome.succeeded)
}

async fn keys(store: &EtcdStore, prefix: &str) -> Vec<String> {
    let (entries, _) = store.range(prefix).await.unwrap();
    entries.into_iter().map(|entry| entry.key).collect()
}

async fn members(store: &EtcdStore) -> Vec<EtcdMember> {
    store.cluster().members().await.unwrap_or_default()
}

/// Waits until these nodes, and nobody else, take part in the cluster.
async fn wait_for_members(nodes: &[&Node]) {
    let names: Vec<_> = nodes.iter().map(|node| node.news()).collect();
    let store = nodes[0].store().await;
    wait_for(&format!("they are members: {names:?}"), async || {
        let members = members(&store).await;
        members.len() == nodes.len() && nodes.iter().all(|node| node.member(&members).is_some())
    })
    .await;
}

async fn wait_for_news(node: &Node, part: &str) {
    wait_for(&format!("news of `{part}`"), async || {
        node.news().iter().any(|text| text.contains(part))
    })
    .await;
}

async fn id(node: &Node, store: &EtcdStore) -> Option<u64> {
    let members = members(store).await;
    node.member(&members).map(|member| member.id)
}

#[tokio::test]
async fn a_member_that_is_killed_or_loses_its_data_is_there_again() {
    if !etcd_is_there() {
        return;
    }
    let hosts = hosts(4);
    let mut nodes = Node::start_all(&hosts, 3, &pace()).await;
    // The fourth has none, and uses those of the others.
    let store = nodes[3].store().await;
    wait_for_members(&[&nodes[0], &nodes[1], &nodes[2]]).await;
    wait_for("it can be written", async || write(&store, "/job/a").await).await;
    assert_eq!(nodes[3].etcd(), None);

    let member = id(&nodes[0], &store).await.unwrap();
    let killed = nodes[0].kill_etcd();
    wait_for("it runs again", async || {
        nodes[0].etcd().is_some_and(|pid| pid != killed)
    })
    .await;
    let own = nodes[0].store().await;
    wait_for("it answers again", async || write(&own, "/job/b").await).await;
    assert_eq!(id(&nodes[0], &store).await, Some(member), "the same member");
    assert!(nodes[0].news()[0].contains("killed by signal 9"));

    // An agent that dies takes nothing with it, and the next one goes on.
    let running = nodes[0].etcd();
    nodes[0].new_agent().await;
    assert!(write(&nodes[0].store().await, "/job/c").await);
    assert_eq!(nodes[0].etcd(), running);

    for data in nodes[0].data() {
        std::fs::remove_dir_all(data).unwrap();
    }
    nodes[0].kill_etcd();
    wait_for("somebody new has joined", async || {
        let now = id(&nodes[0], &store).await;
        now.is_some_and(|now| now != member)
    })
    .await;
    wait_for_members(&[&nodes[0], &nodes[1], &nodes[2]]).await;
    let own = nodes[0].store().await;
    assert_eq!(keys(&own, "/job/").await, ["/job/a", "/job/b", "/job/c"]);
    let log = nodes[0].log();
    assert!(log.contains("\"level\""), "{log}");
}

#[tokio::test]
async fn a_node_that_is_gone_is_replaced_and_does_not_get_in_the_way_when_it_is_back() {
    if !etcd_is_there() {
        return;
    }
    let hosts = hosts(4);
    let mut pace = pace();
    pace.replace_after = Duration::from_secs(4);
    let mut nodes = Node::start_all(&hosts, 3, &pace).await;
    let store = nodes[3].store().await;
    wait_for_members(&[&nodes[0], &nodes[1], &nodes[2]]).await;
    wait_for("it can be written", async || write(&store, "/job/a").await).await;

    nodes[0].die(true).await;
    wait_for_members(&[&nodes[3], &nodes[1], &nodes[2]]).await;
    wait_for_news(&nodes[3], "has been gone for").await;
    assert_eq!(keys(&nodes[3].store().await, "/job/a").await, ["/job/a"]);

    nodes[0].new_keeper();
    nodes[0].new_agent().await;
    // Where it looks for the cluster, its own etcd is not.
    assert_eq!(keys(&nodes[0].store().await, "/job/a").await, ["/job/a"]);
    let ids = |members: &[EtcdMember]| -> BTreeSet<u64> {
        members.iter().map(|member| member.id).collect()
    };
    let before = ids(&members(&store).await);
    nodes[2].die(false).await;
    wait_for_members(&[&nodes[0], &nodes[1], &nodes[3]]).await;
    let after = ids(&members(&store).await);
    assert_eq!(before.intersection(&after).count(), 2);
    // Every member has changed by now but one, and this store was told of two.
    assert!(write(&store, "/job/b").await);
}

#[tokio::test]
async fn a_founder_that_starts_anew_comes_back_as_somebody_else() {
    if !etcd_is_there() {
        return;
    }
    let hosts = hosts(3);
    let mut nodes = Node::start_all(&hosts, 3, &pace()).await;
    wait_for_members(&[&nodes[0], &nodes[1], &nodes[2]]).await;
    let store = nodes[2].store().await;
    wait_for("it can be written", async || write(&store, "/job/a").await).await;
    for (founder, cleans_up) in [(0, true), (1, false)] {
        let before = id(&nodes[founder], &store).await;
        nodes[founder].die(cleans_up).await;
        nodes[founder].new_keeper();
        nodes[founder].new_agent().await;
        wait_for("it is a member with another id", async || {
            let now = id(&nodes[founder], &store).await;
            now.is_some() && now != before
        })
        .await;
    }
    assert_eq!(keys(&nodes[0].store().await, "/job/").await, ["/job/a"]);
}

#[tokio::test]
async fn strangers_stay_outside() {
    if !etcd_is_there() {
        return;
    }
    let hosts = hosts(3);
    let only = hosts[..1].to_vec();
    let nodes = Node::start_all(&only, 1, &pace()).await;
    let store = nodes[0].store().await;
    assert!(write(&store, "/job/a").await);
    let endpoint = hosts[0].endpoint();
    let mut access = EtcdSettings::new(vec![endpoint.clone()]);
    access.request_timeout = Duration::from_secs(2);
    let within = Duration::from_secs(20);
    // Without TLS.
    assert!(EtcdStore::connect(access.clone()).await.is_err());
    // With a certificate of another secret, for the same job.
    let directory = tempfile::tempdir().unwrap();
    let files = CertificateFiles::inside(directory.path());
    let sources = SecretSources {
        text: Some(SecretText(b"the secret of somebody else".to_vec())),
        ..SecretSources::default()
    };
    let foreign = sources.find().unwrap();
    files.make(&foreign, "job\n0", &hosts[0].host).unwrap();
    access.tls = Some(files.client());
    let answer = ask_status(&access, &endpoint, within).await;
    assert!(matches!(answer, Err(EtcdSilence::NotOurs(_))), "{answer:?}");
    // Knowing whom to trust does not help without a certificate of one's own.
    let text = Some(SecretText(SECRET.into()));
    let own = SecretSources {
        text,
        ..SecretSources::default()
    };
    files
        .make(&own.find().unwrap(), "job\n0", &hosts[0].host)
        .unwrap();
    access.tls = Some(EtcdTls {
        client: None,
        ..files.client()
    });
    let answer = ask_status(&access, &endpoint, within).await;
    assert!(answer.is_err(), "{answer:?}");
    // Nor does a certificate of another run.
    files
        .make(&own.find().unwrap(), "job\n1", &hosts[0].host)
        .unwrap();
    access.tls = Some(files.client());
    let answer = ask_status(&access, &endpoint, within).await;
    assert!(matches!(answer, Err(EtcdSilence::NotOurs(_))), "{answer:?}");
    // A node with another secret hears why it gets nowhere.
    let mut both = hosts.clone();
    both.truncate(3);
    let layout = Layout {
        hosts: both,
        servers: 3,
        this_node: 1,
    };
    let stranger = Node::start(layout, pace(), "the secret of somebody else").await;
    wait_for("it is told", async || !stranger.news().is_empty()).await;
    let news = stranger.news().join("\n");
    assert!(news.contains("STEADFAST_TOKEN_FILE"), "{news}");
    assert!(!news.contains("somebody else"), "{news}");
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    if !etcd_is_there() {
        return;
    }
    let hosts = hosts(1);
    let address = (hosts[0].host.as_str(), hosts[0].peer_port);
    let other = TcpListener::bind(address).unwrap();
    let nodes = Node::start_all(&hosts, 1, &pace()).await;
    wait_for("it is told", async || !nodes[0].news().is_empty()).await;
    let news = nodes[0].news().join("\n");
    assert!(news.contains("address already in use"), "{news}");
    assert!(news.contains("other ports"), "{news}");
    wait_for("why is known", async || {
        let trouble = nodes[0].trouble().unwrap_or_default();
        trouble.contains(&hosts[0].client_url())
    })
    .await;
    drop(other);
    // As soon as the port is free, it goes on.
    assert!(write(&nodes[0].store().await, "/job/a").await);
}

#[tokio::test]
async fn at_the_end_the_others_are_waited_for_and_a_node_that_leaves_makes_room() {
    if !etcd_is_there() {
        return;
    }
    let hosts = hosts(4);
    let mut slow = pace();
    slow.farewell = Duration::from_mins(1);
    let mut nodes = Node::start_all(&hosts, 3, &slow).await;
    let store = nodes[3].store().await;
    wait_for_members(&[&nodes[0], &nodes[1], &nodes[2]]).await;
    wait_for("it can be written", async || {
        write(&store, "/job/members/3").await
    })
    .await;

    nodes[0].leave(Departure::NodeLeaves, "/job/members/").await;
    nodes[0].die(true).await;
    wait_for_members(&[&nodes[3], &nodes[1], &nodes[2]]).await;
    wait_for_news(&nodes[3], "too few were left").await;

    let mut leaving = nodes.remove(1);
    let waiting = tokio::spawn(async move {
        leaving.leave(Departure::JobOver, "/job/members/").await;
        leaving
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished(), "node 3 has not left");
    let left = store.transact(Transaction {
        when: vec![],
        then: vec![Operation::Delete {
            key: "/job/members/3".to_owned(),
        }],
    });
    left.await.unwrap();
    let in_time = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    let leaving = in_time.expect("it goes as soon as it can").unwrap();
    assert!(leaving.etcd().is_some(), "its etcd is the keeper's to stop");
}
