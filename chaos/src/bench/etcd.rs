// SPDX-License-Identifier: Apache-2.0
//! An etcd for the time of a bench, and what an etcd says about itself.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde::Serialize;
use steadfast_coord::etcd::{EtcdEndpoint, EtcdSettings, EtcdStore};
use steadfast_coord::{Store, StoreError};
use steadfast_core::{Keys, LeaderRecord, Operation, Transaction};

use super::launch::{Out, Program, on_path, temporary_directory, words};
use super::statistics::{Summary, milliseconds};
use super::waiting::{now_ns, wait_for};
use crate::failure::Failure;

/// How long an etcd may take until it answers.
const START_WITHIN: Duration = Duration::from_secs(30);
/// How long it may take to answer a question about itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Writes of which the latency is taken.
const WRITES: usize = 50;
/// Keys that are removed at once; etcd allows 128 operations in a transaction.
const KEYS_AT_ONCE: usize = 100;

/// The etcd that a bench uses: somebody else's, or one of its own, which goes when this is dropped.
#[derive(Debug)]
pub(super) struct Etcd {
    pub(super) settings: EtcdSettings,
    /// As `--coord` takes it.
    pub(super) uri: String,
    /// Members of our own; one that was killed is none any more.
    own: Vec<Option<(Program, tempfile::TempDir)>>,
}

/// Where a member listens.
#[derive(Debug)]
struct Place {
    client: SocketAddr,
    peer: SocketAddr,
}

/// What an etcd has done since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Operations {
    pub(super) transactions: f64,
    pub(super) reads: f64,
    /// Messages to watchers; one can hold several changes.
    pub(super) watch_messages: f64,
    pub(super) lease_renewals: f64,
    pub(super) bytes_received: f64,
    pub(super) bytes_sent: f64,
}

impl Etcd {
    /// The etcd at that address, or else one of our own.
    pub(super) fn at_or_own(uri: Option<&str>, program: Option<&Path>) -> Result<Self, Failure> {
        match uri {
            Some(uri) => Ok(Self {
                settings: settings_of(uri)?,
                uri: uri.to_owned(),
                own: Vec::new(),
            }),
            None => Self::own(program, 1),
        }
    }

    /// One of our own, of so many members.
    pub(super) fn own(program: Option<&Path>, members: usize) -> Result<Self, Failure> {
        let program = match program {
            Some(path) => path.to_owned(),
            None => on_path("etcd").ok_or_else(|| Failure::NotFound("etcd".to_owned()))?,
        };
        let places: Vec<Place> = (0..members)
            .map(|_| Place::free())
            .collect::<Result<_, _>>()?;
        let cluster = places.iter().map(Place::in_cluster);
        let cluster = cluster.collect::<Vec<_>>().join(",");
        let mut own = Vec::new();
        for place in &places {
            let directory = temporary_directory()?;
            let command = place.command(&program, directory.path(), &cluster);
            let program = Program::start(&command, directory.path(), Out::Nowhere)?;
            own.push(Some((program, directory)));
        }
        let clients = places.iter().map(|place| place.client.to_string());
        let uri = format!("etcd://{}", clients.collect::<Vec<_>>().join(","));
        let mut etcd = Self {
            settings: settings_of(&uri)?,
            uri,
            own,
        };
        wait_for("etcd to answer", START_WITHIN, || {
            etcd.must_run()?;
            let mut endpoints = etcd.settings.endpoints.iter();
            let all = endpoints.all(|endpoint| {
                let health = etcd.ask(endpoint, "/health").unwrap_or_default();
                health.contains("\"true\"")
            });
            Ok(all.then_some(()))
        })?;
        Ok(etcd)
    }

