// SPDX-License-Identifier: Apache-2.0
//! The messages of XIDs 144 to 150: `RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000004 0x00000040 ...)`

use super::event::NvlinkError;
use super::scan::Scan;

/// The most registers that are read.
const MAX_REGISTERS: usize = 16;

/// Reads the message of an error of fifth-generation NVLink.
pub(super) fn parse(message: &str) -> Option<NvlinkError> {
    let (unit, fatal, after) = split_at_severity(message)?;
    let mut scan = Scan::new(after);
    scan.blanks();
    scan.eat("XC").then_some(())?;
    let controller = scan.number()?;
    scan.blanks();
    scan.eat("i").then_some(())?;
    let instance = scan.number()?;
    scan.blanks();
    scan.eat("Link").then_some(())?;
    scan.blanks();
    let link = scan.signed()?;
    scan.blanks();
    scan.eat("(").then_some(())?;
    let registers: Vec<u32> = scan
        .until(")")?
        .split_ascii_whitespace()
        .take(MAX_REGISTERS)
        .map(|register| Scan::new(register).prefixed_hex())
        .collect::<Option<_>>()?;
    (!registers.is_empty()).then(|| NvlinkError {
        unit: unit.trim().to_owned(),
        fatal,
        controller,
        instance,
        link,
        registers,
    })
}

/// The severity is a word of its own, between the unit, which may hold blanks or be missing, and `XC`.
fn split_at_severity(message: &str) -> Option<(&str, bool, &str)> {
    let (before, _) = message.split_once(" XC")?;
    let before = before.trim_end();
    for (word, fatal) in [("Nonfatal", false), ("Non-fatal", false), ("Fatal", true)] {
        if let Some(unit) = before.strip_suffix(word)
            && (unit.is_empty() || unit.ends_with([' ', '\t']))
        {
            return Some((unit, fatal, message.get(before.len()..)?));
        }
    }
    None
}
