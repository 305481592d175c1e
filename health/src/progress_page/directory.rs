// SPDX-License-Identifier: Apache-2.0
//! All pages of one worker: its own process, and those that it has started.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use super::{Page, PageFile};

/// More pages than any worker has; whatever more there is, is ignored.
const MOST_PAGES: usize = 256;
/// More names than any directory of pages has.
const MOST_NAMES: usize = 10_000;
const ENDING: &str = "page";

/// A directory of pages.
#[derive(Debug)]
pub struct PageDirectory {
    path: PathBuf,
    pages: BTreeMap<OsString, Entry>,
    overfull: bool,
}

/// What a look at the pages has shown.
#[derive(Debug, Default)]
pub struct Look {
    /// The pages that make sense, as they are now; the last state of those that were being written.
    pub pages: Vec<Page>,
    /// What is wrong with others, in words: each once.
    pub notes: Vec<String>,
}

#[derive(Debug)]
enum Entry {
    Open(PageFile, Option<Box<Page>>),
    Ignored,
}

impl PageDirectory {
    /// The pages in the directory `path`, which need not exist.
    pub fn new(path: PathBuf) -> PageDirectory {
        PageDirectory {
            path,
            pages: BTreeMap::new(),
            overfull: false,
        }
    }

    /// Looks for pages that have come or gone.
    pub fn scan(&mut self) -> Vec<String> {
        let mut notes = Vec::new();
        match names(&self.path) {
            Ok(names) => {
                let gone: Vec<OsString> = self
                    .pages
                    .keys()
                    .filter(|name| !names.contains(name))
                    .cloned()
                    .collect();
                for name in gone {
                    if matches!(self.pages.remove(&name), Some(Entry::Open(..))) {
                        notes.push(self.note(&name, "has vanished"));
                    }
                }
                for name in names {
                    self.add(name, &mut notes);
                }
            }
            Err(error) => notes.extend(self.lost(&error)),
        }
        notes
    }

    /// Reads all pages. `now_ns` is the time of the monotonic clock.
    pub fn look(&mut self, now_ns: u64) -> Look {
        let mut look = Look::default();
        for (name, entry) in &mut self.pages {
            let Entry::Open(file, last) = entry else {
                continue;
            };
            match file.read(now_ns) {
                Ok(Some(page)) => *last = Some(Box::new(page)),
                Ok(None) => {}
                Err(fault) => {
                    look.notes.push(note(&self.path, name, &in_full(&fault)));
                    *entry = Entry::Ignored;
                    continue;
                }
            }
            look.pages.extend(last.as_deref().cloned());
        }
        look
    }

    /// Asks every process with a page for a checkpoint at `step`, as [`PageFile::request_checkpoint`] does. Returns how
    /// many have been asked.
    pub fn request_checkpoint(&self, step: u64, hold_until_ns: u64) -> usize {
        self.pages
            .values()
            .filter(|entry| match entry {
                Entry::Open(file, _) => file.request_checkpoint(step, hold_until_ns).is_ok(),
                Entry::Ignored => false,
            })
            .count()
    }

    fn add(&mut self, name: OsString, notes: &mut Vec<String>) {
        if self.pages.contains_key(&name) {
            return;
        }
        if self.pages.len() >= MOST_PAGES {
            if !self.overfull {
                self.overfull = true;
                notes.push(format!(
                    "{} has more than {MOST_PAGES} progress pages: the others are ignored",
                    self.path.display()
                ));
            }
            return;
        }
        let entry = match PageFile::open(&self.path.join(&name)) {
            Ok(file) => Entry::Open(file, None),
            Err(fault) => {
                notes.push(self.note(&name, &in_full(&fault)));
                Entry::Ignored
            }
        };
        self.pages.insert(name, entry);
    }

    /// The directory cannot be read: nothing more is known of what is in it.
    fn lost(&mut self, error: &io::Error) -> Option<String> {
        let had_pages = !self.pages.is_empty();
        self.pages.clear();
        let missing = error.kind() == io::ErrorKind::NotFound;
        (had_pages || !missing)
            .then(|| format!("{} cannot be read any more: {error}", self.path.display()))
    }

    fn note(&self, name: &OsStr, what: &str) -> String {
        note(&self.path, name, what)
    }
}

fn note(directory: &Path, name: &OsStr, what: &str) -> String {
    let path = directory.join(name);
    format!("the progress page {} {what}: it is ignored", path.display())
}

fn in_full(fault: &dyn Error) -> String {
    match fault.source() {
        Some(source) => format!("{fault} ({source})"),
        None => fault.to_string(),
    }
}

fn names(directory: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)?.take(MOST_NAMES) {
        let name = entry?.file_name();
        let path = Path::new(&name);
        if path.extension().is_some_and(|ending| ending == ENDING) {
            names.push(name);
        }
    }
    Ok(names)
}
