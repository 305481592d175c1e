// SPDX-License-Identifier: Apache-2.0
//! Which member of the cluster is spoken to: one at a time, and another one as soon as that one is in trouble.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout_at};

use super::connection::{Connection, OpenError};
use super::failure::Failure;
use super::settings::{EtcdEndpoint, EtcdSettings};
use crate::retry::RetryPolicy;

/// How long one endpoint has the floor before the next one is tried beside it.
const STAGGER: Duration = Duration::from_millis(200);
/// For as many times as a request may take a search for a connection goes on.
const SEARCH_REQUESTS: u32 = 3;

#[derive(Debug)]
pub(super) struct Endpoints {
    /// All but its endpoints: those that count are in the state.
    settings: Arc<EtcdSettings>,
    state: Mutex<State>,
    /// The search for a connection that is going on, if one is. It outlives the request that began it: where an etcd
    /// needs longer for all the nodes of a large job than a request may take, connecting over and over would only keep it
    /// from ever getting done.
    opening: tokio::sync::Mutex<Option<Opening>>,
}

/// A search for a connection.
type Opening = JoinHandle<Result<Option<Connection>, Failure>>;

#[derive(Debug)]
struct State {
    current: Option<Arc<Connection>>,
    endpoints: Vec<EtcdEndpoint>,
    /// Where to begin when there is no connection.
    first: usize,
    /// The cluster that all endpoints must belong to, once one has answered.
    cluster_id: Option<u64>,
    /// What went wrong with each endpoint since there was a connection.
    failures: HashMap<EtcdEndpoint, String>,
}

impl Endpoints {
    pub(super) fn new(settings: EtcdSettings) -> Self {
        // The nodes of a job begin at different members, so that none has to serve them all.
        let scatter = RandomState::new().build_hasher().finish();
        let count = u64::try_from(settings.endpoints.len()).unwrap_or(1).max(1);
        let endpoints = settings.endpoints.clone();
        Self {
            settings: Arc::new(settings),
            state: Mutex::new(State {
                current: None,
                endpoints,
                first: usize::try_from(scatter % count).unwrap_or(0),
                cluster_id: None,
                failures: HashMap::new(),
            }),
            opening: tokio::sync::Mutex::new(None),
        }
    }

    pub(super) fn settings(&self) -> &EtcdSettings {
        &self.settings
    }

    /// How many endpoints there are.
    pub(super) fn count(&self) -> usize {
        self.lock().endpoints.len()
    }

    /// Other endpoints of the same cluster, from now on; none at all change nothing.
    pub(super) fn replace(&self, endpoints: Vec<EtcdEndpoint>) {
        let mut state = self.lock();
        if endpoints.is_empty() || state.endpoints == endpoints {
            return;
        }
        state
            .failures
            .retain(|endpoint, _| endpoints.contains(endpoint));
        state.endpoints = endpoints;
    }

    /// The connection in use, if there is one.
    pub(super) fn current(&self) -> Option<Arc<Connection>> {
        self.lock().current.clone()
    }

