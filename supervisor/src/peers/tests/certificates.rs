// SPDX-License-Identifier: Apache-2.0
//! Who is let in, and whom a node talks to.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

#[tokio::test]
async fn nobody_is_let_in_before_its_record_is_seen() {
    let mut leader = Leader::new().await;
    let mut node = Node::new("a");
    node.follow(leader.target());
    node.down_because("does not know this agent's certificate")
        .await;
    leader.accept(&[&node]);
    leader.connected("a").await;
    node.up().await;
}

#[tokio::test]
async fn a_certificate_that_was_replaced_is_refused() {
    let mut leader = Leader::new().await;
    let mut old = Node::new("a");
    let new = Node::new("a");
    leader.accept(&[&old]);
    leader.accept(&[&new]);
    old.follow(leader.target());
    old.down_because("does not know this agent's certificate")
        .await;
    new.follow(leader.target());
    leader.connected("a").await;
}

#[tokio::test]
async fn a_node_talks_to_no_other_certificate_than_the_one_in_the_record() {
    let mut leader = Leader::new().await;
    let mut node = Node::new("a");
    leader.accept(&[&node]);
    let mut target = leader.target();
    target.endpoint.certificate = PeerIdentity::generate().unwrap().fingerprint();
    node.follow(target);
    node.down_because("another certificate answers").await;
    assert!(leader.events.try_recv().is_err());
    node.follow(leader.target());
    leader.connected("a").await;
}

/// Shows a certificate that is accepted, without having its key.
fn thief(owner: &PeerIdentity) -> PeerIdentity {
    let mut thief = PeerIdentity::generate().unwrap();
    let stolen = rustls::sign::CertifiedKey::new(
        owner.certified.cert.clone(),
        Arc::clone(&thief.certified.key),
    );
    thief.certified = Arc::new(stolen);
    thief
}

#[tokio::test]
async fn a_certificate_without_its_key_opens_no_door() {
    let leader = Leader::new().await;
    let node = Node::new("a");
    leader.accept(&[&node]);
    let stream = TcpStream::connect(leader.address()).await.unwrap();
    let certificate = leader.server.endpoint().certificate;
    let config = tls::client_config(&thief(&node.identity), certificate).unwrap();
    let name = ServerName::try_from("any.invalid").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap();
    // The client is done before the server has judged.
    let error = stream.read_u8().await.unwrap_err();
    assert!(error.to_string().contains("alert"), "{error}");
}

#[tokio::test]
async fn a_leaders_certificate_without_its_key_is_no_leader() {
    let real = PeerIdentity::generate().unwrap();
    let accepted = tls::AcceptedCertificates::default();
    let mut node = Node::new("a");
    accepted.set(&node.name, Some(node.identity.fingerprint()));
    let config = tls::server_config(&thief(&real), accepted).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = AgentEndpoint {
        address: listener.local_addr().unwrap().to_string(),
        certificate: real.fingerprint(),
    };
    let (stream, ()) = tokio::join!(listener.accept(), async {
        node.follow(PeerTarget {
            node: "leader".into(),
            endpoint,
        });
    });
    let (stream, _) = stream.unwrap();
    let accepting = TlsAcceptor::from(Arc::new(config)).accept(stream).await;
    assert!(accepting.is_err());
    node.link_is(|link| matches!(link, LinkState::Down { .. }))
        .await;
}

#[tokio::test]
async fn a_stranger_without_certificate_is_sent_away() {
    let leader = Leader::new().await;
    let stream = TcpStream::connect(leader.address()).await.unwrap();
    let identity = PeerIdentity::generate().unwrap();
    let certificate = leader.server.endpoint().certificate;
    let mut config = tls::client_config(&identity, certificate).unwrap();
    config.client_auth_cert_resolver = Arc::new(Nothing);
    let name = ServerName::try_from("any.invalid").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap();
    let error = stream.read_u8().await.unwrap_err();
    assert!(error.to_string().contains("alert"), "{error}");
}

#[derive(Debug)]
struct Nothing;

impl rustls::client::ResolvesClientCert for Nothing {
    fn resolve(
        &self,
        _hints: &[&[u8]],
        _schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}
