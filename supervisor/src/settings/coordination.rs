// SPDX-License-Identifier: Apache-2.0
//! Where the nodes of a job meet.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_coord::etcd::{
    EtcdClientCertificate, EtcdCredentials, EtcdSettings, EtcdUriError, PasswordSource,
};

/// Where the job's store is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Coordination {
    /// Inside this supervisor: the job has this node alone, and nothing can cut it off from its store.
    Embedded,
    /// In an etcd that somebody else runs.
    Etcd(EtcdAddress),
    /// In an etcd that the supervisors of the job run themselves.
    Managed(ManagedEtcd),
}

/// Where an etcd is, and how to get in. It holds names of files and of variables, never what is in them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EtcdAddress {
    /// `etcd://` or `etcds://` with endpoints and prefix; it was read without an error when the settings were made.
    pub(crate) uri: String,
    /// PEM file with the certificates that etcd's must come from; absent takes those that the system trusts.
    pub(crate) ca_file: Option<PathBuf>,
    /// What to show etcd of ourselves.
    pub(crate) certificate: Option<CertificateFiles>,
    /// Who to log in as.
    pub(crate) login: Option<EtcdLogin>,
}

/// A certificate and its key, both PEM files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CertificateFiles {
    /// The certificate, and those between it and the root.
    pub(crate) certificate: PathBuf,
    /// Its private key.
    pub(crate) key: PathBuf,
}

/// A user of etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EtcdLogin {
    /// The user's name.
    pub(crate) user: String,
    /// Where the password is.
    pub(crate) password: PasswordPlace,
}

/// Where a password is to be read from, each time that it is needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PasswordPlace {
    /// A file with nothing else in it.
    File(PathBuf),
    /// An environment variable of the supervisor.
    Environment(String),
}

/// An etcd that the supervisors of the job run among themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManagedEtcd {
    /// Names or addresses of the nodes, each once, in an order that is the same on all of them. `HOST:PORT:PORT` has
    /// other ports, for clients and for the other servers, than those that follow from the job's name.
    pub(crate) hosts: Vec<String>,
    /// On how many of the hosts, from the first on, a server runs: 1, 3 or 5, and no more than there are hosts.
    pub(crate) servers: u32,
    /// The place of this node in `hosts`.
    pub(crate) this_node: u32,
}

impl Coordination {
    /// Whether this node can be cut off from the store, so that its workers may only live under a lease.
    pub(crate) fn is_fenced(&self) -> bool {
        !matches!(self, Self::Embedded)
    }
}

impl EtcdAddress {
    /// What a connection to this etcd needs, for a node whose lease is never shorter than `lease`: a renewal that fails
    /// must leave time for another try.
    ///
    /// # Errors
    /// When the URI is not understood, which cannot be once the settings are made.
    pub(crate) fn settings(&self, lease: Duration) -> Result<EtcdSettings, EtcdUriError> {
        let mut settings = EtcdSettings::from_uri(&self.uri)?;
        settings.lease_timeout = lease / 3;
        if let Some(tls) = settings.tls.as_mut() {
            tls.ca_file.clone_from(&self.ca_file);
            tls.client = self
                .certificate
                .as_ref()
                .map(|files| EtcdClientCertificate {
                    certificate_file: files.certificate.clone(),
                    key_file: files.key.clone(),
                });
        }
        settings.credentials = self.login.as_ref().map(|login| EtcdCredentials {
            user: login.user.clone(),
            password: match &login.password {
                PasswordPlace::File(path) => PasswordSource::File(path.clone()),
                PasswordPlace::Environment(name) => PasswordSource::Environment(name.clone()),
            },
        });
        Ok(settings)
    }
}
