// SPDX-License-Identifier: Apache-2.0
//! The checkpoints of a directory, looked at again and again: what has not changed is not opened twice.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::check::{Checked, check_listed};
use crate::find::{FindError, Found, Selection, find};
use crate::listing::Listing;
use crate::manifest::{Comparison, Manifest};
use crate::power::{Boot, Doubts, Entry};
use crate::problem::Problem;

/// A checkpoint and what is known about it.
#[derive(Clone, Debug)]
pub struct Known {
    /// Which one.
    pub found: Found,
    /// What was found out.
    pub checked: Checked,
    /// Whether it was the same the last time: several layouts have no mark of their end, and may look whole while the last
    /// file is still to come.
    pub settled: bool,
}

impl Known {
    /// Whether nothing is wrong with it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.checked.is_whole()
    }

    /// Whether nobody can say, because it cannot be read.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.checked.is_unknown()
    }
}

/// The checkpoints of a directory.
#[derive(Debug)]
pub struct Catalogue {
    directory: PathBuf,
    selection: Selection,
    known: BTreeMap<PathBuf, Known>,
    doubts: Option<Doubts>,
}

impl Catalogue {
    /// Of this directory; it is not looked at yet.
    #[must_use]
    pub fn new(directory: PathBuf, selection: Selection) -> Self {
        Self {
            directory,
            selection,
            known: BTreeMap::new(),
            doubts: None,
        }
    }

    /// The same as a node sees it: what its machine may have lost when it went down counts as torn.
    #[must_use]
    pub fn seen_in(self, boot: Boot) -> Self {
        Self {
            doubts: Some(Doubts::read(&self.directory, boot)),
            ..self
        }
    }

    /// Leaves a mark, so that what is made from now on is known to be made in this boot of the machine. To be called after
    /// each look of the node that looks after the directory; it writes once at most, and nothing into an empty one.
    ///
    /// # Errors
    ///
    /// Where the mark cannot be written.
    pub fn leave_mark(&mut self) -> std::io::Result<()> {
        match &mut self.doubts {
            Some(doubts) => doubts.leave_mark(self.known.values().map(as_entry)),
            None => Ok(()),
        }
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Looks at the directory, and into every checkpoint that has changed. What there is now, oldest step first.
    ///
    /// # Errors
    ///
    /// Where the directory cannot be read; what is known stays as it is then.
    pub fn look(&mut self) -> Result<Vec<&Known>, FindError> {
        let mut before = std::mem::take(&mut self.known);
        let all = match find(&self.directory, &self.selection) {
            Ok(all) => all,
            Err(error) => {
                self.known = before;
                return Err(error);
            }
        };
        for found in all {
            let known = before.remove(&found.path);
            if let Some(known) = self.look_at(found, known) {
                self.known.insert(known.found.path.clone(), known);
            }
        }
        if let Some(doubts) = &mut self.doubts {
            doubts.note_look(self.known.values().map(as_entry));
        }
        Ok(self.all())
    }

    /// What there was at the last look, oldest step first.
    #[must_use]
    pub fn all(&self) -> Vec<&Known> {
        let mut all: Vec<&Known> = self.known.values().collect();
        all.sort_by(|a, b| (a.found.step, &a.found.name).cmp(&(b.found.step, &b.found.name)));
        all
    }

    /// The newest whole one for this many workers, no newer than `at_most`.
    #[must_use]
    pub fn newest_whole(&self, world_size: u32, at_most: Option<u64>) -> Option<&Known> {
        let mut all = self.all();
        all.retain(|known| {
            let in_time = at_most.is_none_or(|step| known.found.step <= step);
            in_time && known.is_whole() && known.checked.fits(world_size)
        });
        all.pop()
    }

    /// `None` for what was deleted meanwhile.
    fn look_at(&self, found: Found, before: Option<Known>) -> Option<Known> {
        let listing = match Listing::read(&found.path) {
            Ok(listing) => listing,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                let problem = Problem::unreadable(found.name.clone(), error);
                let checked = Checked {
                    problems: vec![problem],
                    ..Checked::default()
                };
                return Some(Known {
                    found,
                    checked,
                    settled: false,
                });
            }
        };
        if let Some(known) = before.filter(|known| known.checked.listing == listing) {
            // What was still being written then may have got its mark since, without a change to itself.
            let beside = known.found.layout.has_marks_beside() && !known.is_whole();
            // What could not be read then, perhaps can be now.
            let unread = known.checked.problems.iter().any(Problem::is_of_reading);
            if !beside && !unread {
                return Some(Known {
                    settled: true,
                    ..known
                });
            }
        }
        let mut checked = check_listed(&found, &self.selection, listing);
        // One that cannot be read is as good as none.
        let manifest = Manifest::read(&found).ok().flatten();
        if let Some(manifest) = &manifest
            && let Comparison::Damaged(problems) = manifest.compare(&checked.listing)
        {
            let new = |problem: &Problem| !checked.problems.contains(problem);
            let problems: Vec<Problem> = problems.into_iter().filter(new).collect();
            checked.problems.extend(problems);
        }
        let doubts = self.doubts.as_ref();
        if doubts
            .is_some_and(|doubts| doubts.cover(&found.name, &checked.listing, manifest.as_ref()))
        {
            checked.problems.push(Problem::Unflushed);
        }
        Some(Known {
            found,
            checked,
            settled: false,
        })
    }
}

fn as_entry(known: &Known) -> Entry<'_> {
    Entry {
        name: &known.found.name,
        listing: &known.checked.listing,
        is_doubted: known.checked.problems.contains(&Problem::Unflushed),
    }
}
