// SPDX-License-Identifier: Apache-2.0
//! Nodes that fall silent, and nodes that close.

use super::proxy::{Mode, Proxy};
use super::*;

fn is_silent(event: &PeerEvent) -> bool {
    matches!(event, PeerEvent::Silent { .. })
}

#[tokio::test]
async fn a_node_whose_packets_are_lost_is_silent_and_comes_back_on_the_same_stream() {
    let mut leader = Leader::new().await;
    let proxy = Proxy::to(leader.address()).await;
    let node = Node::new("a");
    leader.accept(&[&node]);
    node.follow(leader.target_by(proxy.address));
    leader.connected("a").await;
    leader.digest("a").await;

    proxy.set(Mode::Hold);
    let event = leader.find("a", is_silent).await;
    let PeerEvent::Silent { silent_for, .. } = event else {
        unreachable!()
    };
    println!("noticed after {silent_for:?}");
    assert!(silent_for >= leader_settings().silent_after);

    proxy.set(Mode::Pass);
    leader.digest("a").await;
    // A second silence is said again.
    proxy.set(Mode::Hold);
    let event = leader.next("a").await;
    assert!(is_silent(&event), "{event:?}");
}

#[tokio::test]
async fn a_silent_stream_is_given_up_and_the_node_comes_back_on_another() {
    let settings = PeerSettings {
        dropped_after: Duration::from_secs(3),
        ..leader_settings()
    };
    let mut leader = Leader::with(settings).await;
    let proxy = Proxy::to(leader.address()).await;
    let node = Node::new("a");
    leader.accept(&[&node]);
    node.follow(leader.target_by(proxy.address));
    leader.connected("a").await;
    proxy.set(Mode::Hold);
    let event = leader.next("a").await;
    assert!(is_silent(&event), "{event:?}");
    let reason = leader.closed("a").await;
    assert!(matches!(reason, CloseReason::Silent(_)), "{reason:?}");
    proxy.set(Mode::Pass);
    leader.connected("a").await;
    leader.digest("a").await;
}

#[tokio::test]
async fn a_leader_that_was_stopped_itself_calls_nobody_silent() {
    let settings = PeerSettings {
        silent_after: Duration::from_millis(600),
        heartbeat: Duration::from_millis(300),
        ..leader_settings()
    };
    let mut leader = Leader::with(settings).await;
    let target = leader.target();
    let node = std::thread::spawn(move || nodes_thread(target));
    let identity = node.join().unwrap();
    let (fingerprint, stop) = identity;
    leader.server.set_member(&"a".into(), Some(fingerprint));
    leader.connected("a").await;
    leader.digest("a").await;
    for _ in 0..3 {
        // The whole runtime of the leader stands still, as if the agent had been stopped.
        #[expect(
            clippy::disallowed_methods,
            reason = "standing still is what is tested"
        )]
        std::thread::sleep(Duration::from_secs(1));
        for _ in 0..3 {
            let event = leader.find("a", |_| true).await;
            assert!(matches!(event, PeerEvent::Digest { .. }), "{event:?}");
        }
    }
    stop.send(()).unwrap();
}

/// A node on a runtime of its own, which goes on when the test's stands still.
fn nodes_thread(target: PeerTarget) -> (Fingerprint, tokio::sync::oneshot::Sender<()>) {
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let node = Node::new("a");
            tell.send(node.identity.fingerprint()).unwrap();
            node.follow(target);
            // Also ends when the test has failed.
            drop(stopped.await);
        });
    });
    (told.recv().unwrap(), stop)
}

#[tokio::test]
async fn a_node_that_closes_is_seen_to_close() {
    let (mut leader, node) = pair().await;
    drop(node);
    let reason = leader.closed("a").await;
    assert!(
        matches!(reason, CloseReason::ByPeer | CloseReason::Broken(_)),
        "{reason:?}"
    );
}

#[tokio::test]
async fn a_connection_that_breaks_is_seen_and_made_again() {
    let mut leader = Leader::new().await;
    let proxy = Proxy::to(leader.address()).await;
    let mut node = Node::new("a");
    leader.accept(&[&node]);
    node.follow(leader.target_by(proxy.address));
    leader.connected("a").await;
    proxy.set(Mode::Cut);
    let reason = leader.closed("a").await;
    assert!(matches!(reason, CloseReason::Broken(_)), "{reason:?}");
    node.link_is(|link| matches!(link, LinkState::Down { .. }))
        .await;
    proxy.set(Mode::Pass);
    leader.connected("a").await;
    node.up().await;
}

#[tokio::test]
async fn a_node_notices_a_leader_that_is_silent() {
    let mut leader = Leader::new().await;
    let proxy = Proxy::to(leader.address()).await;
    let mut node = Node::new("a");
    leader.accept(&[&node]);
    node.follow(leader.target_by(proxy.address));
    leader.connected("a").await;
    node.up().await;
    proxy.set(Mode::Hold);
    node.down_because("broke").await;
}

fn leader_settings() -> PeerSettings {
    PeerSettings::new("job")
}
