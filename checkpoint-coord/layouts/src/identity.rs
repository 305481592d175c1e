// SPDX-License-Identifier: Apache-2.0
//! Which directory is it? Nodes that see the same one must be able to tell.
//!
//! Paths, device numbers and mount points differ between nodes that share a file system, and are the same on nodes that do
//! not. So the directory is given a name once: a file with a random number, made whole or not at all.

use std::fs;
use std::io;
use std::path::Path;

use crate::durable;
use crate::manifest::DIRECTORY;

const NAME: &str = "id";
/// A name is a UUID; whatever else stands there is not ours.
const LENGTH: usize = 36;

/// The name of the checkpoint directory `directory`, which is given one if it has none.
///
/// # Errors
///
/// Where it can be neither read nor written.
pub fn directory_id(directory: &Path) -> io::Result<String> {
    let own = directory.join(DIRECTORY);
    let path = own.join(NAME);
    if let Some(known) = read(&path)? {
        return Ok(known);
    }
    let new = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    durable::make_directory(&own)?;
    match durable::create(&path, new.trim().as_bytes()) {
        // Another node was faster: its name counts.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    read(&path)?.ok_or_else(|| {
        let text = format!("{} is there, but is no name", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| text.len() == LENGTH)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn all_who_ask_get_the_same_name_however_many_ask_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let names: Vec<String> = thread::scope(|scope| {
            let ask = || scope.spawn(|| directory_id(directory.path()).unwrap());
            let asking: Vec<_> = (0..8).map(|_| ask()).collect();
            asking.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
        let left = fs::read_dir(directory.path().join(DIRECTORY)).unwrap();
        assert_eq!(left.count(), 1);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(directory_id(other.path()).unwrap(), names[0]);
    }

    #[test]
    fn a_file_that_is_no_name_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join(DIRECTORY)).unwrap();
        fs::write(directory.path().join(DIRECTORY).join(NAME), "torn").unwrap();
        assert!(directory_id(directory.path()).is_err());
    }
}
