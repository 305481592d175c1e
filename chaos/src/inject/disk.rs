// SPDX-License-Identifier: Apache-2.0
//! File systems that are full, can only be read, or answer nothing.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::Active;
use crate::failure::Failure;
use crate::scenario::Injection;
use crate::tools::run;
use crate::undo::Undo;
use crate::world::World;

const FILLER: &str = ".filler";
/// More than a small file system can hold.
const MOST_FILES: u32 = 100_000;
const ENOSPC: i32 = 28;

/// A file system that is not well.
#[derive(Debug)]
pub(super) struct SickDisk {
    path: PathBuf,
    how: How,
    evidence: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Full,
    ReadOnly,
    Frozen,
}

/// Does it.
pub(super) fn inject(injection: &Injection, world: &mut World) -> Result<SickDisk, Failure> {
    let place = injection
        .place()
        .ok_or_else(|| Failure::Unexpected(format!("{} has no place", injection.name())))?;
    let path = world.layout.place(place);
    let shown = path.to_string_lossy().into_owned();
    let (how, evidence) = match injection {
        Injection::DiskFull { .. } => (How::Full, fill_with_bytes(&path)?),
        Injection::InodesFull { .. } => (How::Full, fill_with_files(&path)?),
        Injection::ReadOnly { .. } => {
            run(&["mount", "-o", "remount,ro", &shown], "")?;
            let refused = File::create(path.join(FILLER)).err();
            let reason = refused
                .ok_or_else(|| Failure::Unexpected(format!("{shown} can still be written")))?;
            (How::ReadOnly, format!("a new file: {reason}"))
        }
        _ => {
            world
                .undo
                .will_do(Undo::ThawFileSystem { path: path.clone() })?;
            run(&["fsfreeze", "-f", &shown], "")?;
            // Somebody else who freezes it is refused, since it is frozen already.
            let again = run(&["fsfreeze", "-f", &shown], "").err();
            let reason =
                again.ok_or_else(|| Failure::Unexpected(format!("{shown} is not frozen")))?;
            (How::Frozen, reason.to_string())
        }
    };
    Ok(SickDisk {
        path,
        how,
        evidence,
    })
}

impl Active for SickDisk {
    fn evidence(&mut self, _world: &mut World) -> Result<Option<String>, Failure> {
        Ok(Some(self.evidence.clone()))
    }

    fn heal(&mut self, _world: &mut World) -> Result<Option<String>, Failure> {
        let shown = self.path.to_string_lossy().into_owned();
        Ok(Some(match self.how {
            How::Full => {
                let filler = self.path.join(FILLER);
                let removed = if filler.is_dir() {
                    fs::remove_dir_all(&filler)
                } else {
                    fs::remove_file(&filler)
                };
                removed.map_err(|error| Failure::write(filler.display(), error))?;
                "there is room again".to_owned()
            }
            How::ReadOnly => {
                run(&["mount", "-o", "remount,rw", &shown], "")?;
                "it can be written again".to_owned()
            }
            How::Frozen => {
                run(&["fsfreeze", "-u", &shown], "")?;
                "it takes writes again".to_owned()
            }
        }))
    }
}

fn fill_with_bytes(path: &Path) -> Result<String, Failure> {
    let filler = path.join(FILLER);
    let failed = |error| Failure::write(filler.display(), error);
    let mut file = File::create(&filler).map_err(failed)?;
    let mut block = vec![0_u8; 64 * 1024];
    loop {
        match file.write(&block) {
            Ok(_) => {}
            // The last free bytes, too.
            Err(error) if error.raw_os_error() == Some(ENOSPC) && block.len() > 1 => {
                block.truncate(block.len() / 2);
            }
            Err(error) if error.raw_os_error() == Some(ENOSPC) => {
                return Ok(format!("a further byte: {error}"));
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

fn fill_with_files(path: &Path) -> Result<String, Failure> {
    let filler = path.join(FILLER);
    let failed = |error| Failure::write(filler.display(), error);
    fs::create_dir_all(&filler).map_err(failed)?;
    for number in 0..MOST_FILES {
        match File::create(filler.join(number.to_string())) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(ENOSPC) => {
                return Ok(format!("after {number} files, a further one: {error}"));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Err(Failure::Unexpected(format!(
        "{} has room for ever more files",
        path.display()
    )))
}
