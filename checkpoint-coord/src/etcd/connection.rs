// SPDX-License-Identifier: Apache-2.0
//! One connection to one member of an etcd cluster, which has proved that it answers.

mod traffic;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use etcd_client::{Channel, Client, ConnectOptions, ResponseHeader};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, watch};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Uri};
use tower::util::MapResponseLayer;
use tower::{Layer as _, Service};

use self::traffic::{Counted, Received};
use super::failure::{Failure, chain};
use super::settings::{EtcdCredentials, EtcdEndpoint, EtcdSettings, EtcdTls};

/// What is told about a connection that could not be had.
pub(super) enum OpenError {
    /// etcd said no, or the settings cannot work: no other endpoint will do better.
    Refused(String),
    /// This endpoint cannot be used now.
    Unusable(String),
}

pub(super) struct Connection {
    /// For people.
    pub(super) url: String,
    /// Where it leads.
    pub(super) endpoint: EtcdEndpoint,
    /// Tells clusters apart.
    pub(super) cluster_id: u64,
    client: Client,
    received: Received,
    credentials: Option<EtcdCredentials>,
    /// How many logins there were.
    logins: AtomicU64,
    /// Held by the one who logs in.
    logging_in: Mutex<()>,
    abandoned: watch::Sender<bool>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Connection")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects, logs in, and hears the other end once: a machine that merely takes connections is not enough. Takes as
    /// long as it takes; the caller has the deadline.
    pub(super) async fn open(
        settings: Arc<EtcdSettings>,
        endpoint: EtcdEndpoint,
    ) -> Result<Self, OpenError> {
        let url = settings.url(&endpoint);
        let received = Received::default();
        let channel = transport(Arc::clone(&settings), url.clone())
            .await
            .map_err(OpenError::Refused)?
            .connect_with_connector(connector(received.clone()))
            .await
            .map_err(|error| OpenError::Unusable(with_hint(&settings, chain(&error, ""))))?;
        // Without a leader an answer is of no use; etcd then says so at once, and ends watches.
        let options = ConnectOptions::new().with_require_leader(true);
        let client = Client::from_channel(Channel::Tonic(channel), Some(options))
            .await
            .map_err(|error| OpenError::Unusable(error.to_string()))?;
        let mut connection = Self {
            url,
            endpoint,
            cluster_id: 0,
            client,
            received,
            credentials: settings.credentials.clone(),
            logins: AtomicU64::new(0),
            logging_in: Mutex::new(()),
            abandoned: watch::Sender::new(false),
        };
        let greeting = async {
            connection.log_in(0).await?;
            // The one request that every etcd answers by itself and to everybody.
            let members = connection.client().member_list().await?;
            Ok(members.header().map_or(0, ResponseHeader::cluster_id))
        };
        connection.cluster_id = greeting.await.map_err(|failure| match failure {
            Failure::Refused(reason) | Failure::LoginNeeded(reason) => OpenError::Refused(reason),
            Failure::NotDone(reason) => OpenError::Unusable(reason),
            Failure::Unknown(reason) => OpenError::Unusable(with_hint(&settings, reason)),
            Failure::LeaseNotFound | Failure::Compacted => {
                OpenError::Unusable("an answer that makes no sense".to_owned())
            }
        })?;
        Ok(connection)
    }

    /// A client on this connection.
    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// How much has come in.
    pub(super) fn received_bytes(&self) -> u64 {
        self.received.bytes()
    }

    /// How many logins there were.
    pub(super) fn logins(&self) -> u64 {
        self.logins.load(Ordering::Relaxed)
    }

