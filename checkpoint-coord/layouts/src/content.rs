// SPDX-License-Identifier: Apache-2.0
//! Is a file, by itself, what its name promises? Looks at heads, trailers and headers, never at the bulk of the data.

pub(crate) mod pickle;
pub(crate) mod safetensors;
pub(crate) mod torch_file;
pub(crate) mod zeros;
pub(crate) mod zip;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Part of a file that is looked at as if it were one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice<'a> {
    file: &'a File,
    start: u64,
    /// In bytes.
    pub(crate) length: u64,
}

impl<'a> Slice<'a> {
    pub(crate) fn new(file: &'a File, start: u64, length: u64) -> Self {
        Self {
            file,
            start,
            length,
        }
    }

    /// Exactly `length` bytes from `at` on; `None` when the slice ends before.
    pub(crate) fn read(&self, at: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
        let inside = at.checked_add(length).is_some_and(|end| end <= self.length);
        let (Some(from), Ok(wanted)) = (self.start.checked_add(at), usize::try_from(length)) else {
            return Ok(None);
        };
        if !inside {
            return Ok(None);
        }
        let mut bytes = vec![0; wanted];
        match self.file.read_exact_at(&mut bytes, from) {
            Ok(()) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The largest JSON file that is read: indexes of models with a million shards stay below it.
const LARGEST_JSON: u64 = 256 << 20;
/// Files with these endings may be empty.
const MAY_BE_EMPTY: [&str; 5] = [".txt", ".lock", ".md", ".py", ".log"];

/// What is wrong with the file `path` of `size` bytes, as the end of a sentence that begins with its name.
pub(crate) fn flaw(path: &Path, size: u64) -> io::Result<Option<String>> {
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().to_ascii_lowercase())
        .unwrap_or_default();
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    if size == 0 {
        return Ok((!ends(&MAY_BE_EMPTY)).then(|| "is empty".to_owned()));
    }
    if ends(&[".json"]) {
        return json(path, size).map(Result::err);
    }
    let file = File::open(path)?;
    let whole = Slice::new(&file, 0, size);
    if ends(&[".safetensors"]) {
        return safetensors::flaw(&whole);
    }
    if ends(&[".pt", ".pth"]) {
        return torch_file::flaw(&whole);
    }
    if ends(&[".ckpt", ".bin"]) {
        return torch_file::flaw_if_any(&whole);
    }
    zeros::flaw(&whole)
}

/// The JSON value in a file, or what is wrong with it.
pub(crate) fn json(path: &Path, size: u64) -> io::Result<Result<serde_json::Value, String>> {
    if size > LARGEST_JSON {
        return Ok(Err(format!("is too large to be read ({size} bytes)")));
    }
    let bytes = std::fs::read(path)?;
    Ok(serde_json::from_slice(&bytes).map_err(|error| format!("is no valid JSON ({error})")))
}
