// SPDX-License-Identifier: Apache-2.0
//! The files of a checkpoint, with their sizes and times: one `stat` each, nothing is opened.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::problem::Problem;

/// Deeper directories belong to no checkpoint; links in circles end here too.
const DEEPEST: u32 = 12;
/// The most files of one checkpoint. Those of the largest jobs have a few hundred thousand.
const MOST_FILES: usize = 2_000_000;

/// Size and time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFact {
    /// In bytes.
    pub size: u64,
    /// When its contents were written last, in nanoseconds since 1970 by the file system's clock. Only ever compared with
    /// other times of the same file system.
    pub modified_ns: i64,
}

/// The files of a checkpoint by their path relative to it; a checkpoint that is one file has it under its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The files.
    pub files: BTreeMap<String, FileFact>,
    /// What could not be listed.
    pub problems: Vec<Problem>,
}

impl Listing {
    /// Lists the file or directory `path`.
    ///
    /// # Errors
    ///
    /// Where `path` itself cannot be read. What is wrong inside is among the [`problems`](Listing::problems).
    pub fn read(path: &Path) -> io::Result<Listing> {
        let mut listing = Listing::default();
        let metadata = fs::metadata(path)?;
        if metadata.is_dir() {
            listing.add_directory(path, "", 0)?;
        } else {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            listing.files.insert(name.into_owned(), fact(&metadata));
        }
        Ok(listing)
    }

    /// All of it, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.size).sum()
    }

    fn add_directory(&mut self, directory: &Path, prefix: &str, depth: u32) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if let Err(error) = self.add(&entry.path(), &name, depth) {
                // What was deleted between the two calls was no part of it any more; a link that leads nowhere is.
                let link = error.kind() == io::ErrorKind::NotFound
                    && fs::symlink_metadata(entry.path()).is_ok();
                if link {
                    let because = "a symbolic link leads there";
                    self.problems.push(Problem::missing(name, because));
                } else if error.kind() != io::ErrorKind::NotFound {
                    self.problems.push(Problem::unreadable(name, error));
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, name: &str, depth: u32) -> io::Result<()> {
        let metadata = fs::metadata(path)?;
        if metadata.is_dir() {
            if depth >= DEEPEST {
                return Err(io::Error::other("too many directories within each other"));
            }
            return self.add_directory(path, &format!("{name}/"), depth + 1);
        }
        if !metadata.is_file() {
            // Opening a pipe would wait for its other end.
            let what = "is no plain file";
            self.problems.push(Problem::damaged(name, what));
            return Ok(());
        }
        if self.files.len() >= MOST_FILES {
            return Err(io::Error::other("too many files for one checkpoint"));
        }
        self.files.insert(name.to_owned(), fact(&metadata));
        Ok(())
    }
}

fn fact(metadata: &Metadata) -> FileFact {
    FileFact {
        size: metadata.len(),
        modified_ns: metadata
            .mtime()
            .saturating_mul(1_000_000_000)
            .saturating_add(metadata.mtime_nsec()),
    }
}
