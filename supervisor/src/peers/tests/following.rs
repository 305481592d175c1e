// SPDX-License-Identifier: Apache-2.0
//! What nodes report, and how they follow the leadership.

use steadfast_core::{Generation, Instant};
use steadfast_proto::v1::{LeaseState, TrainingPhase};

use super::*;

#[tokio::test]
async fn a_digest_arrives_as_it_was_meant() {
    let (mut leader, node) = pair().await;
    let stepped_at = now();
    let sent = Digest {
        generation: Generation(4),
        step: Some((1234, stepped_at)),
        phase: TrainingPhase::Checkpoint,
        lease: LeaseState::Held,
        movement: Movement::Moving,
    };
    node.digests.send_replace(sent);
    let wanted = |event: &PeerEvent| matches!(event, PeerEvent::Digest { digest, .. } if digest.generation == Generation(4));
    let PeerEvent::Digest { at, digest, .. } = leader.find("a", wanted).await else {
        unreachable!()
    };
    assert_eq!((digest.phase, digest.lease), (sent.phase, sent.lease));
    assert_eq!(digest.movement, sent.movement);
    let (step, seen_at) = digest.step.unwrap();
    assert_eq!(step, 1234);
    // Both ends have the same clock here: the step seems no older than it is, and not from the future.
    assert!(stepped_at <= seen_at && seen_at <= at);
}

#[tokio::test]
async fn a_node_says_which_life_it_is() {
    let mut leader = Leader::new().await;
    let node = Node::new("a");
    leader.accept(&[&node]);
    node.follow(leader.target());
    let before = now();
    let PeerEvent::Connected {
        incarnation, at, ..
    } = leader.next("a").await
    else {
        panic!("not connected")
    };
    assert_eq!(incarnation, Incarnation(7));
    assert!(at >= before && before > Instant::default());
}

#[tokio::test]
async fn nodes_go_over_to_the_next_leader_and_leave_the_last_one() {
    let (mut first, mut node) = pair().await;
    let mut second = Leader::new().await;
    second.accept(&[&node]);
    node.follow(second.target());
    second.connected("a").await;
    first.closed("a").await;
    node.up().await;
    node.target.send_replace(None);
    second.closed("a").await;
    node.link_is(|link| *link == LinkState::NoTarget).await;
}

#[tokio::test]
async fn a_leader_that_ends_lets_its_nodes_try_again() {
    let (mut leader, mut node) = pair().await;
    let target = leader.target();
    drop(leader.server);
    node.link_is(|link| matches!(link, LinkState::Down { .. }))
        .await;
    // What had happened is still told, and then nothing more.
    let end = async { while leader.events.recv().await.is_some() {} };
    timeout(PATIENCE, end).await.unwrap();
    node.down_because(&target.endpoint.address).await;
}

#[tokio::test]
async fn a_client_ends_with_its_agent() {
    let (_leader, mut node) = pair().await;
    let (_, orders) = mpsc::channel(1);
    // The receiver of the orders is gone.
    node.orders = orders;
    timeout(PATIENCE, &mut node.task).await.unwrap().unwrap();

    let (_leader, mut node) = pair().await;
    let (target, _) = watch::channel(None);
    node.target = target;
    timeout(PATIENCE, &mut node.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_new_agent_of_a_node_takes_the_place_of_the_old_one() {
    let (mut leader, old) = pair().await;
    let new = Node::new("a");
    // The record names the new certificate before the old connection is known to be dead.
    leader
        .server
        .set_member(&"a".into(), Some(new.identity.fingerprint()));
    assert_eq!(leader.closed("a").await, CloseReason::Replaced);
    new.follow(leader.target());
    leader.connected("a").await;
    drop(old);
    leader.digest("a").await;
}

#[tokio::test]
async fn a_second_stream_of_a_node_ends_the_first_one() {
    let (mut leader, mut node) = pair().await;
    let client = PeerClient::new(node.identity.clone(), introduction("a"));
    let (target, targets) = watch::channel(Some(leader.target()));
    let (_digests, digest) = watch::channel(Digest::default());
    let (order_sink, _orders) = mpsc::channel(8);
    let twin = tokio::spawn(client.run(targets, digest, order_sink));
    assert_eq!(leader.closed("a").await, CloseReason::Replaced);
    leader.connected("a").await;
    // Both come again and again; each time one is told to go before the other comes.
    node.link_is(|link| matches!(link, LinkState::Down { .. }))
        .await;
    for _ in 0..3 {
        assert_eq!(leader.closed("a").await, CloseReason::Replaced);
        leader.connected("a").await;
    }
    drop(target);
    timeout(PATIENCE, twin).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_stream_of_a_node_whose_record_is_gone_stays() {
    let (mut leader, node) = pair().await;
    leader.accept(&[]);
    leader.server.set_member(&node.name, None);
    let goes_on = Digest {
        generation: Generation(9),
        ..Digest::default()
    };
    node.digests.send_replace(goes_on);
    let wanted = |event: &PeerEvent| {
        assert!(matches!(event, PeerEvent::Digest { .. }), "{event:?}");
        matches!(event, PeerEvent::Digest { digest, .. } if digest.generation == Generation(9))
    };
    leader.find("a", wanted).await;
}
