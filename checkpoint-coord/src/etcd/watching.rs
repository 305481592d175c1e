// SPDX-License-Identifier: Apache-2.0
//! A watch that outlives the connections it runs on.
//!
//! It knows the next revision that it has not delivered. When the stream breaks off, it takes the history up from there, on
//! whichever endpoint answers, for as long as somebody watches. It ends with [`WatchError::Missed`] when etcd has forgotten
//! that history, when etcd has gone back in time, or when etcd refuses: reading anew is the answer to all three, and says
//! what is wrong.

use std::sync::Arc;

use etcd_client::{Client, GetOptions, ResponseHeader, WatchOptions, WatchResponse, WatchStream};
use steadfast_core::Revision;
use tokio::time::sleep;

use super::MESSAGE_LIMIT;
use super::connection::Connection;
use super::endpoints::Endpoints;
use super::failure::{self, Failure};
use super::request::{Repeat, request};
use super::translation::batches;
use crate::retry::RetryPolicy;
use crate::{StoreError, Watch, WatchError, WatchFeed, watch_channel};

/// Revisions that a watcher may be behind.
const WATCH_CAPACITY: usize = 8_192;

/// Begins a watch, and goes on with it in a task of its own until nobody watches.
pub(super) async fn watch(
    endpoints: Arc<Endpoints>,
    prefix: &str,
    from: Revision,
) -> Result<Watch, StoreError> {
    let key = format!("{}{prefix}", endpoints.settings().prefix);
    let opened = match open(&endpoints, &key, from).await {
        Ok(opened) => opened,
        Err(failure) => return Err(failure.into_store_error(None)),
    };
    let stream = match opened {
        Opened::Stream(stream) => stream,
        Opened::Compacted { oldest } => return Err(StoreError::Compacted { from, oldest }),
    };
    let (feed, watch) = watch_channel(WATCH_CAPACITY);
    let task = Watching {
        endpoints,
        key,
        next: from,
        feed,
    };
    tokio::spawn(task.run(stream));
    Ok(watch)
}

struct Watching {
    endpoints: Arc<Endpoints>,
    /// What is watched, as etcd knows it.
    key: String,
    /// First revision that was not delivered.
    next: Revision,
    feed: WatchFeed,
}

/// A stream and the connection that it runs on.
struct Stream {
    messages: WatchStream,
    connection: Arc<Connection>,
    /// The member's revision when the watch began.
    revision: Revision,
}

enum Opened {
    Stream(Box<Stream>),
    Compacted { oldest: Revision },
}

/// Why a stream is not followed any more.
enum Ended {
    /// Nobody watches, or can take no more.
    Unwatched,
    /// There are changes that cannot be had.
    Missed(String),
    /// It can be taken up again.
    BrokenOff(String),
}

impl Watching {
    async fn run(mut self, mut stream: Box<Stream>) {
        loop {
            match self.follow(&mut stream).await {
                Ended::Unwatched => return,
                Ended::Missed(reason) => return self.give_up(&reason),
                Ended::BrokenOff(reason) => {
                    tracing::debug!(
                        etcd.url = %stream.connection.url,
                        reason,
                        "The watch of etcd broke off; taking it up again."
                    );
                    self.endpoints.abandon(&stream.connection, &reason);
                }
            }
            drop(stream);
            stream = match self.resume().await {
                Ok(stream) => stream,
                Err(Ended::Missed(reason)) => return self.give_up(&reason),
                Err(_) => return,
            };
        }
    }

    /// Delivers what comes until the stream ends.
    async fn follow(&mut self, stream: &mut Stream) -> Ended {
        let Stream {
            messages,
            connection,
            ..
        } = stream;
        loop {
            let message = tokio::select! {
                message = messages.message() => message,
                () = self.feed.unwatched() => return Ended::Unwatched,
                () = connection.wait_until_abandoned() => {
                    return Ended::BrokenOff("another request had no answer here".to_owned());
                }
            };
            match message {
                Ok(Some(response)) => {
                    if let Err(ended) = self.take_in(&response) {
                        return ended;
                    }
                }
                Ok(None) => return Ended::BrokenOff("etcd ended the stream".to_owned()),
                Err(error) => {
                    // Where etcd wants a login, taking it up again begins with one.
                    return Ended::BrokenOff(Failure::from(error).into_words());
                }
            }
        }
    }

    fn take_in(&mut self, response: &WatchResponse) -> Result<(), Ended> {
        if response.canceled() {
            if response.compact_revision() > 0 {
                return Err(Ended::Missed(format!(
                    "etcd has forgotten the changes before revision {}, the next one would be {}",
                    response.compact_revision(),
                    self.next
                )));
            }
            return Err(Ended::BrokenOff(format!(
                "etcd canceled it: {}",
                response.cancel_reason()
            )));
        }
        let prefix = &self.endpoints.settings().prefix;
        let batches = batches(prefix, response.events(), self.next).map_err(Ended::Missed)?;
        for batch in batches {
            self.next = Revision(batch.revision.0 + 1);
            if !self.feed.deliver(batch) {
                return Err(Ended::Unwatched);
            }
        }
        // Without events it is a sign of life: all before that revision has been delivered.
        if response.events().is_empty()
            && !response.created()
            && let Some(header) = response.header()
        {
            self.next = self.next.max(Revision(header.revision() + 1));
        }
        Ok(())
    }

