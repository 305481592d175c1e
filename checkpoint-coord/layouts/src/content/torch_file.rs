// SPDX-License-Identifier: Apache-2.0
//! What `torch.save` writes: since PyTorch 1.6 a zip archive with the pickle `data.pkl` in it, before that a few pickles
//! with the tensors behind them.

use std::io;

use super::pickle::{self, Pickle};
use super::zip::{Archive, Opened};
use super::{Slice, zeros};

/// The largest `data.pkl` that is read for what it says about the checkpoint.
const LARGEST_PICKLE: u64 = 64 << 20;

/// What is wrong with a file whose name does not say that `torch.save` wrote it. A file that was cut off or lost its data
/// has the head that it began with, or zeros; any other head is that of another program's format, which is not ours to judge.
pub(crate) fn flaw_if_any(slice: &Slice<'_>) -> io::Result<Option<String>> {
    match slice.read(0, slice.length.min(4))?.as_deref() {
        Some(b"PK\x03\x04" | [0x80, 2..=5, ..] | [0, 0, 0, 0]) => flaw(slice),
        // Cut off within its head.
        Some(b"P" | b"PK" | b"PK\x03" | [0x80]) => flaw(slice),
        _ => zeros::flaw(slice),
    }
}

/// What is wrong with it.
pub(crate) fn flaw(slice: &Slice<'_>) -> io::Result<Option<String>> {
    match slice.read(0, 4)?.as_deref() {
        None => Ok(Some("is too short for a file of torch.save".to_owned())),
        Some(b"PK\x03\x04") => Ok(match Archive::open(slice)? {
            Opened::Archive(_) => None,
            Opened::Flaw(what) => Some(what),
        }),
        // A pickle of protocol 2 to 5. What is behind the last one has no mark at its end.
        Some([0x80, 2..=5, ..]) => zeros::flaw(slice),
        Some([0, 0, 0, 0]) => Ok(Some("begins with zeros".to_owned())),
        Some(_) => Ok(Some("is no file of torch.save".to_owned())),
    }
}

/// The pickle in the archive, without the tensors. `None` where there is none that can be read.
pub(crate) fn pickled(slice: &Slice<'_>) -> io::Result<Option<Pickle>> {
    let Opened::Archive(archive) = Archive::open(slice)? else {
        return Ok(None);
    };
    let bytes = archive.stored("data.pkl", LARGEST_PICKLE)?;
    Ok(bytes.and_then(|bytes| pickle::read(&bytes).ok()))
}
