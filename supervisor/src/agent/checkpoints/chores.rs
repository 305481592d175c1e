// SPDX-License-Identifier: Apache-2.0
//! What takes as long as a checkpoint is large: bringing one to stable storage, and deleting old ones.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc as commands;
use std::thread;

use steadfast_checkpoints::{Depth, Found, Known, Manifest, flush, retention};
use tokio::sync::mpsc;

use super::CheckpointEvent;

/// Something to do.
#[derive(Debug)]
pub(super) enum Chore {
    /// Flush this one, and say so. When a newer one is made meanwhile, that alone is flushed.
    Flush(Box<Known>),
    /// Delete this one, which is not needed any more.
    Delete(Found),
}

/// The thread that does it.
#[derive(Debug)]
pub(super) struct Chores {
    orders: commands::Sender<Chore>,
}

impl Chores {
    /// Starts the thread for the checkpoints of `directory`. It ends when this is dropped and all is done.
    pub(super) fn start(
        directory: PathBuf,
        events: mpsc::UnboundedSender<CheckpointEvent>,
    ) -> io::Result<Self> {
        let (orders, received) = commands::channel();
        thread::Builder::new()
            .name("checkpoint-io".to_owned())
            .spawn(move || run(&directory, &received, &events))?;
        Ok(Self { orders })
    }

    pub(super) fn give(&self, chore: Chore) {
        // A thread that is gone does nothing, and nothing is vouched for or deleted.
        let _undone = self.orders.send(chore);
    }
}

fn run(
    directory: &Path,
    orders: &commands::Receiver<Chore>,
    events: &mpsc::UnboundedSender<CheckpointEvent>,
) {
    retention::sweep(directory);
    while let Ok(first) = orders.recv() {
        let mut newest = None;
        let mut old = Vec::new();
        for chore in std::iter::once(first).chain(orders.try_iter()) {
            match chore {
                Chore::Flush(known) => newest = Some(known),
                Chore::Delete(found) => old.push(found),
            }
        }
        let told = newest.and_then(|known| bring_to_storage(&known));
        let told = told.into_iter().chain(old.iter().filter_map(delete));
        for event in told {
            // The agent is about to end.
            drop(events.send(event));
        }
    }
}

/// Flushes a checkpoint, and leaves word of that, so that it is trusted also when the machine goes down. Only then may it be
/// vouched for.
pub(super) fn flush_for_good(known: &Known) -> io::Result<()> {
    let (found, checked) = (&known.found, &known.checked);
    flush(found, &checked.listing)?;
    Manifest::of(found, checked, Depth::Metadata)
        .and_then(|manifest| manifest.flushed().write(found))
        .map_err(io::Error::other)
}

fn bring_to_storage(known: &Known) -> Option<CheckpointEvent> {
    let found = &known.found;
    match flush_for_good(known) {
        Ok(()) => Some(CheckpointEvent::Flushed {
            step: found.step,
            path: found.path.clone(),
        }),
        // The program has deleted or replaced it: there is nothing that could be vouched for.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        // It will be given anew once it does not change any more.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => None,
        Err(error) => Some(CheckpointEvent::Note(format!(
            "checkpoint {} is not on stable storage, and not committed: {error}",
            found.name
        ))),
    }
}

fn delete(found: &Found) -> Option<CheckpointEvent> {
    match retention::delete(found) {
        Ok(true) => Some(CheckpointEvent::Deleted {
            step: found.step,
            path: found.path.clone(),
        }),
        Ok(false) => None,
        Err(error) => Some(CheckpointEvent::Note(format!(
            "the old checkpoint {} cannot be deleted: {error}",
            found.name
        ))),
    }
}
