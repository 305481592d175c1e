// SPDX-License-Identifier: Apache-2.0
//! The certificates of one run of a job: an authority that every node derives for itself, and what it says of this node.
//!
//! The authority's key follows from the nodes' common secret, so that nothing needs to be handed around: who has the secret
//! has the authority. It is never written anywhere. Keys are on the curve P-256, which every etcd understands; Ed25519
//! is unknown to those that were built with a Go before 1.13.
//!
//! The certificates are valid for ever: they end with the run that their authority was derived for, and the nodes' clocks
//! need not be right.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use p256::pkcs8::EncodePrivateKey as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SerialNumber, date_time_ymd,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use steadfast_coord::etcd::{EtcdClientCertificate, EtcdTls};

use super::secret::Secret;

/// Where the certificates are: PEM files that only this user can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateFiles {
    /// The authority's certificate.
    pub(crate) authority: PathBuf,
    /// This node's certificate, as a server and as a client.
    pub(crate) node: PathBuf,
    /// Its key.
    pub(crate) key: PathBuf,
}

/// Why there are no certificates.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    /// They could not be made.
    #[error("could not make the certificates of managed etcd for the host `{host}`")]
    Make {
        /// The host that they are for.
        host: String,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// They could not be written.
    #[error("could not write {path}")]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl CertificateFiles {
    /// The files in `directory`, there or not.
    pub(crate) fn inside(directory: &Path) -> CertificateFiles {
        CertificateFiles {
            authority: directory.join("authority.pem"),
            node: directory.join("node.pem"),
            key: directory.join("node.key"),
        }
    }

    /// Whether an earlier agent has made them.
    pub(crate) fn exist(&self) -> bool {
        [&self.authority, &self.node, &self.key]
            .iter()
            .all(|path| path.exists())
    }

    /// Makes them for the node that others know as `host`, and for one run of a job.
    pub(crate) fn make(
        &self,
        secret: &Secret,
        run: &str,
        host: &str,
    ) -> Result<(), CertificateError> {
        let made = pem_texts(secret, run, host).map_err(|source| CertificateError::Make {
            host: host.to_owned(),
            source,
        })?;
        let files = [&self.authority, &self.node, &self.key];
        for (path, text) in files.into_iter().zip(made) {
            write_private(path, &text).map_err(|source| CertificateError::Write {
                path: path.clone(),
                source,
            })?;
        }
        Ok(())
    }

    /// How this node's clients get in.
    pub(crate) fn client(&self) -> EtcdTls {
        EtcdTls {
            ca_file: Some(self.authority.clone()),
            client: Some(EtcdClientCertificate {
                certificate_file: self.node.clone(),
                key_file: self.key.clone(),
            }),
            server_name: None,
        }
    }
}

/// The authority's certificate, this node's, and its key.
fn pem_texts(secret: &Secret, run: &str, host: &str) -> Result<[String; 3], rcgen::Error> {
    let authority_key = authority_key(secret, run)?;
    let authority = authority(secret, run)?;
    let certificate = authority.self_signed(&authority_key)?;
    let issuer = Issuer::new(authority, authority_key);
    let node_key = KeyPair::generate()?;
    let mut node = lasting(vec![host.to_owned()])?;
    node.distinguished_name
        .push(DnType::CommonName, "steadfast node");
    node.use_authority_key_identifier_extension = true;
    node.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // A member is a server to its clients and peers, and a client to its peers.
    node.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let node = node.signed_by(&node_key, &issuer)?;
    Ok([certificate.pem(), node.pem(), node_key.serialize_pem()])
}

fn authority(secret: &Secret, run: &str) -> Result<CertificateParams, rcgen::Error> {
    let mut authority = lasting(Vec::new())?;
    // Authorities of different secrets have different names, so that a stranger's certificate is said to come from an
    // unknown authority, and not to have a broken signature.
    let name = secret.derive("authority name", run);
    authority.distinguished_name.push(
        DnType::CommonName,
        format!("steadfast {}", blake3::Hash::from_bytes(name).to_hex()),
    );
    // The same everywhere, as everything else of it but the signature is.
    authority.serial_number = Some(SerialNumber::from_slice(&[1]));
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(authority)
}

fn lasting(names: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut parameters = CertificateParams::new(names)?;
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.not_before = date_time_ymd(2000, 1, 1);
    // The date that RFC 5280 (section 4.1.2.5) has for what does not expire.
    parameters.not_after = date_time_ymd(9999, 12, 31);
    Ok(parameters)
}

/// The key that follows from the secret: the first of a series of derived numbers that is one.
fn authority_key(secret: &Secret, run: &str) -> Result<KeyPair, rcgen::Error> {
    for number in 0..=u8::MAX {
        let seed = secret.derive(&format!("authority key {number}"), run);
        // All but one in four thousand million numbers are keys.
        let Ok(key) = p256::SecretKey::from_slice(&seed) else {
            continue;
        };
        let encoded = key
            .to_pkcs8_der()
            .map_err(|_| rcgen::Error::KeyGenerationUnavailable)?;
        return KeyPair::try_from(&PrivatePkcs8KeyDer::from(encoded.as_bytes()));
    }
    Err(rcgen::Error::KeyGenerationUnavailable)
}

/// Replaces the file as a whole.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("draft");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&draft, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::managed_etcd::secret::{SecretSources, SecretText};

    fn secret(text: &str) -> Secret {
        let sources = SecretSources {
            text: Some(SecretText(text.into())),
            ..SecretSources::default()
        };
        sources.find().unwrap()
    }

    #[test]
    fn every_node_derives_the_same_authority_and_nobody_else_does() {
        let one = secret("0123456789abcdef");
        let key = |secret: &Secret, run: &str| {
            authority_key(secret, run)
                .unwrap()
                .public_key_raw()
                .to_vec()
        };
        assert_eq!(key(&one, "run"), key(&one, "run"));
        assert_ne!(key(&one, "run"), key(&one, "another run"));
        assert_ne!(key(&one, "run"), key(&secret("0123456789abcdeF"), "run"));
    }

    #[test]
    fn only_the_owner_can_read_the_files() {
        use std::os::unix::fs::MetadataExt as _;
        let directory = tempfile::tempdir().unwrap();
        let files = CertificateFiles::inside(directory.path());
        assert!(!files.exist());
        files
            .make(&secret("0123456789abcdef"), "run", "n1")
            .unwrap();
        assert!(files.exist());
        for entry in fs::read_dir(directory.path()).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().mode() & 0o777, 0o600);
        }
        let all: String = [&files.authority, &files.node, &files.key]
            .iter()
            .map(|path| fs::read_to_string(path).unwrap())
            .collect();
        assert_eq!(all.matches("PRIVATE KEY").count(), 2, "the node's alone");
    }
}
