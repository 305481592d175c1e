// SPDX-License-Identifier: Apache-2.0
//! Where etcd is, and how to get in.

mod uri;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What an etcd store must know. [`EtcdSettings::from_uri`] makes it from what people write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdSettings {
    /// Members of one etcd cluster, at least one. They are tried until one answers.
    pub endpoints: Vec<EtcdEndpoint>,
    /// What all keys in etcd begin with, before what the job's keys begin with; empty, or `/` and more.
    pub prefix: String,
    /// How connections are secured; `None` leaves them in the clear.
    pub tls: Option<EtcdTls>,
    /// Who to log in as; `None` does not log in.
    pub credentials: Option<EtcdCredentials>,
    /// How long a request may take in all, other endpoints included.
    pub request_timeout: Duration,
    /// The same for requests about leases. A lease that could not be renewed in time costs a node its workers, so that they
    /// must not wait for an endpoint that does not answer.
    pub lease_timeout: Duration,
    /// How long a connection with a watch may be silent before the other end is asked whether it is still there. etcd
    /// hangs up on who asks more often than every 5 s, unless it was started with another `--grpc-keepalive-min-time`.
    pub keepalive_interval: Duration,
    /// How long to wait for the answer to that before the connection is given up.
    pub keepalive_timeout: Duration,
}

/// One member of an etcd cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EtcdEndpoint {
    /// Name or address; an IPv6 address without brackets.
    pub host: String,
    /// Client port.
    pub port: u16,
}

/// How connections to etcd are secured. Files are read for every connection, so a certificate that was replaced in
/// time is used without a restart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EtcdTls {
    /// PEM file with the certificates that etcd's certificate must come from; `None` takes the system's.
    pub ca_file: Option<PathBuf>,
    /// What to show etcd of ourselves, where it asks for client certificates.
    pub client: Option<EtcdClientCertificate>,
    /// The name that etcd's certificate must be for; `None` takes the endpoint's host.
    pub server_name: Option<String>,
}

/// Our own certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdClientCertificate {
    /// PEM file with the certificate and those between it and the root.
    pub certificate_file: PathBuf,
    /// PEM file with its private key.
    pub key_file: PathBuf,
}

/// Who to log in as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdCredentials {
    /// Name of the user.
    pub user: String,
    /// Where the password is. It is read for every login, so a password that was changed in its file is used without
    /// a restart.
    pub password: PasswordSource,
}

/// Where a password is. Never on the command line, where everybody on the machine can see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PasswordSource {
    /// A file with nothing else in it; one line end at its end does not count.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
}

/// Why settings of an etcd store do not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to read `{uri}` as the address of etcd: {reason}")]
pub struct EtcdUriError {
    /// What was given, without a password.
    pub uri: String,
    /// What is wrong with it, and what to write instead.
    pub reason: String,
}

impl EtcdSettings {
    /// How long a request may take unless said otherwise.
    pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
    /// How long a watched connection may be silent unless said otherwise: what every etcd allows, and a little more.
    pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(6);
    /// How long the other end may take to answer unless said otherwise.
    pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

    /// Settings for these endpoints, everything else as usual: no prefix, no TLS, nobody logged in.
    pub fn new(endpoints: Vec<EtcdEndpoint>) -> Self {
        Self {
            endpoints,
            prefix: String::new(),
            tls: None,
            credentials: None,
            request_timeout: Self::REQUEST_TIMEOUT,
            lease_timeout: Self::REQUEST_TIMEOUT,
            keepalive_interval: Self::KEEPALIVE_INTERVAL,
            keepalive_timeout: Self::KEEPALIVE_TIMEOUT,
        }
    }

    /// Settings from `etcd://HOST[:PORT],...[/PREFIX]`; `etcds://` for TLS. The port is 2379 unless given.
    ///
    /// # Errors
    /// When it is not of that form, with what to write instead.
    pub fn from_uri(uri: &str) -> Result<Self, EtcdUriError> {
        uri::parse(uri).map_err(|reason| EtcdUriError {
            uri: uri::without_password(uri),
            reason,
        })
    }

    /// What cannot work, in words.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.endpoints.is_empty() {
            return Err("the settings of etcd name no endpoint".to_owned());
        }
        let times = [
            ("request timeout", self.request_timeout),
            ("keepalive interval", self.keepalive_interval),
            ("keepalive timeout", self.keepalive_timeout),
        ];
        match times.iter().find(|(_, time)| time.is_zero()) {
            Some((what, _)) => Err(format!("the {what} of etcd must be more than 0")),
            None => Ok(()),
        }
    }

    /// The address to connect to.
    pub(super) fn url(&self, endpoint: &EtcdEndpoint) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{endpoint}")
    }
}

impl fmt::Display for EtcdEndpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for PasswordSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(formatter, "the file {}", path.display()),
            Self::Environment(name) => write!(formatter, "the environment variable {name}"),
        }
    }
}

impl PasswordSource {
    /// The password as it is now, or what is wrong.
    pub(super) fn read(&self) -> Result<String, String> {
        match self {
            Self::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => {
                    let line = text.strip_suffix('\n').unwrap_or(&text);
                    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
                }
                Err(error) => Err(format!("failed to read the password from {self}: {error}")),
            },
            Self::Environment(name) => std::env::var(name)
                .map_err(|error| format!("failed to read the password from {self}: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_comes_from_where_it_is_said_to_be() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        let file = PasswordSource::File(path.clone());
        assert!(file.read().unwrap_err().contains(path.to_str().unwrap()));
        for (text, password) in [
            ("secret", "secret"),
            ("secret\n", "secret"),
            ("secret\r\n", "secret"),
            (" two words \n\n", " two words \n"),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(file.read().unwrap(), password);
        }
        // Cargo sets this one for whoever runs tests.
        let variable = PasswordSource::Environment("CARGO_PKG_NAME".to_owned());
        assert_eq!(variable.read().unwrap(), "steadfast-coord");
        let absent = PasswordSource::Environment("STEADFAST_NO_SUCH_VARIABLE".to_owned());
        assert!(absent.read().unwrap_err().contains("STEADFAST_NO_SUCH"));
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let settings = EtcdSettings::from_uri("etcd://a").unwrap();
        assert_eq!(settings.check(), Ok(()));
        let nowhere = EtcdSettings::new(vec![]).check().unwrap_err();
        assert!(nowhere.contains("no endpoint"), "{nowhere}");
        let never = EtcdSettings {
            request_timeout: Duration::ZERO,
            ..settings
        };
        let never = never.check().unwrap_err();
        assert!(never.contains("request timeout"), "{never}");
    }
}