    /// The connection in use, or a new one to the first endpoint that answers before the deadline.
    pub(super) async fn connection(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<Arc<Connection>, Failure> {
        match timeout_at(deadline, self.connect()).await {
            Ok(result) => result,
            Err(_) => Err(Failure::NotDone(self.trouble())),
        }
    }

    /// Gives a connection up, if it is still the one in use; the next one goes to another endpoint where there is one.
    pub(super) fn abandon(&self, connection: &Arc<Connection>, reason: &str) {
        connection.abandon();
        let mut state = self.lock();
        let is_current = |current: &Arc<Connection>| Arc::ptr_eq(current, connection);
        if state.current.as_ref().is_some_and(is_current) {
            state.current = None;
            let is_its = |endpoint: &EtcdEndpoint| *endpoint == connection.endpoint;
            state.first = match state.endpoints.iter().position(is_its) {
                Some(index) => {
                    state
                        .failures
                        .insert(connection.endpoint.clone(), reason.to_owned());
                    index + 1
                }
                None => state.first,
            };
            tracing::debug!(etcd.url = %connection.url, reason, "Gave up a connection to etcd.");
        }
    }

    async fn connect(self: &Arc<Self>) -> Result<Arc<Connection>, Failure> {
        let mut opening = self.opening.lock().await;
        let mut delays = RetryPolicy::EndpointsWithinRequest.delays();
        loop {
            if let Some(connection) = self.current() {
                return Ok(connection);
            }
            let search = opening.get_or_insert_with(|| self.search());
            // Dropped while it waits, it leaves the search to whoever comes next.
            let found = search.await;
            *opening = None;
            let broken = |error| Failure::Refused(format!("connecting broke off: {error}"));
            if let Some(connection) = found.map_err(broken)?? {
                let connection = Arc::new(connection);
                let mut state = self.lock();
                state.current = Some(Arc::clone(&connection));
                state.failures.clear();
                tracing::debug!(etcd.url = %connection.url, "Connected to etcd.");
                return Ok(connection);
            }
            sleep(delays.next_delay()).await;
        }
    }

    fn search(self: &Arc<Self>) -> Opening {
        let endpoints = Arc::downgrade(self);
        let limit = self.settings.request_timeout * SEARCH_REQUESTS;
        tokio::spawn(async move {
            let Some(endpoints) = endpoints.upgrade() else {
                return Ok(None);
            };
            let found = timeout_at(Instant::now() + limit, endpoints.race()).await;
            found.unwrap_or(Ok(None))
        })
    }

    /// Tries every endpoint once. They start one after the other, and the first that answers wins, so that neither one
    /// that is silent nor one that is slow holds up the rest.
    async fn race(&self) -> Result<Option<Connection>, Failure> {
        let mut waiting = {
            let state = self.lock();
            let mut endpoints = state.endpoints.clone();
            let first = state.first % endpoints.len().max(1);
            endpoints.rotate_left(first);
            endpoints.into_iter()
        };
        let mut attempts = JoinSet::new();
        loop {
            let next = waiting.next();
            if let Some(endpoint) = next {
                let settings = Arc::clone(&self.settings);
                attempts.spawn(async move {
                    let opened = Connection::open(settings, endpoint.clone()).await;
                    (endpoint, opened)
                });
            }
            let answered = if waiting.len() > 0 {
                tokio::select! {
                    answered = attempts.join_next() => answered,
                    () = sleep(STAGGER) => continue,
                }
            } else {
                attempts.join_next().await
            };
            match answered {
                Some(Ok((endpoint, Ok(connection)))) => match self.admit(&connection) {
                    Ok(()) => return Ok(Some(connection)),
                    Err(reason) => self.note(endpoint, reason),
                },
                Some(Ok((_, Err(OpenError::Refused(reason))))) => {
                    return Err(Failure::Refused(reason));
                }
                Some(Ok((endpoint, Err(OpenError::Unusable(reason))))) => {
                    self.note(endpoint, reason);
                }
                Some(Err(error)) => {
                    return Err(Failure::Refused(format!("connecting broke off: {error}")));
                }
                None => return Ok(None),
            }
        }
    }

    /// Endpoints of two clusters would be two stores under one name.
    fn admit(&self, connection: &Connection) -> Result<(), String> {
        let mut state = self.lock();
        let expected = *state.cluster_id.get_or_insert(connection.cluster_id);
        if expected == connection.cluster_id {
            return Ok(());
        }
        tracing::warn!(
            etcd.url = %connection.url,
            "Do not use an endpoint of etcd: it belongs to another cluster than the others."
        );
        Err(format!(
            "belongs to another etcd cluster ({:x}) than the endpoint that was used first ({expected:x})",
            connection.cluster_id
        ))
    }

    fn note(&self, endpoint: EtcdEndpoint, reason: String) {
        self.lock().failures.insert(endpoint, reason);
    }

    /// Why there is no connection, in words.
    fn trouble(&self) -> String {
        let state = self.lock();
        let texts: Vec<_> = state
            .endpoints
            .iter()
            .map(|endpoint| {
                let failure = state.failures.get(endpoint).map(String::as_str);
                let failure = failure.unwrap_or("no answer");
                format!("{}: {failure}", self.settings.url(endpoint))
            })
            .collect();
        texts.join("; ")
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
