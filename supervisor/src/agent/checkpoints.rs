// SPDX-License-Identifier: Apache-2.0
//! The job's checkpoints, looked at by a thread of its own: their file system may hang, and nothing else may hang with it.
//!
//! While the workers run, the thread looks once a second what is new, and more often while a checkpoint is waited for that
//! was asked for. When they have stopped it says what it can vouch for. Before workers start it makes sure that they find
//! what they are to resume from; then, and only then, torn ones are moved aside and trackers corrected. An answer that
//! nobody waits for any more changes nothing.
//!
//! What takes as long as a checkpoint is large (flushing it, deleting old ones) a second thread does, so that the first can
//! always answer.

mod choosing;
mod chores;
mod request_file;
mod watching;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc as commands};
use std::thread;
use std::time::Duration;

use steadfast_checkpoints::Boot;
use steadfast_core::CheckpointReport;
use tokio::sync::{mpsc, oneshot};

pub(super) use self::choosing::{Choice, Resume, ResumePoint, Task};
use self::watching::Watch;
use crate::settings::Checkpoints;

/// How long an answer is waited for. Usually there is one at once: what has not changed since the last look is not read
/// again.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the thread has seen.
#[derive(Debug)]
pub(super) enum CheckpointEvent {
    /// A checkpoint has been made that is whole.
    Made {
        /// Its step.
        step: u64,
        /// Where it is.
        path: PathBuf,
    },
    /// The checkpoint that was waited for is there, and on stable storage.
    Awaited {
        /// The generation that was to make it.
        generation: u64,
        /// Its step.
        step: u64,
        /// Where it is.
        path: PathBuf,
    },
    /// A checkpoint that was made is on stable storage.
    Flushed {
        /// Its step.
        step: u64,
        /// Where it is.
        path: PathBuf,
    },
    /// One that is not needed any more was deleted.
    Deleted {
        /// Its step.
        step: u64,
        /// Where it was.
        path: PathBuf,
    },
    /// What this node can vouch for has changed.
    Report(CheckpointReport),
    /// Something is wrong with the directory, in words.
    Note(String),
}

/// A checkpoint that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Awaited {
    /// The generation that is to make it.
    pub(super) generation: u64,
    /// The first step that will do; 0 for any checkpoint that is not there yet.
    pub(super) step: u64,
    /// Whether a worker has said that it is done. Otherwise it counts when it does not change any more.
    pub(super) is_said_done: bool,
}

/// The thread that looks.
#[derive(Debug)]
pub(super) struct CheckpointWatch {
    orders: commands::Sender<Order>,
    last_look: Arc<Mutex<LastLook>>,
}

/// What was seen when the directory was last looked at: all that there is to go by when it does not answer any more.
#[derive(Debug, Default)]
enum LastLook {
    /// The first look has not ended.
    #[default]
    Never,
    /// The directory, or a checkpoint that may be the newest, could not be read, in words.
    Unread(String),
    /// The whole ones, oldest step first, with the only world size that can load each, if that matters.
    Whole(Vec<(Resume, Option<u32>)>),
}

#[derive(Debug)]
enum Order {
    /// Say what this node can vouch for now.
    Report(oneshot::Sender<CheckpointReport>),
    /// Prepare the directory for workers that start.
    Prepare {
        task: Task,
        reply: oneshot::Sender<Choice>,
    },
    /// Wait for a checkpoint, or do not wait any more.
    Await(Option<Awaited>),
    /// That step is committed; delete what is not needed any more.
    Retire(u64),
}

impl CheckpointWatch {
    /// Starts the thread. It ends when this is dropped.
    pub(super) fn start(
        settings: Checkpoints,
        node: &str,
        events: mpsc::UnboundedSender<CheckpointEvent>,
    ) -> io::Result<Self> {
        // Where the kernel does not say, nothing is doubted either.
        let boot = Boot::now(node).ok();
        let (orders, received) = commands::channel();
        let last_look = Arc::new(Mutex::default());
        let shared = Arc::clone(&last_look);
        thread::Builder::new()
            .name("checkpoints".to_owned())
            .spawn(move || Watch::new(settings, boot, events, shared).run(&received))?;
        Ok(Self { orders, last_look })
    }

    /// Waits for a checkpoint, which comes as [`CheckpointEvent::Awaited`]; `None`: waits no more.
    pub(super) fn wait_for(&self, awaited: Option<Awaited>) {
        // Without the thread nothing is vouched for either, and that is said then.
        let _said_when_it_matters = self.orders.send(Order::Await(awaited));
    }

    /// The checkpoint of that step is committed: those before it may go, but for as many as are to be kept.
    pub(super) fn retire(&self, committed: u64) {
        // Without the thread nothing is deleted either.
        let _kept = self.orders.send(Order::Retire(committed));
    }

    /// What this node can vouch for now. `None` when the file system does not answer in time.
    pub(super) async fn report(&self) -> Option<CheckpointReport> {
        let (reply, report) = oneshot::channel();
        self.orders.send(Order::Report(reply)).ok()?;
        tokio::time::timeout(PATIENCE, report).await.ok()?.ok()
    }

    /// Where so many workers would resume by what was seen last; `Err` where that does not tell, in words.
    pub(super) fn seen_last(&self, world_size: u32) -> Result<ResumePoint, String> {
        let last = self.last_look.lock();
        match &*last.unwrap_or_else(PoisonError::into_inner) {
            LastLook::Never => Err("it was never looked at before".to_owned()),
            LastLook::Unread(why) => Err(why.clone()),
            LastLook::Whole(whole) => {
                let mut fitting = whole.iter().rev();
                let newest =
                    fitting.find(|(_, only_for)| only_for.is_none_or(|saved| saved == world_size));
                Ok(newest.map_or(ResumePoint::Beginning, |(resume, _)| {
                    ResumePoint::Checkpoint(resume.clone())
                }))
            }
        }
    }

    /// Sees to it that workers find what they are to resume from. `None` when the file system does not answer in time.
    pub(super) async fn prepare(&self, task: Task) -> Option<Choice> {
        let (reply, chosen) = oneshot::channel();
        self.orders.send(Order::Prepare { task, reply }).ok()?;
        tokio::time::timeout(PATIENCE, chosen).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_last_is_gone_by_and_nothing_is_made_up() {
        let (orders, _received) = commands::channel();
        let watch = CheckpointWatch {
            orders,
            last_look: Arc::default(),
        };
        let set = |look| *watch.last_look.lock().unwrap() = look;
        assert!(watch.seen_last(2).unwrap_err().contains("never"));
        set(LastLook::Unread("an error".to_owned()));
        assert_eq!(watch.seen_last(2), Err("an error".to_owned()));
        set(LastLook::Whole(Vec::new()));
        assert_eq!(watch.seen_last(2), Ok(ResumePoint::Beginning));
        let of = |step: u64| Resume {
            step,
            path: step.to_string().into(),
        };
        set(LastLook::Whole(vec![(of(5), None), (of(9), Some(4))]));
        assert_eq!(watch.seen_last(2), Ok(ResumePoint::Checkpoint(of(5))));
        assert_eq!(watch.seen_last(4), Ok(ResumePoint::Checkpoint(of(9))));
    }
}
