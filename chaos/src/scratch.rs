// SPDX-License-Identifier: Apache-2.0
//! Where histories go that nobody wants to keep: a directory that goes with the program, even if that is killed.

use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::undo::{self, Undo, UndoJournal};

/// A directory for histories.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    undo: Option<UndoJournal>,
}

impl Scratch {
    /// The directory that the user wants, or one of its own.
    pub(crate) fn unless(wanted: Option<&Path>) -> Result<Self, Failure> {
        if let Some(path) = wanted {
            return Ok(Self {
                path: path.to_owned(),
                undo: None,
            });
        }
        let name = format!("sc-{}-histories", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let mut undo = UndoJournal::begin(&undo::default_directory(), &name)?;
        undo.will_do(Undo::RemoveDirectory { path: path.clone() })?;
        Ok(Self {
            path,
            undo: Some(undo),
        })
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            // What is left then is in the journal still, for `clean`.
            let _left = undo.undo_all();
        }
    }
}
