// SPDX-License-Identifier: Apache-2.0
//! Watches the store of the job from its first revision on, and writes down every change.
//!
//! It runs on a thread of its own, in the network of the first member of etcd, so that cuts between nodes are not in its
//! way.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use steadfast_coord::Store;
use steadfast_coord::etcd::{EtcdSettings, EtcdStore};
use steadfast_core::{Change, ChangeBatch, Revision};
use tokio::sync::oneshot;

use super::etcd::Etcd;
use super::host::Host;
use crate::bench::etcd::{runtime, settings_of};
use crate::bench::waiting::now_ns;
use crate::failure::Failure;
use crate::history::StoreChange;

const PREFIX: &str = "/steadfast/";
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// A watcher of the store.
#[derive(Debug)]
pub(crate) struct Witness {
    newest: Arc<Mutex<BTreeMap<String, String>>>,
    thread: Option<JoinHandle<()>>,
    stop: Option<oneshot::Sender<()>>,
}

/// What the thread writes to.
#[derive(Debug)]
struct Notes {
    file: File,
    newest: Arc<Mutex<BTreeMap<String, String>>>,
    next: Revision,
}

impl Witness {
    /// Begins to watch.
    pub(crate) fn start(etcd: &Etcd, hosts: &[Host], directory: &Path) -> Result<Self, Failure> {
        let path = directory.join("store.jsonl");
        let file = File::create(&path).map_err(|error| Failure::write(path.display(), error))?;
        let newest = Arc::new(Mutex::new(BTreeMap::new()));
        let settings = settings_of(&etcd.uri())?;
        let network = hosts
            .first()
            .map(|host| PathBuf::from(format!("/proc/{}/ns/net", host.holder())));
        let (stop, stopped) = oneshot::channel();
        let mut notes = Notes {
            file,
            newest: Arc::clone(&newest),
            next: Revision(1),
        };
        let work = move || {
            let entered = network.map_or(Ok(()), |path| {
                let network = File::open(path)?;
                setns(network, CloneFlags::CLONE_NEWNET).map_err(std::io::Error::from)
            });
            let outcome = match (entered, runtime()) {
                (Ok(()), Ok(runtime)) => runtime.block_on(async {
                    tokio::select! {
                        outcome = watch(settings, &mut notes) => outcome,
                        _ = stopped => Ok(()),
                    }
                }),
                (Err(error), _) => Err(error.to_string()),
                (_, Err(error)) => Err(error.to_string()),
            };
            if let Err(reason) = outcome {
                notes.write(0, "witness", Some(&format!("ended: {reason}")));
            }
        };
        let thread = std::thread::Builder::new()
            .name("witness".to_owned())
            .spawn(work)
            .map_err(|error| Failure::read("a thread", error))?;
        Ok(Self {
            newest,
            thread: Some(thread),
            stop: Some(stop),
        })
    }

    /// The value of a key, as far as it was seen.
    pub(crate) fn newest(&self, key: &str) -> Result<Option<String>, Failure> {
        let newest = self
            .newest
            .lock()
            .map_err(|_| Failure::Unexpected("the witness of the store has failed".to_owned()))?;
        Ok(newest.get(key).cloned())
    }

    /// Ends the watching.
    pub(crate) fn stop(mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // What it had to say is in its file.
            let _ended = thread.join();
        }
    }
}

async fn watch(settings: EtcdSettings, notes: &mut Notes) -> Result<(), String> {
    let store = EtcdStore::new(settings).map_err(|error| error.to_string())?;
    loop {
        let Ok(mut watch) = store.watch(PREFIX, notes.next).await else {
            // It is away, or has forgotten that revision: then what is there now has to do.
            if let Ok((entries, revision)) = store.range(PREFIX).await {
                notes.write(revision.0, "witness", Some("changes were missed"));
                for entry in entries {
                    notes.note(entry.mod_revision.0, &entry.key, Some(entry.value.as_str()));
                }
                notes.next = Revision(revision.0 + 1);
            }
            tokio::time::sleep(AGAIN_AFTER).await;
            continue;
        };
        // Whatever ended it: it is begun anew from where it was.
        while let Ok(batch) = watch.next().await {
            notes.take(&batch);
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

impl Notes {
    fn take(&mut self, batch: &ChangeBatch) {
        for change in &batch.changes {
            match change {
                Change::Put(entry) => {
                    self.note(batch.revision.0, &entry.key, Some(entry.value.as_str()));
                }
                Change::Delete { key } => self.note(batch.revision.0, key, None),
            }
        }
        self.next = Revision(batch.revision.0 + 1);
    }

    fn note(&mut self, revision: i64, key: &str, value: Option<&str>) {
        if let Ok(mut newest) = self.newest.lock() {
            match value {
                Some(value) => newest.insert(key.to_owned(), value.to_owned()),
                None => newest.remove(key),
            };
        }
        self.write(revision, key, value);
    }

    fn write(&mut self, revision: i64, key: &str, value: Option<&str>) {
        let change = StoreChange {
            monotonic_ns: now_ns(),
            revision,
            key: key.to_owned(),
            value: value.map(|value| {
                serde_json::from_str(value).unwrap_or_else(|_| value.to_owned().into())
            }),
        };
        if let Ok(line) = serde_json::to_string(&change) {
            // A history without it is judged as one without a witness.
            let _unwritten = writeln!(self.file, "{line}");
        }
    }
}
