// SPDX-License-Identifier: Apache-2.0
//! What `fake-worker` prints.

use std::fmt::Write;

/// The output of the step `lines:COUNT:...` of this rank.
pub fn numbered_lines(count: u64, rank: u32) -> String {
    (0..count).fold(String::new(), |mut text, line| {
        writeln!(text, "line {line} of rank {rank}").unwrap();
        text
    })
}
