// SPDX-License-Identifier: Apache-2.0
//! The job's checkpoints, looked at by a thread of its own: their file system may hang, and nothing else may hang with it.
//!
//! While the workers run, the thread looks once a second what is new. Before workers start it is asked which checkpoint
//! they are to resume from; then, and only then, torn ones are moved aside and trackers corrected. An answer that nobody
//! waits for any more changes nothing.

mod choosing;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc as commands;
use std::thread;
use std::time::Duration;

use steadfast_checkpoints::{Catalogue, Depth, FindError, Manifest};
use tokio::sync::{mpsc, oneshot};

pub(super) use self::choosing::{Choice, Resume, ResumePoint};
use crate::settings::Checkpoints;

/// How often the directory is looked at while workers run.
const EVERY: Duration = Duration::from_secs(1);
/// How long the start of workers waits for an answer. Usually there is one at once: what has not changed since the last
/// look is not read again.
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
    /// Something is wrong with the directory, in words.
    Note(String),
}

/// The thread that looks.
#[derive(Debug)]
pub(super) struct CheckpointWatch {
    orders: commands::Sender<Order>,
}

#[derive(Debug)]
enum Order {
    Look,
    Choose {
        world_size: u32,
        reply: oneshot::Sender<Choice>,
    },
}

impl CheckpointWatch {
    /// Starts the thread. It ends when this is dropped.
    pub(super) fn start(
        settings: Checkpoints,
        events: mpsc::UnboundedSender<CheckpointEvent>,
    ) -> io::Result<Self> {
        let (orders, received) = commands::channel();
        thread::Builder::new()
            .name("checkpoints".to_owned())
            .spawn(move || Watch::new(settings, events).run(&received))?;
        Ok(Self { orders })
    }

    /// Looks at what the workers that end now have left behind, so that the choice has to read less.
    pub(super) fn look(&self) {
        // Without the thread nothing is chosen either, and that is said then.
        let _said_when_choosing = self.orders.send(Order::Look);
    }

    /// The checkpoint that a world of this size resumes from. `None` when the file system does not answer in time.
    pub(super) async fn choose(&self, world_size: u32) -> Option<Choice> {
        let (reply, chosen) = oneshot::channel();
        self.orders.send(Order::Choose { world_size, reply }).ok()?;
        tokio::time::timeout(PATIENCE, chosen).await.ok()?.ok()
    }
}

struct Watch {
    settings: Checkpoints,
    catalogue: Catalogue,
    events: mpsc::UnboundedSender<CheckpointEvent>,
    /// The whole ones that were there before, or have been told of.
    told: BTreeSet<PathBuf>,
    /// Whether the directory has been looked at before.
    has_looked: bool,
    /// What was said last of what is wrong.
    said: Option<String>,
}

impl Watch {
    fn new(settings: Checkpoints, events: mpsc::UnboundedSender<CheckpointEvent>) -> Self {
        let selection = settings.layout.selection();
        Self {
            catalogue: Catalogue::new(settings.directory.clone(), selection),
            settings,
            events,
            told: BTreeSet::new(),
            has_looked: false,
            said: None,
        }
    }

    fn run(mut self, orders: &commands::Receiver<Order>) {
        loop {
            match orders.recv_timeout(EVERY) {
                Ok(Order::Choose { world_size, reply }) => {
                    self.look();
                    // What is there now was made by nobody who is still to come.
                    let wanted = || !reply.is_closed();
                    let choice =
                        choosing::choose(&mut self.catalogue, &self.settings, world_size, &wanted);
                    self.tell_nothing_of_these();
                    let _impatient = reply.send(choice);
                }
                Ok(Order::Look) | Err(commands::RecvTimeoutError::Timeout) => {
                    self.look();
                    self.tell();
                }
                Err(commands::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&mut self) {
        let wrong = match self.catalogue.look() {
            Ok(_) => None,
            Err(FindError { path, source }) => Some(format!(
                "the checkpoint directory {} cannot be read: {source}",
                path.display()
            )),
        };
        if wrong != self.said {
            if let Some(text) = &wrong {
                // The agent is about to end.
                drop(self.events.send(CheckpointEvent::Note(text.clone())));
            }
            self.said = wrong;
        }
        if !self.has_looked {
            self.has_looked = true;
            self.tell_nothing_of_these();
        }
    }

    fn tell_nothing_of_these(&mut self) {
        let whole = self.catalogue.all().into_iter();
        let whole = whole.filter(|known| known.is_whole());
        self.told = whole.map(|known| known.found.path.clone()).collect();
    }

    /// Tells of what is new, whole, and does not change any more.
    fn tell(&mut self) {
        let mut is_news = false;
        for known in self.catalogue.all() {
            if !known.is_whole() {
                // It is being written again, and will be news once more.
                self.told.remove(&known.found.path);
                continue;
            }
            if !known.settled || !self.told.insert(known.found.path.clone()) {
                continue;
            }
            is_news = true;
            let written = Manifest::of(&known.found, &known.checked, Depth::Metadata)
                .and_then(|manifest| manifest.write(&known.found));
            if let Err(error) = written {
                let text = format!("no manifest of {} is kept: {error}", known.found.name);
                drop(self.events.send(CheckpointEvent::Note(text)));
            }
            drop(self.events.send(CheckpointEvent::Made {
                step: known.found.step,
                path: known.found.path.clone(),
            }));
        }
        if is_news {
            Manifest::prune(self.catalogue.directory());
        }
    }
}
