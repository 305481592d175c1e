// SPDX-License-Identifier: Apache-2.0
//! The bytes of a page. All numbers are little-endian.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::file::PageFault;
use super::{Page, PagePhase, PageStep, StepSource};

/// Size of a page in bytes.
pub const PAGE_SIZE: usize = 4096;
/// Where the supervisor writes the step at which it wants a checkpoint.
pub(super) const REQUEST_AT: usize = 64;
/// Where the process writes when it last looked there.
const ASKED_AT: usize = 256;

const MAGIC: &[u8; 8] = b"STDFPAGE";
const VERSION: u32 = 1;
const STEP_AT: usize = 128;
const STATE_AT: usize = 192;
const PATH_AT: usize = 512;
const LONGEST_PATH: usize = 1022;
/// The bits of a loss that was reported and is no number; any other that is none means that none was reported.
const NOT_A_NUMBER: u64 = 0x7ff8_0000_0000_0001;

pub(super) type Bytes = [u8; PAGE_SIZE];

/// Checks that the bytes are a page that this version understands.
pub(super) fn check(bytes: &Bytes) -> Result<(), PageFault> {
    if &bytes[..MAGIC.len()] != MAGIC {
        return Err(PageFault::NoPage);
    }
    match u32_at(bytes, 8) {
        VERSION => Ok(()),
        version => Err(PageFault::Version { version }),
    }
}

/// Reads a page that has been checked. `None` when it is just being written.
pub(super) fn read(bytes: &Bytes) -> Option<Page> {
    let whole = |begin: usize, end: usize| {
        let number = u64_at(bytes, begin);
        number != 0 && number == u64_at(bytes, end)
    };
    if !whole(STEP_AT, STEP_AT + 32) || !whole(STATE_AT, STATE_AT + 56) {
        return None;
    }
    let source = match u32_at(bytes, STATE_AT + 12) {
        0 => None,
        1 => Some(StepSource::Counted),
        2 => Some(StepSource::Optimizer),
        _ => Some(StepSource::Stated),
    };
    let (issued, finished) = (u64_at(bytes, STATE_AT + 24), u64_at(bytes, STATE_AT + 32));
    let loss = f64::from_bits(u64_at(bytes, STATE_AT + 48));
    let rank = |at| u32::try_from(i32::from_le_bytes(part(bytes, at))).ok();
    let unless_0 = |number: u64| (number != 0).then_some(number);
    Some(Page {
        pid: u32_at(bytes, 16),
        stack_signal: Some(u32_at(bytes, 20)).filter(|&signal| signal != 0),
        rank: rank(24),
        local_rank: rank(28),
        generation: u64_at(bytes, 32),
        created_ns: u64_at(bytes, 40),
        checkpoint_request: unless_0(u64_at(bytes, REQUEST_AT)),
        asked_ns: unless_0(u64_at(bytes, ASKED_AT)),
        step: source.map(|source| PageStep {
            number: u64_at(bytes, STEP_AT + 8),
            source,
            at_ns: u64_at(bytes, STEP_AT + 16),
        }),
        changed_ns: u64_at(bytes, STEP_AT + 24),
        phase: phase(u32_at(bytes, STATE_AT + 8)),
        phase_ns: u64_at(bytes, STATE_AT + 16),
        collectives: (issued != 0).then_some((issued, finished)),
        checkpoint_done: unless_0(u64_at(bytes, STATE_AT + 40)),
        checkpoint_path: path(bytes),
        loss: (!loss.is_nan() || loss.to_bits() == NOT_A_NUMBER).then_some(loss),
    })
}

fn phase(number: u32) -> PagePhase {
    match number {
        0 => PagePhase::Init,
        1 => PagePhase::Train,
        2 => PagePhase::Checkpoint,
        3 => PagePhase::Eval,
        4 => PagePhase::Load,
        5 => PagePhase::Compile,
        other => PagePhase::Other(other),
    }
}

fn path(bytes: &Bytes) -> Option<PathBuf> {
    let length = usize::from(u16::from_le_bytes(part(bytes, PATH_AT)));
    if length == 0 || length > LONGEST_PATH {
        return None;
    }
    let start = PATH_AT + 2;
    let text = bytes[start..start + length].to_vec();
    Some(PathBuf::from(OsString::from_vec(text)))
}

fn u32_at(bytes: &Bytes, at: usize) -> u32 {
    u32::from_le_bytes(part(bytes, at))
}

fn u64_at(bytes: &Bytes, at: usize) -> u64 {
    u64::from_le_bytes(part(bytes, at))
}

fn part<const LENGTH: usize>(bytes: &Bytes, at: usize) -> [u8; LENGTH] {
    std::array::from_fn(|index| bytes[at + index])
}
