// SPDX-License-Identifier: Apache-2.0
//! Mutual TLS without authorities: each end knows the other's certificate beforehand.
//!
//! A certificate is accepted for its fingerprint alone, so its names and dates mean nothing. That the other end holds the
//! certificate's key is proved by the signature of the handshake, which is verified as usual. Sessions are never resumed,
//! so that each connection shows its certificate.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, ServerConfig, SignatureScheme,
};
use steadfast_core::NodeName;

use super::identity::{Fingerprint, PeerIdentity};

/// What is spoken inside: HTTP/2.
const PROTOCOL: &[u8] = b"h2";

/// The certificates that a server accepts, and whose they are. Clones share the same set.
#[derive(Debug, Clone, Default)]
pub(super) struct AcceptedCertificates(Arc<RwLock<BTreeMap<Fingerprint, NodeName>>>);

impl AcceptedCertificates {
    /// The node that the certificate belongs to.
    pub(super) fn owner(&self, certificate: &Fingerprint) -> Option<NodeName> {
        let accepted = self.0.read().unwrap_or_else(PoisonError::into_inner);
        accepted.get(certificate).cloned()
    }

    /// Accepts these and no others.
    pub(super) fn replace(&self, accepted: BTreeMap<Fingerprint, NodeName>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = accepted;
    }

    /// Accepts that certificate for that node, or none.
    pub(super) fn set(&self, node: &NodeName, certificate: Option<Fingerprint>) {
        let mut accepted = self.0.write().unwrap_or_else(PoisonError::into_inner);
        accepted.retain(|_, owner| owner != node);
        if let Some(certificate) = certificate {
            accepted.insert(certificate, node.clone());
        }
    }
}

/// How a server speaks TLS.
pub(super) fn server_config(
    identity: &PeerIdentity,
    accepted: AcceptedCertificates,
) -> Result<ServerConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(MembersOnly {
        accepted,
        provider: Arc::clone(&provider),
    });
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(
            &identity.certified,
        ))));
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// How a client speaks TLS with the server that has that certificate.
pub(super) fn client_config(
    identity: &PeerIdentity,
    expected: Fingerprint,
) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(ThatServerOnly {
        expected,
        provider: Arc::clone(&provider),
    });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(
            &identity.certified,
        ))));
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

/// What either end says of a certificate that it does not accept. The other end sees the alert `access_denied`.
const NOT_ACCEPTED: Error =
    Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);

#[derive(Debug)]
struct MembersOnly {
    accepted: AcceptedCertificates,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for MembersOnly {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.accepted.owner(&Fingerprint::of(end_entity)) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None => Err(NOT_ACCEPTED),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOfferedOrEnabled.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

#[derive(Debug)]
struct ThatServerOnly {
    expected: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ThatServerOnly {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if Fingerprint::of(end_entity) == self.expected {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(NOT_ACCEPTED)
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOfferedOrEnabled.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}
