// SPDX-License-Identifier: Apache-2.0
//! The store of a job on many machines: an etcd cluster.
//!
//! One connection at a time carries all requests. It moves to another member of the cluster as soon as the one it leads to is
//! in trouble: it hangs up, does not answer in time, or has no leader. A request that changes nothing, or the same thing
//! once more, is sent again within its time; a transaction is sent once, and an error says if its fate is unknown.

mod cluster;
mod connection;
mod endpoints;
mod failure;
mod request;
mod settings;
mod translation;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use steadfast_core::{KeyValue, LeaseId, Outcome, Revision, Transaction};
use tokio::time::Instant;

use crate::{Store, StoreError, Watch};
pub use cluster::{EtcdCluster, EtcdMember, EtcdSilence, EtcdStatus, ask_status};
use endpoints::Endpoints;
use failure::Failure;
use request::{Repeat, request};
pub use settings::{
    EtcdClientCertificate, EtcdCredentials, EtcdEndpoint, EtcdSettings, EtcdTls, EtcdUriError,
    PasswordSource,
};

/// The largest answer that is taken: all records of the largest jobs, and then some.
const MESSAGE_LIMIT: usize = 512 * 1024 * 1024;

/// A handle of a store in etcd. A watch goes on when all handles are gone, until nobody watches.
#[derive(Debug, Clone)]
pub struct EtcdStore {
    endpoints: Arc<Endpoints>,
}

impl EtcdStore {
    /// A store in the cluster that the settings describe. It connects when it is first used. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the settings cannot work.
    pub fn new(settings: EtcdSettings) -> Result<Self, StoreError> {
        settings.check().map_err(StoreError::Refused)?;
        Ok(Self {
            endpoints: Arc::new(Endpoints::new(settings)),
        })
    }

    /// A store in the cluster that the settings describe; returns when one of its members has answered. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when none answers within the time for a request, with each one's reason;
    /// [`StoreError::Refused`] when one does but does not let us in, or when the settings cannot work.
    pub async fn connect(settings: EtcdSettings) -> Result<Self, StoreError> {
        let deadline = Instant::now() + settings.request_timeout;
        let store = Self::new(settings)?;
        match store.endpoints.connection(deadline).await {
            Ok(_) => Ok(store),
            Err(failure) => Err(failure.into_store_error(None)),
        }
    }

    /// The address of the member in use, to be shown; `None` while there is no connection.
    pub fn endpoint(&self) -> Option<String> {
        let connection = self.endpoints.current()?;
        Some(connection.url.clone())
    }

    fn prefix(&self) -> &str {
        &self.endpoints.settings().prefix
    }

    async fn read(
        &self,
        key: &str,
        options: GetOptions,
    ) -> Result<(Vec<KeyValue>, Revision), StoreError> {
        let key = format!("{}{key}", self.prefix());
        let read = async |client: Client, options: GetOptions| {
            let mut client = client.kv_client().max_decoding_message_size(MESSAGE_LIMIT);
            Ok(client.get(key.as_str(), Some(options)).await?)
        };
        let timeout = self.endpoints.settings().request_timeout;
        let answer = request(
            &self.endpoints,
            Repeat::Harmless,
            timeout,
            "a read",
            |client, _| read(client, options.clone()),
        );
        let response = answer
            .await
            .value
            .map_err(|failure| failure.into_store_error(None))?;
        let entries = response
            .kvs()
            .iter()
            .map(|entry| translation::from_etcd(self.prefix(), entry))
            .collect::<Result<_, _>>()
            .map_err(StoreError::Corrupt)?;
        Ok((entries, revision(response.header())?))
    }
}

impl Store for EtcdStore {
    async fn range(&self, prefix: &str) -> Result<(Vec<KeyValue>, Revision), StoreError> {
        self.read(prefix, GetOptions::new().with_prefix()).await
    }

    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision), StoreError> {
        let (mut entries, revision) = self.read(key, GetOptions::new()).await?;
        Ok((entries.pop(), revision))
    }

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        translation::check(&transaction)?;
        let txn = translation::to_etcd(self.prefix(), &transaction);
        let answer = request(
            &self.endpoints,
            Repeat::Never,
            self.endpoints.settings().request_timeout,
            "a transaction",
            |mut client, _| {
                let txn = txn.clone();
                async move { Ok(client.txn(txn).await?) }
            },
        );
        let lease = translation::lease_of(&transaction);
        let response = answer
            .await
            .value
            .map_err(|failure| failure.into_store_error(lease))?;
        Ok(Outcome {
            succeeded: response.succeeded(),
            revision: revision(response.header())?,
        })
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        watching::watch(Arc::clone(&self.endpoints), prefix, from).await
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let seconds = whole_seconds(ttl);
        // Done twice, one of the leases has no keys and runs out by itself.
        let answer = request(
            &self.endpoints,
            Repeat::Harmless,
            self.endpoints.settings().lease_timeout,
            "a request for a lease",
            |mut client, _| async move { Ok(client.lease_grant(seconds, None).await?) },
        );
        let response = answer
            .await
            .value
            .map_err(|failure| failure.into_store_error(None))?;
        if response.ttl() > seconds {
            tracing::info!(
                asked = seconds,
                granted = response.ttl(),
                "etcd grants no lease as short as that: it forgets a lost node only after the longer time."
            );
        }
        Ok(LeaseId(response.id()))
    }

    async fn lease_keepalive(&self, lease: LeaseId) -> Result<(), StoreError> {
        let answer = request(
            &self.endpoints,
            Repeat::Harmless,
            self.endpoints.settings().lease_timeout,
            "the renewal of a lease",
            |mut client, _| async move {
                client.lease_keep_alive(lease.0).await?;
                Ok(())
            },
        );
        answer
            .await
            .value
            .map_err(|failure| failure.into_store_error(Some(lease)))
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        let answer = request(
            &self.endpoints,
            Repeat::Harmless,
            self.endpoints.settings().lease_timeout,
            "the return of a lease",
            |mut client, _| async move {
                client.lease_revoke(lease.0).await?;
                Ok(())
            },
        )
        .await;
        match answer.value {
            // An earlier try of the same call did it.
            Err(Failure::LeaseNotFound) if answer.is_repetition => Ok(()),
            value => value.map_err(|failure| failure.into_store_error(Some(lease))),
        }
    }
}

/// etcd counts leases in seconds; never less than was asked for.
fn whole_seconds(ttl: Duration) -> i64 {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    i64::try_from(seconds).unwrap_or(i64::MAX).max(1)
}

fn revision(header: Option<&etcd_client::ResponseHeader>) -> Result<Revision, StoreError> {
    header
        .map(|header| Revision(header.revision()))
        .ok_or_else(|| StoreError::Corrupt("etcd's answer has no header".to_owned()))
}
