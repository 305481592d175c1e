// SPDX-License-Identifier: Apache-2.0
//! Checkpoints in a folder: which are whole, which are torn, and from which to resume.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use steadfast_checkpoints::{Checked, Found, Selection, check, find, tracker};
use steadfast_diagnosis::Signal;

/// How deep they are looked for.
const DEEPEST: usize = 5;
/// More folders are not looked into.
const MOST_FOLDERS: usize = 2000;

/// What was found.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// The folder that they lie in, seen from the one that was asked about.
    root: String,
    /// Oldest first.
    all: Vec<(Found, Checked)>,
    /// A tracker that names another one than the newest whole one.
    stray: Option<tracker::Stray>,
}

/// Looks for checkpoints in and below a folder. `None` where there are none.
pub(super) fn look(folder: &Path) -> Option<Checkpoints> {
    let mut folders = VecDeque::from([(folder.to_owned(), 0)]);
    let mut left = MOST_FOLDERS;
    while let Some((path, depth)) = folders.pop_front() {
        // A folder that cannot be read holds nothing that could be resumed from.
        let found = find(&path, &Selection::Auto).unwrap_or_default();
        if !found.is_empty() {
            return Some(examine(folder, &path, found));
        }
        let Ok(entries) = fs::read_dir(&path) else {
            continue;
        };
        let mut below: Vec<PathBuf> = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect();
        below.sort();
        left = left.checked_sub(below.len())?;
        if depth < DEEPEST {
            folders.extend(below.into_iter().map(|path| (path, depth + 1)));
        }
    }
    None
}

fn examine(folder: &Path, root: &Path, found: Vec<Found>) -> Checkpoints {
    let all: Vec<(Found, Checked)> = found
        .into_iter()
        .map(|found| {
            let checked = check(&found, &Selection::Auto);
            (found, checked)
        })
        .collect();
    let newest = all.iter().rev().find(|(_, checked)| checked.is_whole());
    // What cannot be read points nowhere.
    let stray = newest.and_then(|(found, _)| tracker::stray(found).ok().flatten());
    let root = root.strip_prefix(folder).unwrap_or(root);
    Checkpoints {
        root: if root.as_os_str().is_empty() {
            ".".to_owned()
        } else {
            root.display().to_string()
        },
        all,
        stray,
    }
}

impl Checkpoints {
    fn names(&self, whole: bool) -> Vec<&str> {
        let all = self.all.iter();
        all.filter(|(_, checked)| checked.is_whole() == whole)
            .map(|(found, _)| found.name.as_str())
            .collect()
    }

    fn newest_good(&self) -> &str {
        self.names(true).last().copied().unwrap_or("none")
    }

    pub(super) fn is_any_torn(&self) -> bool {
        !self.names(false).is_empty()
    }

    pub(super) fn summary(&self) -> String {
        match (self.is_any_torn(), self.newest_good()) {
            (false, newest) => format!(
                "all checkpoints in {} are whole, the newest is {newest}",
                self.root
            ),
            (true, "none") => format!("no checkpoint in {} is whole", self.root),
            (true, newest) => format!(
                "{} in {} cannot be resumed from; the newest whole one is {newest}",
                self.names(false).join(", "),
                self.root
            ),
        }
    }

    /// Why the torn ones are torn.
    pub(super) fn signals(&self) -> Vec<Signal> {
        let all = self.all.iter();
        all.flat_map(|(found, checked)| {
            checked.problems.iter().map(|problem| Signal {
                file: format!("{}/{}", self.root, found.name),
                line: 0,
                meaning: problem.to_string(),
                text: String::new(),
            })
        })
        .collect()
    }

    pub(super) fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut set = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        if let Some((found, _)) = self.all.last() {
            set("layout", found.layout.to_string().into());
        }
        set("root", self.root.as_str().into());
        set("newest_good", self.newest_good().into());
        set("torn", json!(self.names(false)));
        set("must_keep", json!(self.names(true)));
        set("move_aside", json!(self.names(false)));
        if let Some(stray) = &self.stray {
            let file = stray.path.file_name().unwrap_or_default().to_string_lossy();
            set(
                "pointer",
                json!({ "file": file, "says": stray.says, "should_say": stray.should_say }),
            );
        }
        fields
    }
}

impl fmt::Display for Checkpoints {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "resume    {} of {}",
            self.newest_good(),
            self.root
        )?;
        for (found, checked) in &self.all {
            let state = if checked.is_whole() { "whole" } else { "torn" };
            writeln!(formatter, "          {} {state}", found.name)?;
        }
        if let Some(stray) = &self.stray {
            writeln!(
                formatter,
                "pointer   {} names {}, and should name {}",
                stray.path.display(),
                stray.says.as_deref().unwrap_or("nothing"),
                stray.should_say
            )?;
        }
        Ok(())
    }
}
