// SPDX-License-Identifier: Apache-2.0
//! Output of all kinds.

use std::io::Write;
use std::time::Duration;

use crate::identity::Identity;
use crate::steps::pause;

const BLOCK: usize = 64 * 1024;

/// Writes to standard output and flushes. A reader that went away is the supervisor's fault, and ends the worker.
pub(crate) fn out(text: &str) {
    write(text.as_bytes());
}

pub(crate) fn err(text: &str) {
    std::io::stderr()
        .write_all(text.as_bytes())
        .expect("standard error can be written to");
}

/// Training steps from `first` to `last`.
pub(crate) fn steps(first: u64, last: u64, each: Duration) {
    for step in first..=last {
        out(&format!("step {step}/{last} loss 0.5\n"));
        pause(each);
    }
}

/// Numbered lines.
pub(crate) fn lines(identity: &Identity, count: u64, each: Duration) {
    for line in 0..count {
        out(&format!("line {line} of rank {}\n", identity.rank));
        if !each.is_zero() {
            pause(each);
        }
    }
}

/// One line of this many bytes, without counting its end.
pub(crate) fn long_line(bytes: u64) {
    let block = vec![b'x'; BLOCK];
    in_blocks(bytes, &block);
    write(b"\n");
}

/// Every byte there is, again and again: no valid text, no certain line ends.
pub(crate) fn binary(bytes: u64) {
    let block: Vec<u8> = (0..BLOCK)
        .map(|index| u8::try_from(index % 256).unwrap())
        .collect();
    in_blocks(bytes, &block);
}

/// Lines of 64 bytes as fast as they are taken.
pub(crate) fn flood(bytes: u64) {
    let block: Vec<u8> =
        b"a line of sixty-four bytes, with its end, to be written in bulk\n".repeat(BLOCK / 64);
    in_blocks(bytes, &block);
}

fn in_blocks(bytes: u64, block: &[u8]) {
    let mut left = usize::try_from(bytes).unwrap();
    while left > 0 {
        let length = left.min(block.len());
        write(&block[..length]);
        left -= length;
    }
}

fn write(bytes: &[u8]) {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .expect("standard output can be written to");
}
