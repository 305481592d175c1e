// SPDX-License-Identifier: Apache-2.0
//! Who belongs to an etcd cluster, and changing that.
//!
//! Nothing here is done twice by itself. Who changes a cluster reads its members again before each step: an error may hide
//! a change that was made.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Channel, Client, Member, MemberAddOptions};
use tokio::time::timeout;

use super::connection::transport;
use super::endpoints::Endpoints;
use super::failure::{Failure, chain};
use super::request::{Repeat, request};
use super::{EtcdEndpoint, EtcdSettings, EtcdStore};
use crate::StoreError;

/// The cluster that a store is in.
#[derive(Debug, Clone)]
pub struct EtcdCluster {
    endpoints: Arc<Endpoints>,
}

/// A member of a cluster, as the cluster knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdMember {
    /// Its id, which is never used again.
    pub id: u64,
    /// Its name; empty as long as one that was added later has not started.
    pub name: String,
    /// Where its peers reach it.
    pub peer_urls: Vec<String>,
    /// Where clients reach it; empty as long as it has not taken part in the cluster.
    pub client_urls: Vec<String>,
}

/// What an etcd says of itself and its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdStatus {
    /// Its id in the cluster.
    pub member: u64,
    /// The id of the cluster's leader; `None` while it knows none.
    pub leader: Option<u64>,
    /// The members of the cluster as far as it knows.
    pub members: Vec<EtcdMember>,
}

/// Why an etcd did not say anything of itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdSilence {
    /// Its host says that nothing listens there.
    #[error("nothing listens there")]
    NobodyThere,
    /// The connection was not let in, or something else than such an etcd listens there; in words.
    #[error("{0}")]
    NotOurs(String),
    /// No answer, or none in time; in words.
    #[error("{0}")]
    NoAnswer(String),
}

impl EtcdStore {
    /// The cluster that this store is in.
    pub fn cluster(&self) -> EtcdCluster {
        EtcdCluster {
            endpoints: Arc::clone(&self.endpoints),
        }
    }

    /// From now on uses these members of the cluster. A connection that works is kept until it breaks. No endpoints at
    /// all change nothing.
    pub fn use_endpoints(&self, endpoints: Vec<EtcdEndpoint>) {
        self.endpoints.replace(endpoints);
    }
}

impl EtcdCluster {
    /// The members.
    ///
    /// # Errors
    /// [`StoreError`], as for any other read.
    pub async fn members(&self) -> Result<Vec<EtcdMember>, StoreError> {
        let answer = request(
            &self.endpoints,
            Repeat::Harmless,
            self.endpoints.settings().request_timeout,
            "a question for the members of etcd",
            |mut client, _| async move { Ok(client.member_list().await?) },
        );
        let response = answer.await.value.map_err(to_store_error)?;
        Ok(response.members().iter().map(EtcdMember::from).collect())
    }

    /// Adds a member that will be reached at `peer_url`. Returns its id, and all members with it: what it must be started
    /// with.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the cluster is not well enough, or there is a member with this address;
    /// [`StoreError::Unavailable`] when it may or may not have been added.
    pub async fn add(&self, peer_url: &str) -> Result<(u64, Vec<EtcdMember>), StoreError> {
        let answer = request(
            &self.endpoints,
            Repeat::Never,
            self.endpoints.settings().request_timeout,
            "the addition of a member to etcd",
            |mut client, _| {
                let urls = [peer_url.to_owned()];
                async move { Ok(client.member_add(urls, None::<MemberAddOptions>).await?) }
            },
        );
        let response = answer.await.value.map_err(to_store_error)?;
        let id = response
            .member()
            .map(Member::id)
            .ok_or_else(|| StoreError::Corrupt("etcd's answer has no member".to_owned()))?;
        let members = response.member_list().iter().map(EtcdMember::from);
        Ok((id, members.collect()))
    }

    /// Removes a member for good. That it is gone already is fine.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when too few would be left that work; [`StoreError::Unavailable`] when it may or may not
    /// have been removed.
    pub async fn remove(&self, id: u64) -> Result<(), StoreError> {
        let answer = request(
            &self.endpoints,
            Repeat::Never,
            self.endpoints.settings().request_timeout,
            "the removal of a member from etcd",
            |mut client, _| async move {
                client.member_remove(id).await?;
                Ok(())
            },
        );
        match answer.await.value {
            Err(Failure::Refused(reason)) if reason.contains("member not found") => Ok(()),
            value => value.map_err(to_store_error),
        }
    }
}

fn to_store_error(failure: Failure) -> StoreError {
    failure.into_store_error(None)
}

/// Asks the etcd at one endpoint how it is, on a connection of its own. `settings` say how to get in; where they lead does
/// not matter.
///
/// # Errors
/// [`EtcdSilence`] when it does not answer `within` this time.
pub async fn ask_status(
    settings: &EtcdSettings,
    endpoint: &EtcdEndpoint,
    within: Duration,
) -> Result<EtcdStatus, EtcdSilence> {
    let url = settings.url(endpoint);
    let ask = async {
        let channel = transport(Arc::new(settings.clone()), url)
            .await
            .map_err(EtcdSilence::NotOurs)?
            .connect()
            .await
            .map_err(|error| silence(&error))?;
        let no_answer = |error: etcd_client::Error| EtcdSilence::NoAnswer(error.to_string());
        // Not one that wants a leader: an etcd without one is well.
        let mut client = Client::from_channel(Channel::Tonic(channel), None)
            .await
            .map_err(no_answer)?;
        // A certificate that is not taken is heard of only now.
        let status = client.status().await.map_err(|error| {
            let text = Failure::from(error).into_words();
            if text.contains("alert") {
                EtcdSilence::NotOurs(text)
            } else {
                EtcdSilence::NoAnswer(text)
            }
        })?;
        let list = client.member_list().await.map_err(no_answer)?;
        Ok((status, list))
    };
    let (status, list) = timeout(within, ask)
        .await
        .map_err(|_| EtcdSilence::NoAnswer("no answer in time".to_owned()))??;
    Ok(EtcdStatus {
        member: status
            .header()
            .map_or(0, etcd_client::ResponseHeader::member_id),
        leader: Some(status.leader()).filter(|leader| *leader != 0),
        members: list.members().iter().map(EtcdMember::from).collect(),
    })
}

fn silence(error: &tonic::transport::Error) -> EtcdSilence {
    let text = chain(error, "");
    let says = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    if says(&["Connection refused"]) {
        EtcdSilence::NobodyThere
    } else if says(&["certificate", "InvalidContentType", "alert", "handshake"]) {
        EtcdSilence::NotOurs(text)
    } else {
        EtcdSilence::NoAnswer(text)
    }
}

impl From<&Member> for EtcdMember {
    fn from(member: &Member) -> Self {
        Self {
            id: member.id(),
            name: member.name().to_owned(),
            peer_urls: member.peer_urls().to_vec(),
            client_urls: member.client_urls().to_vec(),
        }
    }
}
