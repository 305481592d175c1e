// SPDX-License-Identifier: Apache-2.0
//! Members that do what they must not do, and strangers that do what they like.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use prost::Message as _;
use steadfast_core::Generation;
use steadfast_proto::v1::{Report, report};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use super::raw::{RawStream, heartbeat, hello, piece};
use super::*;

/// A leader, and a member that has no stream yet.
async fn stage() -> (Leader, Node) {
    let leader = Leader::new().await;
    let node = Node::new("a");
    leader.accept(&[&node]);
    (leader, node)
}

/// A stream on which the node has introduced itself.
async fn introduced(leader: &mut Leader, node: &Node) -> RawStream {
    let stream = RawStream::open(leader, node).await;
    stream.send(report::Kind::Hello(hello("a"))).await;
    leader.connected("a").await;
    stream
}

async fn refused_with(first: report::Kind) -> (Violation, tonic::Status) {
    let (mut leader, node) = stage().await;
    let mut stream = RawStream::open(&leader, &node).await;
    stream.send(first).await;
    (leader.refused("a").await, stream.status().await)
}

#[tokio::test]
async fn another_version_is_refused_and_told_so() {
    let mut old = hello("a");
    old.protocol_version = 0;
    let (violation, status) = refused_with(report::Kind::Hello(old)).await;
    assert_eq!(violation, Violation::Version { theirs: 0 });
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(
        status.message().contains("same version of steadfast"),
        "{status}"
    );
}

#[tokio::test]
async fn another_job_is_refused_and_told_so() {
    let mut leader = Leader::new().await;
    let mut node = Node::with_introduction(Introduction {
        job: "other".to_owned(),
        ..introduction("a")
    });
    leader.accept(&[&node]);
    node.follow(leader.target());
    let theirs = "other".to_owned();
    assert_eq!(leader.refused("a").await, Violation::Job { theirs });
    node.down_because("belongs to the job \"other\"").await;
}

