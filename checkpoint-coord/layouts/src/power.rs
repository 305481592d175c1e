// SPDX-License-Identifier: Apache-2.0
//! What may a machine that went down have taken with it?
//!
//! What a program writes stays in the memory of its machine for a while. After a power cut a file can have its full length
//! and name, and pages of zeros somewhere in it, which no look at its head and its end finds. So a checkpoint that was
//! made before the machine went down is trusted only when its manifest says that it had been flushed by then.
//!
//! By what: each node leaves a mark in `.steadfast/`. It says in which boot of its machine the node looks after the
//! checkpoints, and how new the newest file was that was there before. What was there before is none of the node's business,
//! and trusted. A directory that is empty when the workers start gets its mark when something is seen in it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::durable;
use crate::listing::Listing;
use crate::manifest::{DIRECTORY, Manifest};

const VERSION: u32 = 1;
const PREFIX: &str = "boot-";

/// A node's machine, from when it was started until it goes down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// Name of the node.
    pub node: String,
    /// Differs from one start of a machine to the next, and between machines.
    pub id: String,
}

impl Boot {
    /// The present one (`random(4)`: `/proc/sys/kernel/random/boot_id`).
    ///
    /// # Errors
    ///
    /// Where the kernel does not say.
    pub fn now(node: &str) -> io::Result<Boot> {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Boot {
            node: node.to_owned(),
            id: id.trim().to_owned(),
        })
    }
}

/// What a node has left in the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    version: u32,
    /// [`Boot::id`] of the machine that looked after the directory last.
    boot: String,
    /// Files that are newer than this were made since the machine was started, in nanoseconds since 1970 by the file
    /// system's clock.
    since_ns: i64,
    /// Checkpoints that are older and may have lost something, by name.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    doubted: BTreeSet<String>,
}

/// One checkpoint of the directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a str,
    pub(crate) listing: &'a Listing,
    /// Whether [`Doubts::cover`] it.
    pub(crate) is_doubted: bool,
}

/// Which checkpoints of a directory are not trusted.
#[derive(Clone, Debug)]
pub(crate) struct Doubts {
    directory: PathBuf,
    path: PathBuf,
    boot: Boot,
    mark: Option<Mark>,
    /// How new the newest file was at the first look.
    newest_at_first_ns: Option<i64>,
}

impl Doubts {
    /// Reads what the node has left in `directory`. A mark that cannot be read says nothing.
    pub(crate) fn read(directory: &Path, boot: Boot) -> Self {
        let path = directory
            .join(DIRECTORY)
            .join(format!("{PREFIX}{}", boot.node));
        let bytes = fs::read(&path).ok();
        let mark: Option<Mark> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Self {
            directory: directory.to_owned(),
            path,
            boot,
            mark: mark.filter(|mark| mark.version == VERSION),
            newest_at_first_ns: None,
        }
    }

    /// Whether the machine may have gone down before these files were on stable storage.
    pub(crate) fn cover(&self, name: &str, now: &Listing, manifest: Option<&Manifest>) -> bool {
        let Some(mark) = &self.mark else {
            return false;
        };
        let was_before = newest_ns(now) <= mark.since_ns;
        let may_be_lost = if was_before {
            mark.doubted.contains(name)
        } else {
            mark.boot != self.boot.id
        };
        may_be_lost && !manifest.is_some_and(|manifest| manifest.vouches_for(now))
    }

    /// Takes in what was found at a look.
    pub(crate) fn note_look<'a>(&mut self, all: impl Iterator<Item = Entry<'a>>) {
        if self.newest_at_first_ns.is_none() {
            let newest = all.map(|entry| newest_ns(entry.listing)).max();
            self.newest_at_first_ns = Some(newest.unwrap_or(0));
        }
    }

    /// Sees to it that the node's mark is there and names the present boot. `all` is what the directory holds.
    pub(crate) fn leave_mark<'a>(
        &mut self,
        all: impl Iterator<Item = Entry<'a>> + Clone,
    ) -> io::Result<()> {
        let is_there = self
            .mark
            .as_ref()
            .is_some_and(|mark| mark.boot == self.boot.id);
        // An empty directory is left as it is: some programs want it so.
        if is_there || (all.clone().next().is_none() && is_empty(&self.directory)) {
            return Ok(());
        }
        let newest = all.clone().map(|entry| newest_ns(entry.listing)).max();
        let since_ns = match &self.mark {
            // The machine was started anew, and no worker since.
            Some(_) => newest,
            None => self.newest_at_first_ns,
        };
        let doubted = all.filter(|entry| entry.is_doubted);
        let mark = Mark {
            version: VERSION,
            boot: self.boot.id.clone(),
            since_ns: since_ns.unwrap_or(0),
            doubted: doubted.map(|entry| entry.name.to_owned()).collect(),
        };
        if let Some(own) = self.path.parent() {
            durable::make_directory(own)?;
        }
        durable::write(&self.path, &serde_json::to_vec(&mark)?)?;
        self.mark = Some(mark);
        Ok(())
    }
}

/// Also where there is none, or none that can be read.
fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
}

fn newest_ns(listing: &Listing) -> i64 {
    let times = listing.files.values().map(|file| file.modified_ns);
    times.max().unwrap_or(0)
}
