// SPDX-License-Identifier: Apache-2.0
//! A file by which a program is asked for a checkpoint.

use std::fs;
use std::io;
use std::path::PathBuf;

/// The file that a program looks for.
#[derive(Debug)]
pub(super) struct RequestFile {
    path: PathBuf,
    is_there: bool,
}

impl RequestFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            // An earlier agent may have left it.
            is_there: true,
        }
    }

    /// Makes the file when a checkpoint is wanted, and removes it when none is. A program that removes it by itself when it
    /// has seen it is not asked again.
    pub(super) fn show(&mut self, is_wanted: bool) -> io::Result<()> {
        if is_wanted == self.is_there {
            return Ok(());
        }
        if is_wanted {
            fs::write(&self.path, "")?;
        } else if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        self.is_there = is_wanted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_there_while_a_checkpoint_is_wanted_and_what_was_left_goes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("save-now");
        fs::write(&path, "").unwrap();
        let mut file = RequestFile::new(path.clone());
        file.show(false).unwrap();
        assert!(!path.exists(), "an earlier agent has left it");
        file.show(true).unwrap();
        assert!(path.exists());
        fs::remove_file(&path).unwrap();
        file.show(true).unwrap();
        assert!(!path.exists(), "the program has seen it");
        file.show(false).unwrap();
        let mut nowhere = RequestFile::new(directory.path().join("none/save-now"));
        nowhere.show(false).unwrap();
        assert!(nowhere.show(true).is_err());
    }
}
