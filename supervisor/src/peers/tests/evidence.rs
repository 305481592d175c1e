// SPDX-License-Identifier: Apache-2.0
//! Asking nodes for evidence.

use std::time::Duration;

use steadfast_core::Generation;
use tokio::sync::oneshot;

use super::*;
use crate::peers::server::OrderError;

fn bounds(max_bytes: u64) -> EvidenceBounds {
    EvidenceBounds {
        generation: Generation(3),
        max_bytes,
        within: PATIENCE,
    }
}

/// The order that the node got.
async fn order(node: &mut Node) -> (u64, oneshot::Sender<Result<Vec<u8>, String>>) {
    let order = timeout(PATIENCE, node.orders.recv())
        .await
        .unwrap()
        .unwrap();
    let PeerOrder::Evidence {
        generation,
        max_bytes,
        answer,
        ..
    } = order;
    assert_eq!(generation, Generation(3));
    (max_bytes, answer)
}

/// The answer to that request.
async fn answer(leader: &mut Leader, request: u64) -> Result<EvidenceBundle, EvidenceFailure> {
    match leader.next("a").await {
        PeerEvent::Evidence { id, outcome, .. } => {
            assert_eq!(id, request);
            outcome
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn evidence_of_any_size_within_the_bounds_arrives_whole() {
    let (mut leader, mut node) = pair().await;
    let largest = usize::try_from(LARGEST_EVIDENCE).unwrap();
    for size in [0, 1, EVIDENCE_PIECE, EVIDENCE_PIECE + 1, largest] {
        let request = leader
            .server
            .request_evidence(&node.name, bounds(u64::MAX))
            .unwrap();
        let (most, sink) = order(&mut node).await;
        assert_eq!(most, LARGEST_EVIDENCE);
        let data: Vec<u8> = (0..size)
            .map(|at| u8::try_from(at % 251).unwrap())
            .collect();
        sink.send(Ok(data.clone())).unwrap();
        let bundle = answer(&mut leader, request).await.unwrap();
        assert!(bundle.data == data, "{size} bytes");
    }
}

#[tokio::test]
async fn a_node_that_has_nothing_says_why() {
    let (mut leader, mut node) = pair().await;
    let ask = |leader: &Leader, bounds| {
        let asked = leader.server.request_evidence(&"a".into(), bounds);
        asked.unwrap()
    };
    let request = ask(&leader, bounds(10));
    let (_, sink) = order(&mut node).await;
    sink.send(Err("no such generation".to_owned())).unwrap();
    let failure = answer(&mut leader, request).await.unwrap_err();
    assert_eq!(failure.0, "no such generation");

    let request = ask(&leader, bounds(10));
    let (_, sink) = order(&mut node).await;
    sink.send(Ok(vec![0; 11])).unwrap();
    let failure = answer(&mut leader, request).await.unwrap_err();
    assert!(failure.0.contains("11 bytes"), "{failure}");

    let request = ask(&leader, bounds(10));
    drop(order(&mut node).await);
    let failure = answer(&mut leader, request).await.unwrap_err();
    assert!(failure.0.contains("given up"), "{failure}");

    let hasty = EvidenceBounds {
        within: Duration::from_millis(20),
        ..bounds(10)
    };
    let request = ask(&leader, hasty);
    let _kept = order(&mut node).await;
    let failure = answer(&mut leader, request).await.unwrap_err();
    assert!(failure.0.contains("within 20ms"), "{failure}");
}

#[tokio::test]
async fn a_node_is_asked_only_so_much_at_a_time() {
    let (mut leader, mut node) = pair().await;
    let stranger = leader.server.request_evidence(&"b".into(), bounds(1));
    assert_eq!(stranger, Err(OrderError::NotConnected));
    // Nobody takes the orders, so nothing is answered.
    let mut asked = 0;
    let refused = loop {
        match leader.server.request_evidence(&node.name, bounds(1)) {
            Ok(_) => asked += 1,
            Err(error) => break error,
        }
        tokio::task::yield_now().await;
        assert!(asked <= 2 * MOST_OPEN_REQUESTS);
    };
    assert_eq!(refused, OrderError::Busy);
    // All of them are answered in the end.
    for _ in 0..asked {
        let (_, sink) = order(&mut node).await;
        sink.send(Ok(vec![1])).unwrap();
        let event = leader.next("a").await;
        assert!(
            matches!(event, PeerEvent::Evidence { outcome: Ok(_), .. }),
            "{event:?}"
        );
    }
}

#[tokio::test]
async fn all_evidence_together_is_bounded_until_it_is_dropped() {
    let (mut leader, mut node) = pair().await;
    let mut kept = Vec::new();
    let refused = loop {
        let asked = leader.server.request_evidence(&node.name, bounds(u64::MAX));
        let request = match asked {
            Ok(request) => request,
            Err(error) => break error,
        };
        let (_, sink) = order(&mut node).await;
        sink.send(Ok(vec![1])).unwrap();
        kept.push(answer(&mut leader, request).await.unwrap());
        assert!(kept.len() <= 16);
    };
    assert_eq!((refused, kept.len()), (OrderError::NoRoom, 16));
    kept.pop();
    leader
        .server
        .request_evidence(&node.name, bounds(u64::MAX))
        .unwrap();
}

#[tokio::test]
async fn a_stream_that_ends_gives_back_the_room_of_what_it_owed() {
    let (mut leader, node) = pair().await;
    for _ in 0..MOST_OPEN_REQUESTS {
        leader
            .server
            .request_evidence(&node.name, bounds(u64::MAX))
            .unwrap();
    }
    drop(node);
    leader.closed("a").await;
    let node = Node::new("b");
    leader.accept(&[&node]);
    node.follow(leader.target());
    leader.connected("b").await;
    // All sixteen of the largest answers fit again, four at a time and as many waiting.
    let room = || leader.server.evidence_room();
    let freed = async {
        while room() < 64 * 1024 * 1024 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, freed).await.unwrap();
}
