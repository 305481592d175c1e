// SPDX-License-Identifier: Apache-2.0
//! Files that end in zeros because their last pages never reached the disk: after a power cut a file can have its full
//! length and nothing in it from some page on.

use std::io;

use super::Slice;

/// File systems write whole pages: what was lost begins at a multiple of this.
const PAGE: u64 = 4096;
const BLOCK: u64 = 64 << 10;
/// How far back from the end is read. A longer run of zeros is not measured out.
const FARTHEST: u64 = 16 << 20;

/// Where the run of zeros at the end of the slice begins: `length` when it does not end in zeros, and the farthest place
/// that was looked at when all is zero from there on.
pub(crate) fn run_begins(slice: &Slice<'_>) -> io::Result<u64> {
    let stop = slice.length.saturating_sub(FARTHEST);
    let mut end = slice.length;
    while end > stop {
        let begin = (end - 1) / BLOCK * BLOCK;
        let begin = begin.max(stop);
        let Some(block) = slice.read(begin, end - begin)? else {
            // It has become shorter meanwhile; whoever compares sizes will see that.
            return Ok(slice.length);
        };
        if let Some(last) = block.iter().rposition(|&byte| byte != 0) {
            return Ok(begin + last as u64 + 1);
        }
        end = begin;
    }
    Ok(stop)
}

/// What is wrong with a file of which nothing is known but that it should hold data.
pub(crate) fn flaw(slice: &Slice<'_>) -> io::Result<Option<String>> {
    let begins = run_begins(slice)?;
    Ok(is_lost(begins, slice.length).then(|| words(begins, slice.length)))
}

/// Whether zeros from `begins` to `length` look like pages that were never written.
pub(crate) fn is_lost(begins: u64, length: u64) -> bool {
    let all = begins == 0 && length > 0;
    all || (begins.is_multiple_of(PAGE) && length.saturating_sub(begins) >= PAGE)
}

pub(crate) fn words(begins: u64, length: u64) -> String {
    if begins == 0 {
        format!("is nothing but zeros ({length} bytes)")
    } else {
        format!("ends in zeros from byte {begins} on, as after a power cut")
    }
}
