// SPDX-License-Identifier: Apache-2.0
//! What a bench prints: a table for people, or JSON for programs.

use std::io::{self, Write};

use serde::Serialize;

use crate::failure::Failure;

/// Prints `report`, as JSON or with `text`.
pub(super) fn write<T: Serialize, W: Write>(
    report: &T,
    json: bool,
    out: &mut W,
    text: impl FnOnce(&mut W) -> io::Result<()>,
) -> Result<(), Failure> {
    let written = if json {
        serde_json::to_writer_pretty(&mut *out, report)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        text(out)
    };
    written.map_err(|error| Failure::write("the report", error))
}
