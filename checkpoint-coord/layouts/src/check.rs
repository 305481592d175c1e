// SPDX-License-Identifier: Apache-2.0
//! Is one checkpoint whole?

use std::fs::File;
use std::path::Path;

use crate::content::pickle::Pickle;
use crate::content::{self, Slice, torch_file};
use crate::find::{Found, Selection};
use crate::layouts;
use crate::listing::{FileFact, Listing};
use crate::problem::Problem;

/// With how many workers a checkpoint can be loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sizes {
    /// Any number, as far as its layout says.
    #[default]
    Any,
    /// As many as saved it.
    Same,
}

/// What was found out about a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Its files when it was looked at.
    pub listing: Listing,
    /// Why it is torn; empty when it is whole.
    pub problems: Vec<Problem>,
    /// How many workers saved it, where it says so.
    pub world_size: Option<u32>,
    /// With how many it can be loaded.
    pub sizes: Sizes,
}

impl Checked {
    /// Whether nothing is wrong with it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.problems.is_empty()
    }

    /// Whether nobody can say: some of it cannot be read, and nothing else is wrong with it.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        !self.is_whole() && self.problems.iter().all(Problem::is_of_reading)
    }

    /// The only world size that can load it, if that matters.
    #[must_use]
    pub fn only_for(&self) -> Option<u32> {
        match self.sizes {
            Sizes::Same => self.world_size,
            Sizes::Any => None,
        }
    }

    /// Whether a world of this size can load it.
    #[must_use]
    pub fn fits(&self, world_size: u32) -> bool {
        self.only_for().is_none_or(|saved| saved == world_size)
    }
}

/// Looks at a checkpoint: lists its files and opens each of them.
#[must_use]
pub fn check(found: &Found, selection: &Selection) -> Checked {
    match Listing::read(&found.path) {
        Ok(listing) => check_listed(found, selection, listing),
        Err(error) => Checked {
            problems: vec![Problem::unreadable(found.name.clone(), error)],
            ..Checked::default()
        },
    }
}

/// The same for files that have been listed just now.
pub(crate) fn check_listed(found: &Found, selection: &Selection, listing: Listing) -> Checked {
    let mut checked = Checked {
        problems: listing.problems.clone(),
        ..Checked::default()
    };
    let is_dir = found.path.is_dir();
    let root = if is_dir {
        found.path.as_path()
    } else {
        found.path.parent().unwrap_or(Path::new("."))
    };
    let tree = Tree {
        root,
        prefix: String::new(),
        listing: &listing,
    };
    tree.check_contents(&mut checked.problems);
    match selection {
        Selection::Rule(rule) => rule.check(&tree, is_dir, &mut checked),
        _ => layouts::check(found, &tree, &mut checked),
    }
    checked.listing = listing;
    checked
}

/// A checkpoint's files, or those under one of its directories.
#[derive(Clone, Debug)]
pub(crate) struct Tree<'a> {
    root: &'a Path,
    prefix: String,
    listing: &'a Listing,
}

impl<'a> Tree<'a> {
    /// The directory `name` in it.
    pub(crate) fn under(&self, name: &str) -> Tree<'a> {
        Tree {
            prefix: format!("{}{name}/", self.prefix),
            ..self.clone()
        }
    }

    /// `name` as problems call it.
    pub(crate) fn shown(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The files, by their path in this tree.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&'a str, FileFact)> + use<'a> {
        let prefix = self.prefix.clone();
        let from = self.listing.files.range(prefix.clone()..);
        from.map_while(move |(name, fact)| Some((name.strip_prefix(&prefix)?, *fact)))
    }

    pub(crate) fn file(&self, name: &str) -> Option<FileFact> {
        self.listing.files.get(&self.shown(name)).copied()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file(name).is_some()
    }

    /// The directories and files directly in it that are directories.
    pub(crate) fn directories(&self) -> Vec<&'a str> {
        let mut names: Vec<&str> = self
            .files()
            .filter_map(|(name, _)| Some(name.split_once('/')?.0))
            .collect();
        names.dedup();
        names
    }

    /// Notes that `name` is missing, unless it is there.
    pub(crate) fn require(&self, name: &str, because: &str, problems: &mut Vec<Problem>) {
        if !self.has(name) {
            problems.push(Problem::missing(self.shown(name), because));
        }
    }

    pub(crate) fn open(&self, name: &str) -> std::io::Result<File> {
        File::open(self.root.join(self.shown(name)))
    }

    /// What `torch.save` put into a file. `None` where it cannot be read; its contents are checked elsewhere.
    pub(crate) fn pickled(&self, name: &str) -> Option<Pickle> {
        let size = self.file(name)?.size;
        let file = self.open(name).ok()?;
        torch_file::pickled(&Slice::new(&file, 0, size)).ok()?
    }

    /// The JSON value in a file. `None` where it cannot be read; what is named `.json` is checked elsewhere.
    pub(crate) fn json(&self, name: &str) -> Option<serde_json::Value> {
        let size = self.file(name)?.size;
        content::json(&self.root.join(self.shown(name)), size)
            .ok()?
            .ok()
    }

    /// Is each file what its name promises?
    fn check_contents(&self, problems: &mut Vec<Problem>) {
        for (name, fact) in self.files() {
            match content::flaw(&self.root.join(self.shown(name)), fact.size) {
                Ok(None) => {}
                Ok(Some(what)) => problems.push(Problem::damaged(self.shown(name), what)),
                Err(error) => problems.push(Problem::unreadable(self.shown(name), error)),
            }
        }
    }
}
