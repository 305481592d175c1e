// SPDX-License-Identifier: Apache-2.0
//! An etcd of the job's own: members on the first 1, 3 or 5 nodes, private to the job, gone with it.
//!
//! Owns everything about such an etcd but its process, which is the keeper's, and the protocol, which is
//! `steadfast-coord`'s. Two tasks: `server` keeps the process of this node's member running; `steward` sees to it that
//! this node has the place in the cluster that it should have. They talk to the agent by [`Event`]s, which it passes on.
//!
//! Invariants:
//! - ME-1: who does not have the secret of the nodes gets no answer, neither as a client nor as a peer.
//! - ME-2: a member whose data are gone never goes on as the member that it was.
//! - ME-3: one node at a time changes who is a member.
//! - ME-4: neither a dead agent nor a log directory that hangs stops an etcd.
//!
//! Not here: what is kept in the etcd. The job's records know nothing of who runs it.

mod certificates;
mod command;
mod events;
mod files;
mod founding;
mod layout;
mod log;
mod secret;
mod server;
mod settings;
mod steward;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use steadfast_coord::Store as _;
use steadfast_coord::etcd::{EtcdSettings, EtcdStore};
use steadfast_process::spawn::find_program;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

pub(crate) use self::certificates::CertificateError;
pub(crate) use self::events::Event;
use self::events::Events;
use self::files::Files;
pub(crate) use self::layout::{Layout, LayoutError};
use self::log::ServerLog;
pub(crate) use self::secret::{SecretError, SecretSources};
use self::server::{Condition, Process, Starts};
pub(crate) use self::settings::{ManagedEtcdSettings, Pace};
use self::steward::{Memory, Steward};
use crate::keeper::protocol::CompanionView;

/// How often it is looked whether this node may go.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What it finds on this node.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    /// The job's private directory.
    pub(crate) runtime_dir: PathBuf,
    /// The keeper's token: what another keeper left behind is not ours.
    pub(crate) keeper_token: String,
    /// The process that is there already, from the keeper's welcome.
    pub(crate) companion: Option<CompanionView>,
    /// Where the secret may come from.
    pub(crate) secrets: SecretSources,
    /// Where etcd is looked for: `PATH`.
    pub(crate) search_path: OsString,
}

/// Why there is no managed etcd on this node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManagedEtcdError {
    /// These hosts cannot have one.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// No secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// No certificates.
    #[error(transparent)]
    Certificates(#[from] CertificateError),
    /// No program.
    #[error(
        "there is no `etcd` on the PATH of this node, which may have to run one: install it (Debian: etcd-server), or name an etcd that runs already with --coord etcd://HOST:2379"
    )]
    NoProgram(#[source] io::Error),
    /// The runtime directory cannot be used.
    #[error("could not prepare {path} for etcd")]
    Files {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// How a supervisor goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Departure {
    /// The job has its result: everybody goes.
    JobOver,
    /// The others go on without this node.
    NodeLeaves,
}

/// The managed etcd as the agent of this node has it. Its tasks end with it; the process does not.
#[derive(Debug)]
pub(crate) struct ManagedEtcd {
    events: mpsc::UnboundedReceiver<Event>,
    views: mpsc::UnboundedSender<CompanionView>,
    store: watch::Receiver<Option<EtcdStore>>,
    trouble: watch::Receiver<Option<String>>,
    layout: Arc<Layout>,
    farewell: Duration,
    tasks: [JoinHandle<()>; 2],
}

impl ManagedEtcd {
    /// Begins to run and to use the etcd of this job; what an earlier agent of the same keeper did is taken up. Returns
    /// before anything answers: see [`ManagedEtcd::store`].
    ///
    /// # Errors
    ///
    /// [`ManagedEtcdError`]: the same is to be expected from another try.
    pub(crate) async fn start(
        settings: ManagedEtcdSettings,
        here: Surroundings,
    ) -> Result<ManagedEtcd, ManagedEtcdError> {
        settings.layout.check()?;
        let path = here.runtime_dir.clone();
        // The secret may be on a network file system.
        let prepare = tokio::task::spawn_blocking(move || Prepared::new(settings, here));
        prepare
            .await
            .unwrap_or_else(|error| {
                Err(ManagedEtcdError::Files {
                    path,
                    source: io::Error::other(error),
                })
            })?
            .start()
    }

    /// The next thing for the agent to do. Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Takes note of the keeper's [`CompanionView`].
    pub(crate) fn observe(&self, view: CompanionView) {
        // Without a task there is nobody who would start anything either.
        drop(self.views.send(view));
    }

    /// A store in this etcd, once it answers for the first time. It follows the members as they change.
    pub(crate) fn store(&self) -> watch::Receiver<Option<EtcdStore>> {
        self.store.clone()
    }

    /// Why etcd is not to be had at the moment, in words; `None` when it is.
    pub(crate) fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.clone()
    }

    /// Prepares for the end of the process, which is the keeper's: lets others learn what they must, and for a bounded time.
    /// `members` is the prefix of the keys that members of the job have as long as they are there; this node's own is gone
    /// already.
    pub(crate) async fn leave(self, departure: Departure, members: &str) {
        for task in &self.tasks {
            task.abort();
        }
        let Some(store) = self.store.borrow().clone() else {
            return;
        };
        let deadline = Instant::now() + self.farewell;
        // Whoever has gone meanwhile was not waited for in vain.
        let _in_time = match departure {
            Departure::JobOver => timeout_at(deadline, others_have_left(&store, members)).await,
            Departure::NodeLeaves => timeout_at(deadline, self.hand_over(&store)).await,
        };
    }

    /// Makes room for another node at once.
    async fn hand_over(&self, store: &EtcdStore) {
        let cluster = store.cluster();
        let Ok(members) = cluster.members().await else {
            return;
        };
        let url = self.layout.own().peer_url();
        let own = members
            .iter()
            .find(|member| member.peer_urls.contains(&url));
        let has_successor = self.layout.hosts.len() > members.len();
        if let Some(own) = own
            && has_successor
            && members.len() > 1
        {
            // etcd refuses for the first five seconds after another change. If it never works, the others find out that
            // this node is gone.
            while cluster.remove(own.id).await.is_err() {
                sleep(LOOK_EVERY).await;
            }
        }
    }
}

