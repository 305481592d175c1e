// SPDX-License-Identifier: Apache-2.0
//! What must be undone, written down before it is done: so that even a harness that is killed leaves nothing behind.
//!
//! Each run has a journal, one JSON line for each thing, made durable before the thing itself is done. A run that comes
//! to its end undoes all of it in reverse order and removes the journal. `steadfast-chaos clean` does the same for runs
//! whose harness is gone.

mod act;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use steadfast_process::tree::Process;

pub(crate) use self::act::Undo;
use crate::failure::Failure;

/// The variable that all processes of a run carry.
pub(crate) const MARK: &str = "STEADFAST_CHAOS_RUN";

/// How often a journal is begun again whose directory goes meanwhile.
const TRIES: u32 = 10;

/// The first line of a journal: whose it is.
#[derive(Debug, Serialize, Deserialize)]
struct Owner {
    run: String,
    pid: i32,
    start_ticks: u64,
}

/// The journal of this run.
#[derive(Debug)]
pub(crate) struct UndoJournal {
    path: PathBuf,
    file: File,
    entries: Vec<Undo>,
}

impl UndoJournal {
    /// Begins the journal of a run.
    pub(crate) fn begin(directory: &Path, run: &str) -> Result<Self, Failure> {
        let path = directory.join(format!("{run}.jsonl"));
        let failed = |error| Failure::write(path.display(), error);
        let mut tries = 0..TRIES;
        let file = loop {
            fs::create_dir_all(directory).map_err(failed)?;
            match File::create_new(&path) {
                Ok(file) => break file,
                // Another run that has just ended took the directory with it.
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries.next().is_some() => {
                }
                Err(error) => return Err(failed(error)),
            }
        };
        let mut journal = Self {
            path: path.clone(),
            file,
            entries: Vec::new(),
        };
        let pid = i32::try_from(std::process::id()).unwrap_or(0);
        journal.write(&Owner {
            run: run.to_owned(),
            pid,
            start_ticks: Process::read(pid).map_or(0, |process| process.start_ticks),
        })?;
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(failed)?;
        journal.will_do(Undo::Kill {
            mark: run.to_owned(),
        })?;
        Ok(journal)
    }

    /// Writes down how to undo what is about to be done.
    pub(crate) fn will_do(&mut self, undo: Undo) -> Result<(), Failure> {
        self.write(&undo)?;
        self.entries.push(undo);
        Ok(())
    }

    /// Undoes everything, the newest first, and removes the journal. What could not be undone is told.
    pub(crate) fn undo_all(self) -> Vec<String> {
        finish(&self.path, &self.entries)
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), Failure> {
        let failed = |error| Failure::write(self.path.display(), error);
        let mut text = serde_json::to_string(line).map_err(|error| failed(error.into()))?;
        text.push('\n');
        self.file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data())
            .map_err(failed)
    }
}

/// Where the journals of this user's runs are.
pub(crate) fn default_directory() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return PathBuf::from("/run/steadfast-chaos");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) => Path::new(&directory).join("steadfast-chaos"),
        None => std::env::temp_dir().join(format!("steadfast-chaos-{}", user.as_raw())),
    }
}

/// What `clean` has found and done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Cleaned {
    /// Runs that were cleaned up after.
    pub(crate) runs: Vec<String>,
    /// Runs that are still going on.
    pub(crate) alive: Vec<String>,
    /// What could not be undone.
    pub(crate) left: Vec<String>,
}

/// Undoes what runs have left behind whose harness is gone.
pub(crate) fn clean(directory: &Path) -> Result<Cleaned, Failure> {
    let mut cleaned = Cleaned::default();
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(cleaned),
        Err(error) => return Err(Failure::read(directory.display(), error)),
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|ending| ending != "jsonl") {
            continue;
        }
        let text =
            fs::read_to_string(&path).map_err(|error| Failure::read(path.display(), error))?;
        let mut lines = text.lines();
        let owner: Option<Owner> = lines
            .next()
            .and_then(|line| serde_json::from_str(line).ok());
        let Some(owner) = owner else {
            // Its harness was killed before it could do anything.
            cleaned.left.extend(finish(&path, &[]));
            continue;
        };
        let alive = Process::read(owner.pid)
            .is_some_and(|process| process.start_ticks == owner.start_ticks && !process.is_dead());
        if alive {
            cleaned.alive.push(owner.run);
            continue;
        }
        // A last line that is not whole was never followed by its deed.
        let entries: Vec<Undo> = lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        cleaned.left.extend(finish(&path, &entries));
        cleaned.runs.push(owner.run);
    }
    Ok(cleaned)
}

/// Undoes what this very program has begun under that name and cannot go on with.
pub(crate) fn clean_own(directory: &Path, run: &str) -> Vec<String> {
    let path = directory.join(format!("{run}.jsonl"));
    let text = fs::read_to_string(&path).unwrap_or_default();
    let entries: Vec<Undo> = text
        .lines()
        .skip(1)
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    finish(&path, &entries)
}

fn finish(path: &Path, entries: &[Undo]) -> Vec<String> {
    // What is frozen must thaw before it can be killed, and be dead before its places can be removed.
    let (first, rest): (Vec<&Undo>, Vec<&Undo>) =
        entries.iter().rev().partition(|undo| undo.sets_free());
    let (kills, last): (Vec<&Undo>, Vec<&Undo>) =
        rest.into_iter().partition(|undo| undo.ends_processes());
    let in_order = first.into_iter().chain(kills).chain(last);
    let mut left: Vec<String> = in_order.filter_map(|undo| undo.carry_out().err()).collect();
    if left.is_empty()
        && let Err(error) = fs::remove_file(path)
    {
        left.push(format!("{}: {error}", path.display()));
    }
    // Unless there are journals of other runs in it.
    if let Some(directory) = path.parent() {
        let _in_use = fs::remove_dir(directory);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_ends_well_leaves_no_journal() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = UndoJournal::begin(directory.path(), "test-run-1").unwrap();
        let made = directory.path().join("made");
        journal
            .will_do(Undo::RemoveDirectory { path: made.clone() })
            .unwrap();
        fs::create_dir_all(made.join("inner")).unwrap();
        assert_eq!(journal.undo_all(), Vec::<String>::new());
        assert!(!directory.path().exists());
    }

    #[test]
    fn what_a_dead_harness_left_is_undone_and_a_living_one_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let made = directory.path().join("made");
        fs::create_dir(&made).unwrap();
        let journal = UndoJournal::begin(directory.path(), "alive").unwrap();
        let undo = serde_json::to_string(&Undo::RemoveDirectory { path: made.clone() }).unwrap();
        let owner = r#"{"run":"dead","pid":1,"start_ticks":18446744073709551615}"#;
        let torn = "{\"undo\":\"remove-dir";
        let path = directory.path().join("dead.jsonl");
        fs::write(&path, format!("{owner}\n{undo}\n{torn}")).unwrap();
        let cleaned = clean(directory.path()).unwrap();
        assert_eq!(cleaned.runs, ["dead"]);
        assert_eq!(cleaned.alive, ["alive"]);
        assert!(cleaned.left.is_empty() && !made.exists() && !path.exists());
        drop(journal);
    }

    #[test]
    fn a_directory_that_is_not_there_holds_nothing_to_clean() {
        assert_eq!(
            clean(Path::new("/nonexistent/runs")).unwrap(),
            Cleaned::default()
        );
    }
}