    /// The place of the member that leads among those of our own.
    pub(super) fn leading_member(&self) -> Result<Option<usize>, Failure> {
        for (index, endpoint) in self.settings.endpoints.iter().enumerate() {
            let metrics = self.ask(endpoint, "/metrics")?;
            if sum(&metrics, "etcd_server_is_leader", |_| true) > 0.0 {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Kills a member of our own. It does not come back.
    pub(super) fn kill_member(&mut self, index: usize) {
        if let Some(member) = self.own.get_mut(index)
            && let Some((program, _)) = member.take()
        {
            program.signal(Signal::KILL);
        }
    }

    /// The node that leads a job.
    pub(super) fn leading_node(&self, job: &str) -> Result<String, Failure> {
        let key = Keys::new(job).leader();
        let record = self.with_store(async |store| Ok(store.get(&key).await?.0))?;
        let leader: Option<LeaderRecord> = record
            .map(|record| serde_json::from_str(&record.value))
            .transpose()
            .map_err(|error| Failure::Unexpected(format!("{key} cannot be read: {error}")))?;
        leader
            .map(|leader| leader.node.to_string())
            .ok_or_else(|| Failure::Unexpected(format!("nobody leads the job {job}")))
    }

    /// An error with its last words if it is our own and has ended.
    pub(super) fn must_run(&mut self) -> Result<(), Failure> {
        for (program, _) in self.own.iter_mut().flatten() {
            program.must_run()?;
        }
        Ok(())
    }

    /// What it has done since it started.
    pub(super) fn operations(&self) -> Result<Operations, Failure> {
        let first = self.settings.endpoints.first();
        let first = first.ok_or_else(|| Failure::Unexpected("no etcd is named".to_owned()))?;
        Ok(Operations::read(&self.ask(first, "/metrics")?))
    }

    /// How long it takes to write one small key, one after the other. Milliseconds.
    pub(super) fn write_latency(&self, prefix: &str) -> Result<Summary, Failure> {
        let key = format!("{prefix}latency");
        let times = self.with_store(async |store| {
            let mut times = Vec::new();
            for _ in 0..WRITES {
                let began = now_ns();
                store.transact(put(&key)).await?;
                times.push(milliseconds(now_ns() - began));
            }
            store.transact(delete([key.clone()])).await?;
            Ok(times)
        })?;
        Summary::of(&times).ok_or_else(|| Failure::Unexpected("nothing was written".to_owned()))
    }

    /// Bytes of a value; 0 if it is not there.
    pub(super) fn size_of(&self, key: &str) -> Result<usize, Failure> {
        self.with_store(async |store| {
            let (entry, _) = store.get(key).await?;
            Ok(entry.map_or(0, |entry| entry.value.len()))
        })
    }

    /// Removes all keys that begin with `prefix`.
    pub(super) fn clear(&self, prefix: &str) -> Result<(), Failure> {
        self.with_store(async |store| {
            let (entries, _) = store.range(prefix).await?;
            for chunk in entries.chunks(KEYS_AT_ONCE) {
                let keys = chunk.iter().map(|entry| entry.key.clone());
                store.transact(delete(keys)).await?;
            }
            Ok(())
        })
    }

    fn with_store<T>(
        &self,
        work: impl AsyncFnOnce(&EtcdStore) -> Result<T, StoreError>,
    ) -> Result<T, Failure> {
        let done = runtime()?.block_on(async {
            let store = EtcdStore::new(self.settings.clone())?;
            work(&store).await
        });
        done.map_err(|error| Failure::Unexpected(format!("etcd at {}: {error}", self.uri)))
    }

    /// Asks a member over HTTP, where it listens for clients.
    fn ask(&self, endpoint: &EtcdEndpoint, path: &str) -> Result<String, Failure> {
        let EtcdEndpoint { host, port } = endpoint;
        let failed = |error| Failure::read(format!("{path} of etcd at {}", self.uri), error);
        let mut stream = TcpStream::connect((host.as_str(), *port)).map_err(failed)?;
        stream
            .set_read_timeout(Some(ANSWER_WITHIN))
            .map_err(failed)?;
        // Version 1.0: the answer is over when the connection is.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").map_err(failed)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(failed)?;
        Ok(answer)
    }
}

impl Operations {
    fn read(metrics: &str) -> Self {
        let calls = |name: &str, method: &str| {
            let method = format!("grpc_method=\"{method}\"");
            sum(metrics, name, |labels| labels.contains(&method))
        };
        let bytes = |name: &str| sum(metrics, name, |_| true);
        Self {
            transactions: calls("grpc_server_started_total", "Txn"),
            reads: calls("grpc_server_started_total", "Range"),
            watch_messages: calls("grpc_server_msg_sent_total", "Watch"),
            lease_renewals: calls("grpc_server_msg_received_total", "LeaseKeepAlive"),
            bytes_received: bytes("etcd_network_client_grpc_received_bytes_total"),
            bytes_sent: bytes("etcd_network_client_grpc_sent_bytes_total"),
        }
    }

    /// What was done since `before`, for each of so many.
    pub(super) fn since(&self, before: &Self, members: u32) -> Self {
        let each = |now: f64, then: f64| (now - then) / f64::from(members);
        Self {
            transactions: each(self.transactions, before.transactions),
            reads: each(self.reads, before.reads),
            watch_messages: each(self.watch_messages, before.watch_messages),
            lease_renewals: each(self.lease_renewals, before.lease_renewals),
            bytes_received: each(self.bytes_received, before.bytes_received),
            bytes_sent: each(self.bytes_sent, before.bytes_sent),
        }
    }
}

/// A runtime on this thread, as the agent has one.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Unexpected(format!("no asynchronous runtime: {error}")))
}

/// The settings of the etcd at an address as `--coord` takes it.
pub(crate) fn settings_of(uri: &str) -> Result<EtcdSettings, Failure> {
    EtcdSettings::from_uri(uri).map_err(|error| Failure::Unexpected(error.to_string()))
}

fn put(key: &str) -> Transaction {
    Transaction {
        when: Vec::new(),
        then: vec![Operation::Put {
            key: key.to_owned(),
            value: "{}".into(),
            lease: None,
        }],
    }
}

fn delete(keys: impl IntoIterator<Item = String>) -> Transaction {
    let delete = |key| Operation::Delete { key };
    Transaction {
        when: Vec::new(),
        then: keys.into_iter().map(delete).collect(),
    }
}

/// The sum over all series of a metric with such labels.
fn sum(metrics: &str, name: &str, such: impl Fn(&str) -> bool) -> f64 {
    metrics
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '))
        .filter(|(labels, _)| (labels.is_empty() || labels.starts_with('{')) && such(labels))
        .filter_map(|(_, value)| value.parse::<f64>().ok())
        .sum()
}

impl Place {
    /// Ports that nobody listens on.
    fn free() -> Result<Self, Failure> {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let failed = |error| Failure::read("a free port", error);
        let (first, second) = (bind().map_err(failed)?, bind().map_err(failed)?);
        Ok(Self {
            client: first.local_addr().map_err(failed)?,
            peer: second.local_addr().map_err(failed)?,
        })
    }

    fn name(&self) -> String {
        format!("bench{}", self.peer.port())
    }

    fn in_cluster(&self) -> String {
        format!("{}={}", self.name(), url(self.peer))
    }

    fn command(&self, program: &Path, directory: &Path, cluster: &str) -> Vec<OsString> {
        let (client_url, peer_url) = (url(self.client), url(self.peer));
        words([
            &program,
            &"--name",
            &self.name(),
            &"--data-dir",
            &directory.join("data"),
            &"--listen-client-urls",
            &client_url,
            &"--advertise-client-urls",
            &client_url,
            &"--listen-peer-urls",
            &peer_url,
            &"--initial-advertise-peer-urls",
            &peer_url,
            &"--initial-cluster",
            &cluster,
        ])
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "# TYPE grpc_server_started_total counter\n\
        grpc_server_started_total{grpc_method=\"Txn\",grpc_service=\"etcdserverpb.KV\"} 7\n\
        grpc_server_started_total{grpc_method=\"Range\",grpc_service=\"etcdserverpb.KV\"} 3\n\
        grpc_server_msg_sent_total{grpc_method=\"Watch\"} 1.5e+01\n\
        grpc_server_msg_received_total{grpc_method=\"LeaseKeepAlive\"} 2\n\
        etcd_network_client_grpc_received_bytes_total 1000\n\
        etcd_network_client_grpc_sent_bytes_total 4e+3\n\
        etcd_network_client_grpc_sent_bytes_total_of_others 9\n";

    #[test]
    fn operations_are_read_and_shared_out() {
        let now = Operations::read(METRICS);
        assert_eq!((now.transactions, now.reads), (7.0, 3.0));
        assert_eq!((now.watch_messages, now.lease_renewals), (15.0, 2.0));
        assert_eq!((now.bytes_received, now.bytes_sent), (1000.0, 4000.0));
        let each = now.since(&Operations::default(), 2);
        assert_eq!((each.transactions, each.bytes_sent), (3.5, 2000.0));
    }
}
