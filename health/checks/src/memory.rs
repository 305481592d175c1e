// SPDX-License-Identifier: Apache-2.0
//! What checks remember from one run to the next, in a small file.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The form of the file.
const VERSION: u32 = 1;

/// What each check remembers, by its name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Memory {
    version: u32,
    pub(crate) checks: BTreeMap<String, Value>,
}

impl Memory {
    /// Reads the file. A file that is not there is an empty memory; one that cannot be used is too, and said.
    pub(crate) fn read(file: &Path) -> (Self, Option<String>) {
        let empty = Self::default();
        let text = match std::fs::read(file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return (empty, None),
            Err(error) => {
                return (
                    empty,
                    Some(format!("cannot read {}: {error}", file.display())),
                );
            }
        };
        match serde_json::from_slice::<Self>(&text) {
            Ok(memory) if memory.version == VERSION => (memory, None),
            Ok(memory) => {
                let said = format!(
                    "{} has the form {}, which is not known: it is begun anew",
                    file.display(),
                    memory.version
                );
                (empty, Some(said))
            }
            Err(error) => {
                let said = format!("{} is damaged ({error}): it is begun anew", file.display());
                (empty, Some(said))
            }
        }
    }

    /// Writes what checks remember now beside what others, that were not made this time, remember already.
    pub(crate) fn write(file: &Path, checks: BTreeMap<String, Value>) -> io::Result<()> {
        // Another run may have written meanwhile.
        let (mut memory, _said_when_it_was_read) = Self::read(file);
        memory.version = VERSION;
        memory.checks.extend(checks);
        let directory = file.parent().unwrap_or_else(|| Path::new("."));
        std::fs::create_dir_all(directory)?;
        let mut new = tempfile::Builder::new()
            .prefix(".steadfast-check")
            .tempfile_in(directory)?;
        serde_json::to_writer(&mut new, &memory)?;
        new.flush()?;
        new.persist(file).map_err(|error| error.error)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_run_leaves_the_next_one_finds() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("deep/state.json");
        assert_eq!(Memory::read(&file), (Memory::default(), None));
        let one = BTreeMap::from([
            ("a".to_owned(), Value::from(1)),
            ("b".to_owned(), Value::from(2)),
        ]);
        Memory::write(&file, one).unwrap();
        Memory::write(&file, BTreeMap::from([("b".to_owned(), Value::from(3))])).unwrap();
        let (memory, said) = Memory::read(&file);
        assert_eq!(
            (&memory.checks["a"], &memory.checks["b"]),
            (&1.into(), &3.into())
        );
        assert_eq!(said, None);
        assert_eq!(
            std::fs::read_dir(file.parent().unwrap()).unwrap().count(),
            1
        );
    }

    #[test]
    fn a_damaged_or_foreign_file_is_said_and_begun_anew() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state.json");
        for text in [
            "",
            "{\"version\":1,\"che",
            "[]",
            "{\"version\":9,\"checks\":{}}",
        ] {
            std::fs::write(&file, text).unwrap();
            let (memory, said) = Memory::read(&file);
            assert_eq!(memory, Memory::default());
            assert!(
                said.is_some_and(|said| said.contains("begun anew")),
                "{text}"
            );
        }
        Memory::write(&file, BTreeMap::new()).unwrap();
        assert_eq!(Memory::read(&file).1, None);
        let (_, said) = Memory::read(directory.path());
        assert!(said.unwrap().starts_with("cannot read"));
    }
}
