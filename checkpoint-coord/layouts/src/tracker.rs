// SPDX-License-Identifier: Apache-2.0
//! The files in which Megatron and DeepSpeed keep the name of the checkpoint that they resume from.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::durable;
use crate::find::Found;
use crate::layout::Layout;

/// A tracker that names another checkpoint than it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The tracker.
    pub path: PathBuf,
    /// What is in it; `None` when it is not there or cannot be read as text.
    pub says: Option<String>,
    /// What should be in it.
    pub should_say: String,
}

/// The tracker of `found`'s layout, if it names another checkpoint.
///
/// # Errors
///
/// Where it cannot be read.
pub fn stray(found: &Found) -> io::Result<Option<Stray>> {
    let (file, should_say) = match found.layout {
        Layout::Megatron => ("latest_checkpointed_iteration.txt", found.step.to_string()),
        Layout::DeepSpeed => ("latest", found.name.clone()),
        _ => return Ok(None),
    };
    let path = found.path.with_file_name(file);
    let says = match fs::read(&path) {
        Ok(bytes) => String::from_utf8(bytes)
            .ok()
            .map(|text| text.trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let stray = says.as_deref() != Some(should_say.as_str());
    Ok(stray.then_some(Stray {
        path,
        says,
        should_say,
    }))
}

/// Makes a tracker name what it should. What it said before is kept beside it, as `.steadfast-was-NAME-TIME`; the path of
/// that is returned, if there was anything.
///
/// # Errors
///
/// Where a file cannot be read or written; the tracker is as it was then.
pub fn correct(stray: &Stray, time: &str) -> io::Result<Option<PathBuf>> {
    let kept = match fs::read(&stray.path) {
        Ok(bytes) => {
            let copy = copy_of(&stray.path, time);
            durable::write(&copy, &bytes)?;
            Some(copy)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    durable::write(&stray.path, stray.should_say.as_bytes())?;
    Ok(kept)
}

fn copy_of(path: &Path, time: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".steadfast-was-{name}-{time}"))
}
