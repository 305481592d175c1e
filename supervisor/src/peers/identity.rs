// SPDX-License-Identifier: Apache-2.0
//! What an agent proves itself by: a key pair and a certificate, made when it starts and gone when it ends.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ring::digest;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};

/// The subject of every certificate. Nobody reads it: certificates are known by their fingerprints.
const SUBJECT: &str = "steadfast-agent";

/// Why an agent could not make its certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    /// The key or the certificate.
    #[error("failed to make a certificate for the talk between agents")]
    Certificate(#[source] rcgen::Error),
    /// The TLS library does not take the key that was just made.
    #[error("failed to use the key for the talk between agents")]
    Key(#[source] rustls::Error),
}

/// Key and certificate of one agent. The key is never written anywhere.
#[derive(Clone)]
pub(crate) struct PeerIdentity {
    pub(super) certified: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
}

/// SHA-256 of a certificate in DER; what `openssl x509 -fingerprint -sha256` shows. As text: 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Fingerprint([u8; 32]);

/// Where an agent listens and how to know it: what stands in its member record, and in the leader's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentEndpoint {
    /// Host name or address, and port: `node7:41234`, `[2001:db8::7]:41234`.
    pub(crate) address: String,
    /// The certificate that answers there.
    pub(crate) certificate: Fingerprint,
}

/// A text that is no fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a certificate's fingerprint has 64 hexadecimal digits")]
pub(crate) struct NoFingerprint;

impl PeerIdentity {
    /// A new key pair, and a certificate that it has signed itself.
    ///
    /// # Errors
    ///
    /// When the system has no randomness to give.
    pub(crate) fn generate() -> Result<Self, IdentityError> {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519)
            .map_err(IdentityError::Certificate)?;
        let certificate = rcgen::CertificateParams::new([SUBJECT.to_owned()])
            .and_then(|parameters| parameters.self_signed(&key))
            .map_err(IdentityError::Certificate)?;
        let certificate = certificate.der().clone();
        let signer = any_eddsa_type(&PrivatePkcs8KeyDer::from(key.serialize_der()))
            .map_err(IdentityError::Key)?;
        Ok(Self {
            fingerprint: Fingerprint::of(&certificate),
            certified: Arc::new(CertifiedKey::new(vec![certificate], signer)),
        })
    }

    /// Fingerprint of the certificate.
    pub(crate) const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl fmt::Debug for PeerIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PeerIdentity")
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

impl Fingerprint {
    /// The fingerprint of a certificate.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Self {
        let digest = digest::digest(&digest::SHA256, certificate);
        let mut bytes = [0; 32];
        for (to, from) in bytes.iter_mut().zip(digest.as_ref()) {
            *to = *from;
        }
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for Fingerprint {
    type Err = NoFingerprint;

    fn from_str(text: &str) -> Result<Self, NoFingerprint> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(NoFingerprint);
        }
        let value = |digit: u8| {
            char::from(digit)
                .to_digit(16)
                .and_then(|value| u8::try_from(value).ok())
                .ok_or(NoFingerprint)
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = NoFingerprint;

    fn try_from(text: String) -> Result<Self, NoFingerprint> {
        text.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_differ_and_fingerprints_survive_json() {
        let one = PeerIdentity::generate().unwrap();
        let other = PeerIdentity::generate().unwrap();
        assert_ne!(one.fingerprint(), other.fingerprint());
        let endpoint = AgentEndpoint {
            address: "[::1]:9".to_owned(),
            certificate: one.fingerprint(),
        };
        let json = serde_json::to_string(&endpoint).unwrap();
        assert_eq!(
            serde_json::from_str::<AgentEndpoint>(&json).unwrap(),
            endpoint
        );
        let text = one.fingerprint().to_string();
        assert_eq!(text.len(), 64);
        assert!(json.contains(&text));
    }

    #[test]
    fn other_texts_are_no_fingerprints() {
        let long = "0".repeat(66);
        let foreign = "g".repeat(64);
        let sign = format!("+{}", "0".repeat(63));
        let wide = "é".repeat(32);
        for text in ["", "00", long.as_str(), &foreign, &sign, &wide] {
            assert_eq!(text.parse::<Fingerprint>(), Err(NoFingerprint), "{text}");
        }
    }
}
