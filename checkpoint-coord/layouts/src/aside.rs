// SPDX-License-Identifier: Apache-2.0
//! Moving a torn checkpoint out of the way, so that a framework that resumes from the latest by itself does not take it.

use std::io;
use std::path::PathBuf;

use crate::durable;
use crate::find::Found;

/// What the new name begins with: hidden, and like no name that a framework gives.
pub const PREFIX: &str = ".steadfast-torn-";
/// Names that are tried.
const TRIES: u32 = 100;

/// Renames a checkpoint to `.steadfast-torn-NAME-TIME` in the same directory, and returns that. Nothing is deleted: renaming
/// it back undoes it. Returns `None` when it is not there any more, such as when another node has done the same.
///
/// # Errors
///
/// Where it cannot be renamed.
pub fn move_aside(found: &Found, time: &str) -> io::Result<Option<PathBuf>> {
    let base = format!("{PREFIX}{}-{time}", found.name);
    let names = (0..TRIES).map(|number| match number {
        0 => base.clone(),
        _ => format!("{base}-{number}"),
    });
    let free = names
        .map(|name| found.path.with_file_name(name))
        .find(|path| path.symlink_metadata().is_err());
    let Some(to) = free else {
        return Err(io::Error::other(format!("all names like {base} are taken")));
    };
    match durable::rename(&found.path, &to) {
        Ok(()) => Ok(Some(to)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
