// SPDX-License-Identifier: Apache-2.0
//! Which checkpoints are not needed any more?
//!
//! Only what is older than one that the whole job has committed can be superfluous. What is torn, what is newer, what a link
//! or the newest checkpoint itself refers to, and what the running workers came from, stays.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use crate::catalogue::{Catalogue, Known};
use crate::durable;
use crate::find::Found;
use crate::layout::Layout;

/// What the name of one begins with that is being deleted: hidden, and like no name that a framework gives.
pub const PREFIX: &str = ".steadfast-old-";

/// What is to be kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention<'a> {
    /// How many of the newest whole ones, the committed one among them.
    pub keep: NonZeroU32,
    /// The step that the job has committed last.
    pub committed: u64,
    /// Number of workers of the running generation; those that only other sizes can load are not counted among the kept.
    pub world_size: Option<u32>,
    /// What the running workers came from.
    pub in_use: Option<&'a Path>,
}

impl Retention<'_> {
    /// What may be deleted, oldest first. Nothing as long as the committed one itself is not seen whole.
    #[must_use]
    pub fn superseded<'c>(&self, catalogue: &'c Catalogue) -> Vec<&'c Known> {
        let mut whole = catalogue.all();
        whole.retain(|known| known.is_whole() && known.found.step <= self.committed);
        let fits = |known: &&Known| {
            let size = self.world_size;
            size.is_none_or(|size| known.checked.fits(size))
        };
        let usable: Vec<&Known> = whole.iter().copied().filter(fits).collect();
        if usable.last().map(|known| known.found.step) != Some(self.committed) {
            return Vec::new();
        }
        let keep = usize::try_from(self.keep.get()).unwrap_or(usize::MAX);
        let Some(oldest_kept) = usable.iter().rev().take(keep).next_back() else {
            return Vec::new();
        };
        let mut referred_to = linked(catalogue.directory());
        referred_to.extend(best_of(usable.last().copied()));
        referred_to.extend(self.in_use.map(Path::to_owned));
        let oldest_kept = oldest_kept.found.step;
        whole.retain(|known| {
            known.found.step < oldest_kept && !referred_to.contains(&known.found.path)
        });
        whole
    }
}

/// Deletes a checkpoint: it is renamed first, so that a half deleted one is never taken for one. Whether it was still there.
///
/// # Errors
///
/// Where it can be neither renamed nor removed.
pub fn delete(found: &Found) -> io::Result<bool> {
    let name = format!("{PREFIX}{}", found.name);
    let doomed = found.path.with_file_name(name);
    // A remainder of an earlier try.
    remove(&doomed)?;
    match durable::rename(&found.path, &doomed) {
        Ok(()) => {}
        // Another node, or the program itself, was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    remove(&doomed)?;
    Ok(true)
}

/// Deletes what [`delete`] has left when it was interrupted. What cannot be deleted is left for the next time.
pub fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            drop(remove(&entry.path()));
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    let gone = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match gone {
        // Another node deletes the same.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        gone => gone,
    }
}

/// What the links in the directory lead to, such as `last.ckpt`.
fn linked(directory: &Path) -> BTreeSet<PathBuf> {
    let Ok(real) = fs::canonicalize(directory) else {
        return BTreeSet::new();
    };
    let entries = fs::read_dir(directory).into_iter().flatten();
    let links = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    let targets = links.filter_map(|entry| {
        let target = fs::canonicalize(entry.path()).ok()?;
        // The first part below the directory: a link may lead into a checkpoint.
        let inside = target.strip_prefix(&real).ok()?.components().next()?;
        Some(directory.join(inside))
    });
    targets.collect()
}

/// The best one so far, which Hugging Face's Trainer loads at the end.
fn best_of(newest: Option<&Known>) -> Option<PathBuf> {
    let newest = newest.filter(|known| known.found.layout == Layout::HuggingFace)?;
    let text = fs::read(newest.found.path.join("trainer_state.json")).ok()?;
    let state: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let best = Path::new(state.get("best_model_checkpoint")?.as_str()?);
    Some(newest.found.path.with_file_name(best.file_name()?))
}