    /// Logs in with the password as it is now, if there is a user, and if nobody else has done so since there were `seen`
    /// logins.
    pub(super) async fn log_in(&self, seen: u64) -> Result<(), Failure> {
        let Some(credentials) = &self.credentials else {
            return Ok(());
        };
        let _logging_in = self.logging_in.lock().await;
        if self.logins() != seen {
            return Ok(());
        }
        let source = credentials.password.clone();
        let password = read_aside(move || source.read())
            .await
            .map_err(Failure::Refused)?;
        let user = (credentials.user.clone(), password);
        match self.client().update_user(Some(user)).await {
            Ok(()) => {}
            Err(error) if error.to_string().contains("authentication is not enabled") => {
                tracing::warn!(
                    etcd.url = %self.url,
                    etcd.user = %credentials.user,
                    "Did not log in to etcd: it lets everybody in."
                );
            }
            Err(error) => return Err(refused_login(error.into(), credentials)),
        }
        self.logins.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether there is anybody to log in as.
    pub(super) fn can_log_in(&self) -> bool {
        self.credentials.is_some()
    }

    /// Lets watches on this connection know that they should go elsewhere.
    pub(super) fn abandon(&self) {
        self.abandoned.send_replace(true);
    }

    /// Waits until the connection is given up.
    pub(super) async fn wait_until_abandoned(&self) {
        // The sender lives as long as `self`, so this ends only when it is true.
        drop(
            self.abandoned
                .subscribe()
                .wait_for(|abandoned| *abandoned)
                .await,
        );
    }
}

fn refused_login(failure: Failure, credentials: &EtcdCredentials) -> Failure {
    match failure {
        Failure::Refused(reason) | Failure::LoginNeeded(reason) => Failure::Refused(format!(
            "failed to log in to etcd as `{}` with the password from {}: {reason}",
            credentials.user, credentials.password
        )),
        other => other,
    }
}

/// What is often behind a connection that comes to nothing.
fn with_hint(settings: &EtcdSettings, reason: String) -> String {
    let says = |parts: &[&str]| parts.iter().any(|part| reason.contains(part));
    let hung_up = says(&["broken pipe", "reset by peer", "connection closed"]);
    let hint = match &settings.tls {
        None if hung_up => "if it wants TLS, write etcds://",
        None => return reason,
        Some(_) if says(&["InvalidContentType", "handshake eof"]) => {
            "if it is not set up for TLS, write etcd://"
        }
        Some(_) if says(&["invalid peer certificate"]) => {
            "the CA file or the server name do not fit its certificate"
        }
        Some(tls) if hung_up || says(&["alert"]) => {
            if tls.client.is_some() {
                "it may not accept the client certificate, or not be set up for TLS, as in etcd://"
            } else {
                "it may want a client certificate, or not be set up for TLS, as in etcd://"
            }
        }
        Some(_) => return reason,
    };
    format!("{reason} ({hint})")
}

/// Reads files where a file system that hangs holds up nobody else.
async fn read_aside<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(read)
        .await
        .unwrap_or_else(|error| Err(format!("reading a file broke off: {error}")))
}

/// Connects as tonic does by itself, and counts what comes in.
fn connector(
    received: Received,
) -> impl Service<
    Uri,
    Response = TokioIo<Counted<TcpStream>>,
    Error = impl std::error::Error,
    Future: Send,
> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    MapResponseLayer::new(move |stream: TokioIo<_>| {
        TokioIo::new(Counted::new(stream.into_inner(), received.clone()))
    })
    .layer(http)
}

pub(super) async fn transport(
    settings: Arc<EtcdSettings>,
    url: String,
) -> Result<Endpoint, String> {
    let endpoint = Endpoint::from_shared(url.clone())
        .map_err(|error| format!("`{url}` is no address: {}", chain(&error, "")))?
        .connect_timeout(settings.request_timeout)
        .http2_keep_alive_interval(settings.keepalive_interval)
        .keep_alive_timeout(settings.keepalive_timeout)
        // etcd counts a question on an idle connection as an attack.
        .keep_alive_while_idle(false);
    let Some(tls) = settings.tls.clone() else {
        return Ok(endpoint);
    };
    read_aside(move || {
        endpoint
            .tls_config(tls_configuration(&tls)?)
            .map_err(|error| format!("failed to prepare TLS for {url}: {}", chain(&error, "")))
    })
    .await
}

fn tls_configuration(tls: &EtcdTls) -> Result<ClientTlsConfig, String> {
    let read = |what: &str, path: &std::path::Path| {
        std::fs::read(path)
            .map_err(|error| format!("failed to read the {what} {}: {error}", path.display()))
    };
    let mut configuration = ClientTlsConfig::new();
    configuration = match &tls.ca_file {
        Some(path) => {
            configuration.ca_certificate(Certificate::from_pem(read("CA certificates", path)?))
        }
        None => configuration.with_native_roots(),
    };
    if let Some(client) = &tls.client {
        let certificate = read("client certificate", &client.certificate_file)?;
        let key = read("client key", &client.key_file)?;
        configuration = configuration.identity(Identity::from_pem(certificate, key));
    }
    if let Some(name) = &tls.server_name {
        configuration = configuration.domain_name(name);
    }
    Ok(configuration)
}