    /// Takes the watch up again, however long it takes.
    async fn resume(&self) -> Result<Box<Stream>, Ended> {
        let mut delays = RetryPolicy::WatchForever.delays();
        loop {
            let opened = tokio::select! {
                opened = open(&self.endpoints, &self.key, self.next) => opened,
                () = self.feed.unwatched() => return Err(Ended::Unwatched),
            };
            match opened {
                Ok(Opened::Stream(stream)) => match self.history_holds(&stream).await {
                    Ok(true) => {
                        tracing::debug!(etcd.url = %stream.connection.url, "Watching etcd again.");
                        return Ok(stream);
                    }
                    Ok(false) => {
                        return Err(Ended::Missed(
                            "etcd has lost changes that it had delivered; was it restored from a backup?"
                                .to_owned(),
                        ));
                    }
                    Err(failure) => tracing::debug!(?failure, "Could not watch etcd again yet."),
                },
                Ok(Opened::Compacted { oldest }) => {
                    return Err(Ended::Missed(format!(
                        "etcd has forgotten the changes before revision {oldest}, the next one would be {}",
                        self.next
                    )));
                }
                Err(Failure::NotDone(reason) | Failure::Unknown(reason)) => {
                    tracing::debug!(reason, "Could not watch etcd again yet.");
                }
                Err(failure) => return Err(Ended::Missed(failure.into_words())),
            }
            tokio::select! {
                () = sleep(delays.next_delay()) => {}
                () = self.feed.unwatched() => return Err(Ended::Unwatched),
            }
        }
    }

    /// Whether the cluster still has the revisions that were delivered. A single member may merely be behind.
    async fn history_holds(&self, stream: &Stream) -> Result<bool, Failure> {
        if stream.revision.0 + 1 >= self.next.0 {
            return Ok(true);
        }
        let read = async |mut client: Client| {
            let options = GetOptions::new().with_prefix().with_count_only();
            let response = client.get(self.key.as_str(), Some(options)).await?;
            Ok::<_, Failure>(response.header().map_or(0, ResponseHeader::revision))
        };
        let answer = request(
            &self.endpoints,
            Repeat::Harmless,
            self.endpoints.settings().request_timeout,
            "a question for the revision",
            |client, _| read(client),
        )
        .await;
        Ok(answer.value? + 1 >= self.next.0)
    }

    fn give_up(self, reason: &str) {
        tracing::warn!(reason, "Changes of etcd were missed; it is read anew.");
        self.feed.close(WatchError::Missed);
    }
}

/// A stream of the changes from `from` on, on whichever endpoint answers in time.
async fn open(endpoints: &Arc<Endpoints>, key: &str, from: Revision) -> Result<Opened, Failure> {
    request(
        endpoints,
        Repeat::Harmless,
        endpoints.settings().request_timeout,
        "the beginning of a watch",
        |client, connection| Box::pin(open_on(client, connection, key, from)),
    )
    .await
    .value
}

async fn open_on(
    client: Client,
    connection: Arc<Connection>,
    key: &str,
    from: Revision,
) -> Result<Opened, Failure> {
    let options = WatchOptions::new()
        .with_prefix()
        .with_start_revision(from.0)
        .with_progress_notify();
    let mut watching = client
        .watch_client()
        .max_decoding_message_size(MESSAGE_LIMIT);
    let mut messages = watching.watch(key, Some(options)).await?;
    let created = next(&mut messages).await?;
    if created.canceled() {
        return canceled(&created);
    }
    let revision = Revision(created.header().map_or(0, ResponseHeader::revision));
    if revision >= from && is_forgotten(client, key, from).await? {
        // The stream is about to say so too, and how far back it still goes.
        loop {
            let response = next(&mut messages).await?;
            if response.canceled() {
                return canceled(&response);
            }
        }
    }
    Ok(Opened::Stream(Box::new(Stream {
        messages,
        connection,
        revision,
    })))
}

async fn next(messages: &mut WatchStream) -> Result<WatchResponse, Failure> {
    let message = messages.message().await?;
    message.ok_or_else(|| Failure::NotDone("etcd ended the stream".to_owned()))
}

fn canceled(response: &WatchResponse) -> Result<Opened, Failure> {
    if response.compact_revision() > 0 {
        let oldest = Revision(response.compact_revision());
        return Ok(Opened::Compacted { oldest });
    }
    let reason = response.cancel_reason();
    // etcd says "permission denied" for a login that has run out too; a new login tells which it is.
    Err(match failure::from_etcd(reason) {
        Some(Failure::Refused(words)) if reason.contains("permission denied") => {
            Failure::LoginNeeded(words)
        }
        Some(failure) => failure,
        None => Failure::NotDone(format!("etcd canceled the watch: {reason}")),
    })
}

/// Whether this member has forgotten the state at a revision. A watch from there begins all the same, and is canceled a
/// moment later.
async fn is_forgotten(mut client: Client, key: &str, from: Revision) -> Result<bool, Failure> {
    let options = GetOptions::new()
        .with_prefix()
        .with_count_only()
        .with_serializable()
        .with_revision(from.0);
    match client.get(key, Some(options)).await.map_err(Failure::from) {
        Ok(_) => Ok(false),
        Err(Failure::Compacted) => Ok(true),
        Err(failure) => Err(failure),
    }
}
