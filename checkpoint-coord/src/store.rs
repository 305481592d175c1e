// SPDX-License-Identifier: Apache-2.0
//! What a store must be able to do.

use std::future::Future;
use std::time::Duration;

use steadfast_core::{ChangeBatch, KeyValue, LeaseId, Outcome, Revision, Transaction};
use tokio::sync::mpsc;

/// A key-value store with revisions, as etcd has them. Handles are cheap to clone and speak of the same store.
pub trait Store: Clone + Send + Sync + 'static {
    /// All keys that begin with `prefix`, in order, and the revision at which they were read.
    fn range(
        &self,
        prefix: &str,
    ) -> impl Future<Output = Result<(Vec<KeyValue>, Revision), StoreError>> + Send;

    /// One key, if it is there, and the revision at which it was read.
    fn get(
        &self,
        key: &str,
    ) -> impl Future<Output = Result<(Option<KeyValue>, Revision), StoreError>> + Send;

    /// Does the transaction if all its conditions hold. On an error it may or may not have been done.
    fn transact(
        &self,
        transaction: Transaction,
    ) -> impl Future<Output = Result<Outcome, StoreError>> + Send;

    /// All changes to keys that begin with `prefix`, from the revision `from` on (that one included).
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when the store does not remember as far back as `from`: read the keys anew.
    fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> impl Future<Output = Result<Watch, StoreError>> + Send;

    /// A new lease. It ends when it was not renewed for `ttl`.
    fn lease_grant(
        &self,
        ttl: Duration,
    ) -> impl Future<Output = Result<LeaseId, StoreError>> + Send;

    /// Renews a lease for its full time.
    ///
    /// # Errors
    /// [`StoreError::LeaseNotFound`] when it has ended.
    fn lease_keepalive(
        &self,
        lease: LeaseId,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends a lease at once; its keys go with it.
    ///
    /// # Errors
    /// [`StoreError::LeaseNotFound`] when it has ended already.
    fn lease_revoke(&self, lease: LeaseId) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// A store call that did not work out.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The place where the store keeps its contents failed.
    #[error("failed to {operation} the store's contents")]
    Medium {
        /// What was being done.
        operation: &'static str,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The contents cannot be the work of this program.
    #[error("failed to read the store's contents: {0}")]
    Corrupt(String),
    /// The store no longer remembers the changes that were asked for.
    #[error("failed to watch from revision {from}: changes before revision {oldest} are forgotten")]
    Compacted {
        /// First revision that was asked for.
        from: Revision,
        /// First revision that is remembered.
        oldest: Revision,
    },
    /// The lease has ended or never existed.
    #[error("failed to use lease {0}: it has ended")]
    LeaseNotFound(LeaseId),
    /// One transaction writes the same key twice.
    #[error("failed to carry out a transaction: it writes {0} more than once")]
    DuplicateKey(String),
    /// The store cannot be reached, or did not answer in time. A transaction may have been done all the same.
    #[error("failed to reach the store: {0}")]
    Unavailable(String),
    /// The store said no, and will until somebody does something: the words say what. Nothing was done.
    #[error("the store refused the request: {0}")]
    Refused(String),
}

/// Why a watch ended. In both cases: read the keys anew, then watch again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The watcher was too slow, or the store forgot what it had not delivered yet.
    #[error("the watch has missed changes")]
    Missed,
    /// The store is gone.
    #[error("the store has been closed")]
    Closed,
}

/// Changes of the keys under a prefix, one revision after the other.
#[derive(Debug)]
pub struct Watch {
    receiver: mpsc::Receiver<Result<ChangeBatch, WatchError>>,
    /// Why it ended, if that was seen before its turn.
    ended: Option<WatchError>,
}

/// The store's end of a [`Watch`].
#[derive(Debug, Clone)]
pub struct WatchFeed {
    sender: mpsc::Sender<Result<ChangeBatch, WatchError>>,
}

/// A watch and the store's end of it. `capacity` is how many revisions the watcher may be behind, at least 1.
pub fn watch_channel(capacity: usize) -> (WatchFeed, Watch) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    (
        WatchFeed { sender },
        Watch {
            receiver,
            ended: None,
        },
    )
}

impl Watch {
    /// The next revision's changes. Cancel-safe.
    ///
    /// # Errors
    /// When changes are missing from here on.
    pub async fn next(&mut self) -> Result<ChangeBatch, WatchError> {
        if let Some(reason) = self.ended {
            return Err(reason);
        }
        // A feed is dropped without a word only when the watcher could not take any more words.
        self.receiver
            .recv()
            .await
            .unwrap_or(Err(WatchError::Missed))
    }
}

impl Watch {
    /// The next revision's changes, if they have arrived. That something is missing shows at the next [`Watch::next`].
    pub fn try_next(&mut self) -> Option<ChangeBatch> {
        match self.receiver.try_recv() {
            Ok(Ok(batch)) => Some(batch),
            Ok(Err(reason)) => {
                self.ended = Some(reason);
                None
            }
            Err(_) => None,
        }
    }
}

impl WatchFeed {
    /// Hands over one revision's changes without waiting. Says whether the watch goes on; if not, drop the feed.
    pub fn deliver(&self, batch: ChangeBatch) -> bool {
        self.sender.try_send(Ok(batch)).is_ok()
    }

    /// Tells the watcher why nothing more comes, if it can still hear it.
    pub fn close(self, reason: WatchError) {
        drop(self.sender.try_send(Err(reason)));
    }

    /// Whether somebody still watches.
    pub fn is_watched(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Waits until nobody watches any more. Cancel-safe.
    pub async fn unwatched(&self) {
        self.sender.closed().await;
    }
}
