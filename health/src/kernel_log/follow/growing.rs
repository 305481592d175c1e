// SPDX-License-Identifier: Apache-2.0
//! A file that somebody appends lines to, and may rotate or cut.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Found, Unended};

/// The file under a name, whichever that is at the moment.
#[derive(Debug)]
pub(super) struct Growing {
    path: PathBuf,
    file: BufReader<File>,
    inode: u64,
    /// How far it was read.
    offset: u64,
    unended: Unended,
}

impl Growing {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        Ok(Self {
            path: path.to_owned(),
            inode: file.metadata()?.ino(),
            file: BufReader::new(file),
            offset: 0,
            unended: Unended::default(),
        })
    }

    pub(super) fn read(&mut self) -> io::Result<Found> {
        loop {
            let bytes = self.file.fill_buf()?;
            if bytes.is_empty() {
                if self.follow_the_name()? {
                    continue;
                }
                return Ok(Found::Nothing);
            }
            let (line, taken) = self.unended.take(bytes);
            self.file.consume(taken);
            self.offset += taken as u64;
            if let Some(bytes) = line {
                return Ok(Found::Line {
                    bytes,
                    position: Some(self.offset),
                    lost: 0,
                });
            }
        }
    }

    /// At the end of the file: whether another one has its name now, or it was cut, so that there is more to read.
    fn follow_the_name(&mut self) -> io::Result<bool> {
        let Ok(now) = std::fs::metadata(&self.path) else {
            // Between two files, in the middle of a rotation.
            return Ok(false);
        };
        let cut = self.file.get_ref().metadata()?.len() < self.offset;
        if now.ino() == self.inode && !cut {
            return Ok(false);
        }
        let Ok(next) = Self::open(&self.path) else {
            return Ok(false);
        };
        *self = next;
        Ok(true)
    }
}
