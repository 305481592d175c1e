// SPDX-License-Identifier: Apache-2.0
//! What a checkpoint consisted of when it was found whole: `.steadfast/NAME.json` beside it. Several layouts have nothing
//! by which a file can be missed or found short later; this does.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::check::Checked;
use crate::find::Found;
use crate::listing::{FileFact, Listing};
use crate::problem::Problem;
use crate::{durable, hash};

pub(crate) const DIRECTORY: &str = ".steadfast";
const VERSION: u32 = 1;

/// How closely files are looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// Names, sizes, times, and what their layout says of itself.
    #[default]
    Metadata,
    /// Every byte, by its hash.
    Full,
}

/// The record of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    version: u32,
    layout: String,
    step: u64,
    world_size: Option<u32>,
    files: BTreeMap<String, FileFact>,
    /// Whether all of them were on stable storage when this was written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    flushed: bool,
    /// BLAKE3 of each file, where they were all read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    blake3: BTreeMap<String, String>,
}

/// What a manifest says of the files that are there now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Nothing has changed.
    Same,
    /// Nothing is as it was: another checkpoint has taken the place.
    Replaced,
    /// Some files are as they were, and these are not.
    Damaged(Vec<Problem>),
}

/// A manifest that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The file system refuses.
    #[error("cannot access {}", path.display())]
    Io {
        /// The manifest.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// A file of the checkpoint cannot be read.
    #[error("cannot read {file} of the checkpoint")]
    File {
        /// Which one.
        file: String,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// It is no manifest, or one of a later version.
    #[error("{} is not a manifest that this version can read", path.display())]
    Unknown {
        /// The manifest.
        path: PathBuf,
    },
}

impl Manifest {
    /// Where the manifest of a checkpoint is.
    #[must_use]
    pub fn path(found: &Found) -> PathBuf {
        let name = format!("{}.json", found.name);
        found.path.with_file_name(DIRECTORY).join(name)
    }

    /// The manifest of a checkpoint, if it has one.
    ///
    /// # Errors
    ///
    /// Where there is one that cannot be read.
    pub fn read(found: &Found) -> Result<Option<Manifest>, ManifestError> {
        let path = Self::path(found);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(ManifestError::Io { path, source }),
        };
        let manifest: Option<Manifest> = serde_json::from_slice(&bytes).ok();
        match manifest.filter(|manifest| manifest.version == VERSION) {
            Some(manifest) => Ok(Some(manifest)),
            None => Err(ManifestError::Unknown { path }),
        }
    }

    /// Makes the manifest of a checkpoint that was found whole; with [`Depth::Full`] every file is read.
    ///
    /// # Errors
    ///
    /// Where a file cannot be read.
    pub fn of(found: &Found, checked: &Checked, depth: Depth) -> Result<Manifest, ManifestError> {
        let blake3 = match depth {
            Depth::Metadata => BTreeMap::new(),
            Depth::Full => hashes(found, &checked.listing)?,
        };
        Ok(Manifest {
            version: VERSION,
            layout: found.layout.name().to_owned(),
            step: found.step,
            world_size: checked.world_size,
            files: checked.listing.files.clone(),
            flushed: false,
            blake3,
        })
    }

    /// The same with the word that [`flush`](crate::flush) has brought the files to stable storage: they are trusted also
    /// when the machine goes down.
    #[must_use]
    pub fn flushed(self) -> Manifest {
        Manifest {
            flushed: true,
            ..self
        }
    }

    /// Whether the files were flushed and are as they were then. What was added later does not count.
    #[must_use]
    pub fn vouches_for(&self, now: &Listing) -> bool {
        let unchanged = |(name, then): (&String, &FileFact)| now.files.get(name) == Some(then);
        self.flushed && self.files.iter().all(unchanged)
    }

    /// Puts it beside the checkpoint, for good: it is on the disk when this returns.
    ///
    /// # Errors
    ///
    /// Where it cannot be written.
    pub fn write(&self, found: &Found) -> Result<(), ManifestError> {
        self.put(found, durable::write)
    }

    /// The same, unless there is one already that says the same of the files: of nodes that share the directory, one may have
    /// flushed them, and none may take that back.
    ///
    /// # Errors
    ///
    /// Where it cannot be written.
    pub fn write_if_news(&self, found: &Found) -> Result<(), ManifestError> {
        match Self::read(found) {
            Ok(Some(before)) if before.files == self.files => Ok(()),
            Ok(None) => self.put(found, |path, text| match durable::create(path, text) {
                // Another node was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                created => created,
            }),
            // Of another checkpoint that was in its place, or one that cannot be read.
            Ok(Some(_)) | Err(_) => self.write(found),
        }
    }

    fn put(
        &self,
        found: &Found,
        write: impl FnOnce(&Path, &[u8]) -> io::Result<()>,
    ) -> Result<(), ManifestError> {
        let path = Self::path(found);
        let failed = |source| ManifestError::Io {
            path: path.clone(),
            source,
        };
        let text = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        path.parent()
            .map_or(Ok(()), durable::make_directory)
            .and_then(|()| write(&path, &text))
            .map_err(failed)
    }

    /// Removes the manifests of checkpoints that are gone from a directory.
    pub fn prune(directory: &Path) {
        let Ok(entries) = fs::read_dir(directory.join(DIRECTORY)) else {
            return;
        };
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let gone = name
                .strip_suffix(".json")
                .filter(|name| !name.starts_with('.'))
                .is_some_and(|name| !directory.join(name).exists());
            if gone {
                // One that stays does no harm: there is nothing that it could be compared with.
                drop(fs::remove_file(entry.path()));
            }
        }
    }

    /// Whether it holds hashes.
    #[must_use]
    pub fn has_hashes(&self) -> bool {
        !self.blake3.is_empty()
    }

    /// Compares names, sizes and times.
    #[must_use]
    pub fn compare(&self, now: &Listing) -> Comparison {
        if self.files == now.files {
            return Comparison::Same;
        }
        let unchanged = |(name, fact): (&String, &FileFact)| now.files.get(name) == Some(fact);
        if !self.files.iter().any(unchanged) {
            return Comparison::Replaced;
        }
        let problems: Vec<Problem> = self
            .files
            .iter()
            .filter_map(|(name, then)| match now.files.get(name) {
                None => Some(Problem::missing(
                    name.as_str(),
                    "it was there when the checkpoint was found whole",
                )),
                Some(now) if now.size < then.size => Some(Problem::Short {
                    file: name.clone(),
                    size: now.size,
                    expected: then.size,
                }),
                Some(_) => None,
            })
            .collect();
        Comparison::Damaged(problems)
    }

    /// Reads every file and compares it with its hash.
    ///
    /// # Errors
    ///
    /// Where a file cannot be read.
    pub fn compare_hashes(
        &self,
        found: &Found,
        now: &Listing,
    ) -> Result<Vec<Problem>, ManifestError> {
        let hashes = hashes(found, now)?;
        let differs = |(name, hash): (&String, &String)| {
            let now = hashes.get(name)?;
            let what = "is not what it was when the checkpoint was found whole (its hash differs)";
            (now != hash).then(|| Problem::damaged(name.as_str(), what))
        };
        Ok(self.blake3.iter().filter_map(differs).collect())
    }
}

fn hashes(found: &Found, listing: &Listing) -> Result<BTreeMap<String, String>, ManifestError> {
    let names: Vec<&str> = listing.files.keys().map(String::as_str).collect();
    hashes_of(found, &names)
}

/// BLAKE3 of these files of a checkpoint.
pub(crate) fn hashes_of(
    found: &Found,
    names: &[&str],
) -> Result<BTreeMap<String, String>, ManifestError> {
    let root = if found.path.is_dir() {
        found.path.as_path()
    } else {
        found.path.parent().unwrap_or(Path::new("."))
    };
    let read = |(file, hash): (String, io::Result<String>)| match hash {
        Ok(hash) => Ok((file, hash)),
        Err(source) => Err(ManifestError::File { file, source }),
    };
    hash::files(root, names).into_iter().map(read).collect()
}
