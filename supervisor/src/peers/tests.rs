// SPDX-License-Identifier: Apache-2.0
//! Streams on the loopback interface: what a leader hears of nodes that come, go, fall silent, lie and misbehave.

mod certificates;
mod evidence;
mod following;
mod load;
mod misbehaviour;
mod proxy;
mod raw;
mod silence;

use std::net::SocketAddr;
use std::time::Duration;

use steadfast_core::{Incarnation, NodeName};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

/// Nothing here takes that long unless it never happens.
const PATIENCE: Duration = Duration::from_mins(1);

/// A leader's end, and what it was told.
struct Leader {
    server: PeerServer,
    events: mpsc::Receiver<PeerEvent>,
}

impl Leader {
    async fn new() -> Self {
        Self::with(PeerSettings::new("job")).await
    }

    async fn with(settings: PeerSettings) -> Self {
        Self::with_identity(settings, &PeerIdentity::generate().unwrap()).await
    }

    async fn with_identity(settings: PeerSettings, identity: &PeerIdentity) -> Self {
        let (server, events) = PeerServer::bind("127.0.0.1", identity, settings)
            .await
            .unwrap();
        Self { server, events }
    }

    fn address(&self) -> SocketAddr {
        self.server.endpoint().address.parse().unwrap()
    }

    fn target(&self) -> PeerTarget {
        PeerTarget {
            node: "leader".into(),
            endpoint: self.server.endpoint().clone(),
        }
    }

    /// The same, but by way of another address.
    fn target_by(&self, address: SocketAddr) -> PeerTarget {
        let mut target = self.target();
        target.endpoint.address = address.to_string();
        target
    }

    /// Accepts exactly these nodes.
    fn accept(&self, nodes: &[&Node]) {
        let member = |node: &&Node| (node.name.clone(), node.identity.fingerprint());
        self.server.set_members(nodes.iter().map(member));
    }

    /// The next event about that node that is no digest.
    async fn next(&mut self, node: &str) -> PeerEvent {
        self.find(node, |event| !matches!(event, PeerEvent::Digest { .. }))
            .await
    }

    /// The first event about that node that is wanted.
    async fn find(&mut self, node: &str, wanted: impl Fn(&PeerEvent) -> bool) -> PeerEvent {
        let mut others = Vec::new();
        let search = async {
            loop {
                let event = self.events.recv().await.expect("the server lives");
                if node_of(&event).0 == node && wanted(&event) {
                    return event;
                }
                others.push(event);
            }
        };
        match timeout(PATIENCE, search).await.ok() {
            Some(event) => event,
            None => panic!(
                "what was wanted of {node} did not happen; the last of many: {:?}",
                others.last()
            ),
        }
    }

    async fn digest(&mut self, node: &str) -> Digest {
        let event = self.find(node, |event| matches!(event, PeerEvent::Digest { .. }));
        let PeerEvent::Digest { digest, .. } = event.await else {
            unreachable!()
        };
        digest
    }

    async fn connected(&mut self, node: &str) {
        let event = self.next(node).await;
        assert!(matches!(event, PeerEvent::Connected { .. }), "{event:?}");
    }

    async fn closed(&mut self, node: &str) -> CloseReason {
        match self.next(node).await {
            PeerEvent::Closed { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }

    async fn refused(&mut self, node: &str) -> Violation {
        match self.next(node).await {
            PeerEvent::Refused { violation, .. } => violation,
            other => panic!("{other:?}"),
        }
    }
}

fn node_of(event: &PeerEvent) -> &NodeName {
    match event {
        PeerEvent::Connected { node, .. }
        | PeerEvent::Digest { node, .. }
        | PeerEvent::Silent { node, .. }
        | PeerEvent::Closed { node, .. }
        | PeerEvent::Refused { node, .. }
        | PeerEvent::Evidence { node, .. } => node,
    }
}

/// A node's end.
struct Node {
    name: NodeName,
    identity: PeerIdentity,
    target: watch::Sender<Option<PeerTarget>>,
    digests: watch::Sender<Digest>,
    orders: mpsc::Receiver<PeerOrder>,
    link: watch::Receiver<LinkState>,
    task: JoinHandle<()>,
}

impl Node {
    fn new(name: &str) -> Self {
        Self::with_introduction(introduction(name))
    }

    fn with_introduction(introduction: Introduction) -> Self {
        let identity = PeerIdentity::generate().unwrap();
        let name = introduction.node.clone();
        let client = PeerClient::new(identity.clone(), introduction);
        let link = client.link();
        let (target, targets) = watch::channel(None);
        let (digests, digest) = watch::channel(Digest::default());
        let (order_sink, orders) = mpsc::channel(8);
        let task = tokio::spawn(client.run(targets, digest, order_sink));
        Self {
            name,
            identity,
            target,
            digests,
            orders,
            link,
            task,
        }
    }

    fn follow(&self, target: PeerTarget) {
        self.target.send_replace(Some(target));
    }

    /// Waits until the stream is as wanted.
    async fn link_is(&mut self, wanted: impl Fn(&LinkState) -> bool) -> LinkState {
        let waiting = timeout(PATIENCE, self.link.wait_for(|link| wanted(link))).await;
        match waiting.ok().map(|link| link.unwrap().clone()) {
            Some(link) => link,
            None => panic!("the stream stays as it is: {:?}", self.link.borrow()),
        }
    }

    /// Why the stream does not stand, as soon as the reason says that.
    async fn down_because(&mut self, words: &str) {
        self.link_is(|link| matches!(link, LinkState::Down { reason } if reason.contains(words)))
            .await;
    }

    async fn up(&mut self) {
        self.link_is(|link| matches!(link, LinkState::Up { .. }))
            .await;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn introduction(name: &str) -> Introduction {
    Introduction {
        job: "job".to_owned(),
        node: name.into(),
        incarnation: Incarnation(7),
    }
}

/// A leader, and a node that is connected to it.
async fn pair() -> (Leader, Node) {
    let mut leader = Leader::new().await;
    let mut node = Node::new("a");
    leader.accept(&[&node]);
    node.follow(leader.target());
    leader.connected("a").await;
    node.up().await;
    (leader, node)
}