#[tokio::test]
async fn a_member_cannot_speak_for_another_node() {
    let (violation, status) = refused_with(report::Kind::Hello(hello("b"))).await;
    assert!(matches!(violation, Violation::Node { .. }), "{violation}");
    assert_eq!(status.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_heartbeat_is_no_introduction() {
    let (violation, _) = refused_with(heartbeat()).await;
    assert!(matches!(violation, Violation::Unexpected(_)), "{violation}");
}

#[tokio::test]
async fn who_says_nothing_on_a_stream_is_sent_away() {
    let (mut leader, node) = stage().await;
    let mut mute = RawStream::open(&leader, &node).await;
    let violation = leader.refused("a").await;
    assert_eq!(violation, Violation::NoIntroduction(GREET_WITHIN));
    assert_eq!(mute.status().await.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn who_opens_no_stream_is_sent_away_and_who_leaves_by_itself_is_not_blamed() {
    let (mut leader, node) = stage().await;
    let other = Node::new("b");
    leader.accept(&[&node, &other]);
    let gone = client::dial::dial(&other.identity, leader.server.endpoint()).await;
    drop(gone.unwrap());
    let channel = client::dial::dial(&node.identity, leader.server.endpoint()).await;
    let event = timeout(PATIENCE, leader.events.recv()).await.unwrap();
    let Some(PeerEvent::Refused {
        node, violation, ..
    }) = event
    else {
        panic!("{event:?}")
    };
    assert_eq!(node, "a".into());
    assert_eq!(violation, Violation::NoIntroduction(GREET_WITHIN));
    drop(channel);
}

#[tokio::test]
async fn one_introduction_is_enough() {
    let (mut leader, node) = stage().await;
    let mut stream = introduced(&mut leader, &node).await;
    stream.send(report::Kind::Hello(hello("a"))).await;
    let reason = leader.closed("a").await;
    assert!(
        matches!(reason, CloseReason::Violation(Violation::Unexpected(_))),
        "{reason}"
    );
    assert_eq!(stream.status().await.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn an_oversize_message_ends_the_stream() {
    let (mut leader, node) = stage().await;
    let mut stream = introduced(&mut leader, &node).await;
    stream.send(piece(1, LARGEST_MESSAGE, false)).await;
    let reason = leader.closed("a").await;
    assert_eq!(reason, CloseReason::Violation(Violation::Oversize));
    assert_eq!(stream.status().await.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn evidence_that_nobody_asked_for_ends_the_stream() {
    let (mut leader, node) = stage().await;
    let stream = introduced(&mut leader, &node).await;
    stream.send(piece(5, 10, true)).await;
    let reason = leader.closed("a").await;
    assert_eq!(
        reason,
        CloseReason::Violation(Violation::NotAsked { id: 5 })
    );
}

#[tokio::test]
async fn more_evidence_than_asked_for_ends_the_stream() {
    let (mut leader, node) = stage().await;
    let mut stream = introduced(&mut leader, &node).await;
    let bounds = EvidenceBounds {
        generation: Generation(1),
        max_bytes: 20_000,
        within: PATIENCE,
    };
    let id = leader.server.request_evidence(&node.name, bounds).unwrap();
    // The welcome, then the request.
    for _ in 0..2 {
        stream.orders.message().await.unwrap().unwrap();
    }
    for _ in 0..3 {
        stream.send(piece(id, 10_000, false)).await;
    }
    let reason = leader.closed("a").await;
    let most = 20_000;
    assert_eq!(
        reason,
        CloseReason::Violation(Violation::TooMuchEvidence { id, most })
    );
}

#[tokio::test]
async fn a_flood_of_heartbeats_ends_the_stream() {
    let (mut leader, node) = stage().await;
    let stream = introduced(&mut leader, &node).await;
    let flood = async { while stream.send(heartbeat()).await {} };
    let (reason, ()) = tokio::join!(leader.closed("a"), flood);
    assert_eq!(reason, CloseReason::Violation(Violation::Flood));
}

#[tokio::test]
async fn bytes_that_are_no_message_end_the_stream_and_nothing_else() {
    let (mut leader, node) = stage().await;
    let mut good = Node::new("good");
    leader.accept(&[&node, &good]);
    good.follow(leader.target());
    leader.connected("good").await;
    let mut stream = introduced(&mut leader, &node).await;
    stream.send_bytes(vec![0xff; 100]).await;
    let reason = leader.closed("a").await;
    assert_eq!(reason, CloseReason::Violation(Violation::Garbage));
    assert_eq!(stream.status().await.code(), Code::InvalidArgument);
    leader.digest("good").await;
    good.up().await;
}

#[tokio::test]
async fn whatever_a_member_sends_its_streams_come_and_go_in_turn() {
    let (mut leader, node) = stage().await;
    let mut runner = TestRunner::deterministic();
    let messages = prop::collection::vec(message(), 1..20);
    let mut connected = 0;
    let mut violations = 0;
    for turn in 0..80 {
        let stream = RawStream::open(&leader, &node).await;
        if turn % 4 > 0 {
            stream.send(report::Kind::Hello(hello("a"))).await;
        }
        for bytes in messages.new_tree(&mut runner).unwrap().current() {
            if !stream.send_bytes(bytes).await {
                break;
            }
        }
        stream.finish().await;
        // Either it was refused, or it came and went.
        loop {
            match leader.next("a").await {
                PeerEvent::Connected { .. } => connected += 1,
                PeerEvent::Refused { .. } => {
                    violations += 1;
                    break;
                }
                PeerEvent::Closed { reason, .. } => {
                    violations += usize::from(matches!(reason, CloseReason::Violation(_)));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    println!("{connected} introductions, {violations} violations");
    assert!(connected > 10 && violations > 10);
}

/// A message, mostly one that can be decoded, sometimes with a few bytes changed.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![
        1 => Just(report::Kind::Hello(hello("a"))),
        9 => Just(heartbeat()),
        1 => (0..4_u64, 0..2_000_usize, any::<bool>()).prop_map(|(id, length, last)| piece(id, length, last)),
    ];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    (kind, changes).prop_map(|(kind, changes)| {
        let mut bytes = Report { kind: Some(kind) }.encode_to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    })
}

#[tokio::test]
async fn strangers_with_any_bytes_are_sent_away() {
    let (mut leader, node) = stage().await;
    let mut runner = TestRunner::deterministic();
    let bytes = prop::collection::vec(any::<u8>(), 1..2_000);
    for turn in 0..30 {
        let mut stream = TcpStream::connect(leader.address()).await.unwrap();
        let mut data = bytes.new_tree(&mut runner).unwrap().current();
        if turn % 2 == 0 {
            // The beginning of a TLS record.
            data.splice(0..0, [22, 3, 1, 0, 200]);
        }
        // The server may have closed already.
        drop(stream.write_all(&data).await);
        drop(stream.shutdown().await);
        let closing = stream.read_to_end(&mut data);
        drop(timeout(PATIENCE, closing).await.expect("it is closed"));
    }
    node.follow(leader.target());
    leader.connected("a").await;
}

#[tokio::test]
async fn strangers_that_say_nothing_hold_nobody_up() {
    let (mut leader, node) = stage().await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(leader.address()).await.unwrap());
    }
    node.follow(leader.target());
    leader.connected("a").await;
    for mut stream in silent {
        let closing = stream.read_u8();
        assert!(
            timeout(PATIENCE, closing)
                .await
                .expect("it is closed")
                .is_err()
        );
    }
}

#[tokio::test]
async fn a_leader_whose_events_are_not_taken_loses_digests_only() {
    let settings = PeerSettings {
        heartbeat: Duration::from_millis(50),
        ..PeerSettings::new("job")
    };
    let mut leader = Leader::with(settings).await;
    let nodes: Vec<Node> = (0..20).map(|at| Node::new(&format!("n{at}"))).collect();
    leader.accept(&nodes.iter().collect::<Vec<_>>());
    for node in &nodes {
        node.follow(leader.target());
    }
    let full = async {
        while leader.server.has_room_for_events() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, full).await.unwrap();
    drop(nodes);
    let mut balance: BTreeMap<NodeName, Vec<bool>> = BTreeMap::new();
    let taking = async {
        while balance
            .values()
            .filter(|turns| turns.last() == Some(&false))
            .count()
            < 20
        {
            match leader.events.recv().await.unwrap() {
                PeerEvent::Connected { node, .. } => balance.entry(node).or_default().push(true),
                PeerEvent::Closed { node, .. } => balance.entry(node).or_default().push(false),
                PeerEvent::Digest { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    };
    timeout(PATIENCE, taking).await.unwrap();
    assert!(
        balance.values().all(|turns| *turns == [true, false]),
        "{balance:?}"
    );
}
