// SPDX-License-Identifier: Apache-2.0
//! Power cuts at any moment, without a machine that is switched off.
//!
//! A [`Recording`] holds what a job's processes did to a directory, in order, as `strace` has seen it. A [`Disk`] goes through
//! it and knows at each moment what surely is on stable storage, what may be, and in which states a power cut can leave the
//! directory.

mod call;
mod disk;

use std::fs;
use std::path::Path;

pub use self::call::{Action, Step};
pub use self::disk::Disk;

/// System calls that change files, and one by which their times are known.
const CALLS: &str = "openat,creat,write,writev,pwrite64,ftruncate,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,\
                     mkdir,mkdirat,rmdir,link,linkat,statx,newfstatat,fstat,stat";
/// Longer data are cut off by `strace`; no write of these tests is as long.
const LONGEST: &str = "1000000";

/// What was done.
#[derive(Debug)]
pub struct Recording {
    /// In the order in which the calls ended.
    pub steps: Vec<Step>,
}

impl Recording {
    /// The command that records what the command after it does, into the file `log`.
    pub fn wrapper(log: &str) -> [&str; 14] {
        [
            "strace",
            "-f",
            "-y",
            "-ttt",
            "-v",
            "-s",
            LONGEST,
            "-e",
            "signal=none",
            "-e",
            CALLS,
            "-o",
            log,
            "--",
        ]
    }

    /// Reads the file.
    ///
    /// # Panics
    ///
    /// When it cannot be read.
    pub fn read(log: &Path) -> Recording {
        let text = fs::read_to_string(log).unwrap();
        Recording {
            steps: call::steps(&text),
        }
    }
}
