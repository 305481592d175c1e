// SPDX-License-Identifier: Apache-2.0
//! A file of JSON lines that somebody else is writing.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// The lines of a file, each of which is read once.
#[derive(Debug)]
pub(crate) struct Lines<T> {
    path: PathBuf,
    read_bytes: u64,
    holds: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Lines<T> {
    /// The file need not be there yet.
    pub(crate) fn of(path: PathBuf) -> Self {
        Self {
            path,
            read_bytes: 0,
            holds: PhantomData,
        }
    }

    /// The whole lines that have come since the last call.
    pub(crate) fn fresh(&mut self) -> Result<Vec<T>, Failure> {
        let fresh = match read_from(&self.path, self.read_bytes) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Failure::read(self.path.display(), error)),
        };
        let whole = fresh
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        let lines = fresh.get(..whole).unwrap_or_default();
        let records = lines
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(serde_json::from_slice)
            .collect::<Result<_, _>>()
            .map_err(|error| {
                Failure::Unexpected(format!(
                    "{} holds a line that is no record: {error}",
                    self.path.display()
                ))
            })?;
        self.read_bytes += whole as u64;
        Ok(records)
    }
}

fn read_from(path: &Path, from: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn only_whole_lines_are_read_and_none_twice() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut lines = Lines::<u32>::of(file.path().to_owned());
        write!(file, "1\n2\n3").unwrap();
        assert_eq!(lines.fresh().unwrap(), [1, 2]);
        writeln!(file, "4").unwrap();
        assert_eq!(lines.fresh().unwrap(), [34]);
        assert!(lines.fresh().unwrap().is_empty());
    }

    #[test]
    fn a_line_that_is_no_record_is_an_error_and_no_file_is_none() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "what?").unwrap();
        assert!(Lines::<u32>::of(file.path().to_owned()).fresh().is_err());
        let absent = file.path().with_extension("absent");
        assert!(Lines::<u32>::of(absent).fresh().unwrap().is_empty());
    }
}
