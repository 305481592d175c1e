// SPDX-License-Identifier: Apache-2.0
//! Checkpoints that are not what they seem.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use super::{Active, Done};
use crate::failure::Failure;
use crate::scenario::{Damage, Place};
use crate::world::World;

/// Bytes that are turned to zeros.
const HOLE: usize = 64;

/// Whether it is one of the default job that has its final name.
fn is_checkpoint(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("step-") && path.extension().is_some_and(|ending| ending != "tmp")
}

/// Damages the newest checkpoint.
pub(super) fn inject(how: Damage, world: &mut World) -> Result<impl Active + use<>, Failure> {
    let directory = world.layout.place(Place::Checkpoints);
    let mut files: Vec<PathBuf> = fs::read_dir(&directory)
        .map_err(|error| Failure::read(directory.display(), error))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_checkpoint(path))
        .collect();
    files.sort_unstable();
    let newest = files
        .pop()
        .ok_or_else(|| Failure::Unexpected("there is no checkpoint to damage".to_owned()))?;
    let failed = |error| Failure::write(newest.display(), error);
    let before = fs::read(&newest).map_err(failed)?;
    match how {
        Damage::Truncate => OpenOptions::new()
            .write(true)
            .open(&newest)
            .and_then(|file| file.set_len(before.len() as u64 / 2))
            .map_err(failed)?,
        Damage::Empty => fs::write(&newest, "").map_err(failed)?,
        Damage::FlipBit => {
            let mut bytes = before.clone();
            let middle = bytes.len() / 2;
            if let Some(byte) = bytes.get_mut(middle) {
                *byte ^= 1;
            }
            fs::write(&newest, bytes).map_err(failed)?;
        }
        Damage::Zeros => {
            let mut bytes = before.clone();
            let middle = bytes.len() / 2;
            bytes
                .iter_mut()
                .skip(middle)
                .take(HOLE)
                .for_each(|byte| *byte = 0);
            fs::write(&newest, bytes).map_err(failed)?;
        }
        Damage::Delete => fs::remove_file(&newest).map_err(failed)?,
        Damage::Stale => {
            let older = files
                .last()
                .ok_or_else(|| Failure::Unexpected("there is no older checkpoint".to_owned()))?;
            fs::copy(older, &newest).map_err(failed)?;
        }
    }
    let after = fs::read(&newest).unwrap_or_default();
    if after == before {
        return Err(Failure::Unexpected(format!(
            "{} is what it was before",
            newest.display()
        )));
    }
    let name = newest
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    Ok(Done {
        evidence: format!(
            "{name}: {} bytes were other {} bytes",
            before.len(),
            after.len()
        ),
    })
}
