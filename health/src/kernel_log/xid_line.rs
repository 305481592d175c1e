// SPDX-License-Identifier: Apache-2.0
//! `NVRM: Xid (PCI:0000:5e:00): 31, pid=223309, name=python, ...`

use super::event::{Detail, Known, What, XidError};
use super::nvlink_line;
use super::pci::PciAddress;
use super::scan::{Scan, between};
use crate::xid::{Kind, RecoveryAction};

/// Reads what comes after `NVRM: Xid`, and gives the error with the rest of the message.
pub(super) fn parse(text: &str) -> (What, &str) {
    error(text).map_or((What::Malformed(Kind::Xid), text), |(error, message)| {
        (What::Xid(error), message)
    })
}

fn error(text: &str) -> Option<(XidError, &str)> {
    let mut scan = Scan::new(text);
    scan.blanks();
    scan.eat("(").then_some(())?;
    scan.eat("PCI:");
    let pci = PciAddress::scan(&mut scan)?;
    let gpu_instance = instance(&mut scan, " GPU-I:")?;
    let compute_instance = instance(&mut scan, " GPU-CI:")?;
    scan.eat("):").then_some(())?;
    scan.blanks();
    let code = scan.number()?;
    let ends_there = scan.rest().is_empty() || scan.rest().starts_with([',', ' ', '\t']);
    ends_there.then_some(())?;
    let pid = pid(&mut scan);
    let name = name(&mut scan);
    let message = scan.rest().trim_start_matches([',', ' ', '\t']).trim_end();
    let error = XidError {
        pci,
        gpu_instance,
        compute_instance,
        code,
        pid,
        name,
        detail: detail(code, message),
    };
    Some((error, message))
}

/// Outer: whether it can be read at all. Inner: whether it is there.
#[expect(
    clippy::option_option,
    reason = "unreadable and absent are different, and only used here"
)]
fn instance(scan: &mut Scan<'_>, mark: &str) -> Option<Option<u32>> {
    if !scan.eat(mark) {
        return Some(None);
    }
    scan.number().map(Some)
}

/// The value of `KEY` after a comma or blanks; takes nothing if it is not there or cannot be read.
fn value<'a, T>(
    scan: &mut Scan<'a>,
    key: &str,
    read: impl FnOnce(&mut Scan<'a>) -> Option<T>,
) -> Option<Known<T>> {
    let mut ahead = *scan;
    ahead.eat(",");
    ahead.blanks();
    ahead.eat(key).then_some(())?;
    let mut quoted = ahead;
    quoted.eat("'");
    let value = if quoted.eat("<") {
        quoted.until(">")?;
        quoted.eat("'");
        ahead = quoted;
        Known::Unknown
    } else {
        Known::Is(read(&mut ahead)?)
    };
    *scan = ahead;
    Some(value)
}

fn pid(scan: &mut Scan<'_>) -> Option<Known<u32>> {
    value(scan, "pid=", |scan| {
        let number = scan.number()?;
        let ends_there = scan.rest().is_empty() || scan.rest().starts_with([',', ' ', '\t']);
        ends_there.then_some(number)
    })
}

/// A name may hold colons, brackets, dots and blanks: only a comma and a blank after it end it.
fn name(scan: &mut Scan<'_>) -> Option<Known<String>> {
    value(scan, "name=", |scan| {
        let whole = scan.rest();
        let name = match whole.find(", ") {
            Some(end) => whole.get(..end)?,
            None => whole.trim_end().trim_end_matches(','),
        };
        *scan = Scan::new(whole.get(name.len()..)?);
        Some(name.to_owned())
    })
}

fn detail(code: u32, message: &str) -> Option<Detail> {
    match code {
        13 => multiprocessor(message),
        45 => caused_by(message),
        63 | 64 => row(message),
        74 => link_registers(message),
        94 | 95 => containment(message),
        144..=150 => nvlink_line::parse(message).map(Detail::Nvlink),
        154 => recovery(message),
        _ => None,
    }
}

fn multiprocessor(message: &str) -> Option<Detail> {
    let (_, place) = message.split_once("(GPC ")?;
    let mut scan = Scan::new(place);
    let gpc = scan.number()?;
    scan.eat(", TPC ").then_some(())?;
    let tpc = scan.number()?;
    scan.eat(", SM ").then_some(())?;
    let sm = scan.number()?;
    Some(Detail::Multiprocessor { gpc, tpc, sm })
}

fn caused_by(message: &str) -> Option<Detail> {
    let (_, code) = message.split_once("caused by previous Xid ")?;
    Scan::new(code).number().map(Detail::CausedBy)
}

fn row(message: &str) -> Option<Detail> {
    let digits = between(message, "(0x", ")")?;
    u64::from_str_radix(digits, 16).ok().map(Detail::Row)
}

/// `... on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)`
fn link_registers(message: &str) -> Option<Detail> {
    let (_, after) = message.split_once(" link ")?;
    let mut scan = Scan::new(after);
    let link = scan.number()?;
    scan.blanks();
    scan.eat("(").then_some(())?;
    let registers = scan.until(")")?.split(',').take(16).map(|register| {
        let mut scan = Scan::new(register.trim());
        scan.prefixed_hex()
    });
    let registers = registers.collect::<Option<_>>()?;
    Some(Detail::LinkRegisters { link, registers })
}

fn containment(message: &str) -> Option<Detail> {
    let flag = |key: &str| {
        let (_, value) = message.split_once(key)?;
        match value.split([',', ' ', '.']).next() {
            Some("Yes") => Some(true),
            Some("No") => Some(false),
            _ => None,
        }
    };
    Some(Detail::Containment {
        reset: flag(" RST: ")?,
        drain_and_reset: flag(" D-RST: ")?,
    })
}

/// `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`
fn recovery(message: &str) -> Option<Detail> {
    let (_, change) = message.split_once("changed from ")?;
    let mut scan = Scan::new(change);
    let from = scan.prefixed_hex()?;
    scan.until(" to ")?;
    let to = scan.prefixed_hex()?;
    scan.blanks();
    let text = if scan.eat("(") {
        scan.until(")").unwrap_or_default()
    } else {
        ""
    };
    Some(Detail::Recovery {
        from: RecoveryAction::from_number(from),
        to: RecoveryAction::from_number(to),
        text: text.to_owned(),
    })
}
