// SPDX-License-Identifier: Apache-2.0
//! The checkpoints of a directory, by the names of its entries and a look into them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::layout::Layout;
use crate::layouts;
use crate::rule::Rule;

/// Entries that begin so are the supervisor's own, or hidden.
const HIDDEN: char = '.';

/// Which layouts are looked for.
#[derive(Clone, Debug, Default)]
pub enum Selection {
    /// All that are known.
    #[default]
    Auto,
    /// This one.
    Only(Layout),
    /// What this rule says.
    Rule(Rule),
}

/// A checkpoint, whole or torn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// How it is laid out.
    pub layout: Layout,
    /// The step at which it was made.
    pub step: u64,
    /// Name of the entry in the directory.
    pub name: String,
    /// Where it is: a file or a directory.
    pub path: PathBuf,
}

/// An entry of the directory.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) is_dir: bool,
}

impl Entry {
    /// Whether the entry is a directory with this in it.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.is_dir && fs::symlink_metadata(self.path.join(name)).is_ok()
    }

    /// Whether the entry is a directory in which a name fulfils `test`.
    pub(crate) fn has_any(&self, test: impl Fn(&str) -> bool) -> bool {
        self.is_dir
            && fs::read_dir(&self.path).is_ok_and(|entries| {
                let mut entries = entries.filter_map(Result::ok);
                entries.any(|entry| test(&entry.file_name().to_string_lossy()))
            })
    }
}

/// A directory that cannot be searched.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the checkpoint directory {}", path.display())]
pub struct FindError {
    /// The directory.
    pub path: PathBuf,
    /// The system's words.
    #[source]
    pub source: io::Error,
}

/// The checkpoints in `directory`, oldest step first. A directory that is not there has none.
///
/// # Errors
///
/// Where it cannot be listed.
pub fn find(directory: &Path, selection: &Selection) -> Result<Vec<Found>, FindError> {
    let failed = |source| FindError {
        path: directory.to_owned(),
        source,
    };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        // A name that is not UTF-8 is none that a framework gives. A link stands for another entry, such as `last`;
        // opening a pipe would wait for its other end.
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let kind = entry.file_type().map_err(failed)?;
        if name.starts_with(HIDDEN) || !(kind.is_dir() || kind.is_file()) {
            continue;
        }
        let entry = Entry {
            path: entry.path(),
            is_dir: kind.is_dir(),
            name,
        };
        if let Some((layout, step)) = recognise(&entry, selection) {
            found.push(Found {
                layout,
                step,
                name: entry.name,
                path: entry.path,
            });
        }
    }
    found.sort_by(|a, b| (a.step, &a.name).cmp(&(b.step, &b.name)));
    Ok(found)
}

fn recognise(entry: &Entry, selection: &Selection) -> Option<(Layout, u64)> {
    let as_this = |layout| Some((layout, layouts::recognise(layout, entry)?));
    match selection {
        Selection::Auto => Layout::KNOWN.into_iter().find_map(as_this),
        Selection::Only(layout) => as_this(*layout),
        Selection::Rule(rule) => Some((Layout::Rule, rule.step(&entry.name)?)),
    }
}
