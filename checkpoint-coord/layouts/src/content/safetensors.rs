// SPDX-License-Identifier: Apache-2.0
//! safetensors: 8 bytes with the length of a JSON header, the header, then the tensors without gaps
//! (<https://github.com/huggingface/safetensors>, "Format").

use std::collections::BTreeMap;
use std::io;

use serde::Deserialize;

use super::{Slice, zeros};

/// The format's own limit for the header.
const LARGEST_HEADER: u64 = 100_000_000;

#[derive(Deserialize)]
struct Tensor {
    #[serde(default)]
    data_offsets: Option<(u64, u64)>,
}

/// What is wrong with it.
pub(crate) fn flaw(slice: &Slice<'_>) -> io::Result<Option<String>> {
    let Some(head) = slice.read(0, 8)? else {
        return Ok(Some("is too short for a safetensors file".to_owned()));
    };
    let mut length = [0; 8];
    length.copy_from_slice(&head);
    let length = u64::from_le_bytes(length);
    if length == 0 || length > LARGEST_HEADER {
        return Ok(Some("is no safetensors file".to_owned()));
    }
    let Some(header) = slice.read(8, length)? else {
        return Ok(Some("ends within its header".to_owned()));
    };
    let tensors: BTreeMap<String, Tensor> = match serde_json::from_slice(&header) {
        Ok(tensors) => tensors,
        Err(error) => return Ok(Some(format!("has an unreadable header ({error})"))),
    };
    let spans = || tensors.values().filter_map(|tensor| tensor.data_offsets);
    let data = spans().map(|(_, end)| end).max().unwrap_or(0);
    let Some(expected) = data.checked_add(8 + length) else {
        return Ok(Some("has an unreadable header (offsets)".to_owned()));
    };
    if slice.length != expected {
        let size = slice.length;
        return Ok(Some(format!(
            "has {size} bytes, its header says {expected}"
        )));
    }
    let begins = zeros::run_begins(slice)?;
    // A tensor may well be zero from its first element on.
    let is_tensor = spans().any(|(begin, _)| begin.checked_add(8 + length) == Some(begins));
    let lost = !is_tensor && zeros::is_lost(begins, slice.length);
    Ok(lost.then(|| zeros::words(begins, slice.length)))
}
