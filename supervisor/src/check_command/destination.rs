// SPDX-License-Identifier: Apache-2.0
//! Where a report goes.

use std::fs::Permissions;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::CheckError;

/// Collectors of metrics run as another user.
const MODE: u32 = 0o644;

/// Where a report goes.
#[derive(Debug)]
pub(super) enum Destination {
    StandardOutput,
    File(PathBuf),
}

impl Destination {
    pub(super) fn new(file: Option<&Path>) -> Self {
        file.map_or(Self::StandardOutput, |file| Self::File(file.to_owned()))
    }

    /// Writes it whole: whoever reads the file sees either the one before or this one.
    pub(super) fn write(&self, text: &str) -> Result<(), CheckError> {
        match self {
            Self::StandardOutput => match io::stdout().lock().write_all(text.as_bytes()) {
                // A reader that went away (`| head`) is no failure.
                Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(CheckError::Write {
                    to: "standard output".to_owned(),
                    reason: error,
                }),
                _ => Ok(()),
            },
            Self::File(file) => replace(file, text).map_err(|reason| CheckError::Write {
                to: file.display().to_string(),
                reason,
            }),
        }
    }
}

fn replace(file: &Path, text: &str) -> io::Result<()> {
    let directory = match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    // Collectors take every file whose name ends as it should.
    let mut new = tempfile::Builder::new()
        .prefix(".steadfast-check-")
        .suffix(".new")
        .permissions(Permissions::from_mode(MODE))
        .tempfile_in(directory)?;
    new.write_all(text.as_bytes())?;
    new.persist(file).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_others_may_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("checks.prom");
        std::fs::write(&file, "old and longer").unwrap();
        Destination::new(Some(&file)).write("new").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o444, 0o444);
        let nowhere = directory.path().join("no/where.prom");
        let error = Destination::new(Some(&nowhere)).write("new").unwrap_err();
        assert!(
            error.to_string().contains("no/where.prom: No such file"),
            "{error}"
        );
    }
}