impl Drop for ManagedEtcd {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Waits until no member of the job is left. Members without whom etcd does not answer have left as well.
async fn others_have_left(store: &EtcdStore, members: &str) {
    while store
        .range(members)
        .await
        .is_ok_and(|(entries, _)| !entries.is_empty())
    {
        sleep(LOOK_EVERY).await;
    }
}

/// What is known before the tasks start.
struct Prepared {
    settings: ManagedEtcdSettings,
    files: Files,
    program: PathBuf,
    cluster_token: String,
    secret_origin: String,
    companion: Option<CompanionView>,
}

impl Prepared {
    fn new(
        settings: ManagedEtcdSettings,
        here: Surroundings,
    ) -> Result<Prepared, ManagedEtcdError> {
        let program = find_program("etcd".as_ref(), &here.search_path)
            .map_err(ManagedEtcdError::NoProgram)?;
        let secret = here.secrets.find()?;
        let files = Files::open(&here.runtime_dir, &here.keeper_token).map_err(|source| {
            ManagedEtcdError::Files {
                path: here.runtime_dir,
                source,
            }
        })?;
        let run = format!("{}\n{}", settings.job, settings.restart_count);
        let certificates = files.certificates();
        if !certificates.exist() {
            certificates.make(&secret, &run, &settings.layout.own().host)?;
        }
        let token = blake3::Hash::from_bytes(secret.derive("cluster token", &run));
        Ok(Prepared {
            settings,
            files,
            program,
            cluster_token: token.to_hex()[..16].to_owned(),
            secret_origin: secret.origin().to_owned(),
            companion: here.companion,
        })
    }

    fn start(self) -> Result<ManagedEtcd, ManagedEtcdError> {
        let pace = self.settings.pace;
        let unusable = |source| ManagedEtcdError::Files {
            path: self.files.directory().to_owned(),
            source,
        };
        let state = self.files.read_state().map_err(unusable)?;
        let layout = Arc::new(self.settings.layout);
        let (event_sender, events) = mpsc::unbounded_channel();
        let events_of_tasks = Events(event_sender);
        let (views, view_receiver) = mpsc::unbounded_channel();
        let (place, place_receiver) = watch::channel(state.place.clone());
        let (condition, condition_receiver) = watch::channel(Condition::Down);
        let (store, store_receiver) = watch::channel(None);
        let (trouble, trouble_receiver) = watch::channel(Some("etcd has not answered yet".into()));
        let mut access = EtcdSettings::new(Vec::new());
        access.lease_timeout = access.lease_timeout.min(self.settings.lease / 3);
        access.tls = Some(self.files.certificates().client());
        let server = Process {
            layout: Arc::clone(&layout),
            program: self.program,
            cluster_token: self.cluster_token,
            heartbeat_ms: u32::try_from(pace.heartbeat.as_millis()).unwrap_or(u32::MAX),
            files: self.files.clone(),
            log: ServerLog::new(self.files.log(), self.settings.log),
            events: events_of_tasks.clone(),
            view: self.companion,
            starts: Starts::default(),
        };
        let farewell = pace.farewell;
        let steward = Steward {
            layout: Arc::clone(&layout),
            access,
            secret_origin: self.secret_origin,
            files: self.files,
            state,
            pace,
            events: events_of_tasks,
            place,
            condition: condition_receiver,
            store,
            trouble,
            memory: Memory::default(),
        };
        Ok(ManagedEtcd {
            events,
            views,
            store: store_receiver,
            trouble: trouble_receiver,
            layout,
            farewell,
            tasks: [
                tokio::spawn(server.run(view_receiver, place_receiver, condition)),
                tokio::spawn(steward.run()),
            ],
        })
    }
}

#[cfg(test)]
mod tests;
