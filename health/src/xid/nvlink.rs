// SPDX-License-Identifier: Apache-2.0
//! Sub-codes of the errors of fifth-generation NVLink (XIDs 144 to 150).

use std::sync::LazyLock;

use super::catalogue::data_lines;
use super::driver::Driver;
use super::terms::{Action, Cause, Severity};
use crate::kernel_log::{NvlinkError, NvlinkLayout};

const TABLE: &str = include_str!("nvlink5.tsv");

/// The first driver branch that writes sub-codes in seven bits.
const NEW_LAYOUT_SINCE: u32 = 575;

/// What one sub-code means.
#[derive(Debug, PartialEq, Eq)]
pub struct SubCode {
    /// The XID, 144 to 150.
    pub code: u32,
    /// The units that report it, as the line names them.
    pub units: Vec<&'static str>,
    old: Option<Field>,
    new: Field,
    /// What else must hold.
    pub condition: Condition,
    /// How bad it is, unless the line says otherwise.
    pub severity: Severity,
    /// What it asks for, unless the line says otherwise.
    pub action: Action,
    /// Who is at fault as a rule.
    pub cause: Cause,
    /// In words, without a full stop.
    pub meaning: &'static str,
}

/// The lowest bits of the first register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    mask: u32,
    value: u32,
}

/// What must hold beside the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// This is the status, or, where each bit is an error of its own, among it.
    Status(u32),
    /// Any status.
    AnyStatus,
    /// The reason why a link is down, in six bits of the first register.
    Reason(u32),
}

static SUB_CODES: LazyLock<Vec<SubCode>> =
    LazyLock::new(|| data_lines(TABLE).filter_map(read).collect());

/// The sub-codes of fifth-generation NVLink, by XID.
pub fn sub_codes() -> &'static [SubCode] {
    &SUB_CODES
}

/// The worst that an error means. Where the driver is not known, the register itself shows how it is laid out.
pub(super) fn find(
    code: u32,
    error: &NvlinkError,
    driver: Option<Driver>,
) -> Option<&'static SubCode> {
    let layout = driver.map(|driver| {
        if driver.branch() < NEW_LAYOUT_SINCE {
            NvlinkLayout::Old
        } else {
            NvlinkLayout::New
        }
    });
    let worst = |layout| {
        SUB_CODES
            .iter()
            .filter(|row| row.code == code && row.matches(error, layout))
            .max_by_key(|row| (row.severity, row.action))
    };
    // A driver that was named wrongly must not hide what the line says.
    layout
        .and_then(|layout| worst(Some(layout)))
        .or_else(|| worst(None))
}

impl Condition {
    /// In a few words, such as `status 0x40` or `reason 33`.
    pub fn words(self) -> String {
        match self {
            Self::Status(status) => format!("status {status:#x}"),
            Self::AnyStatus => "any status".to_owned(),
            Self::Reason(reason) => format!("reason {reason}"),
        }
    }
}

impl SubCode {
    fn matches(&self, error: &NvlinkError, layout: Option<NvlinkLayout>) -> bool {
        let info = error.registers.first().copied().unwrap_or(0);
        let status = error.registers.get(1).copied().unwrap_or(0);
        let unit = error.unit.is_empty() || self.units.contains(&error.unit.as_str());
        let old = self.old.is_some_and(|field| field.holds(info));
        let new = self.new.holds(info);
        let field = match layout {
            Some(NvlinkLayout::Old) => old,
            Some(NvlinkLayout::New) => new,
            None => old || new,
        };
        let condition = match self.condition {
            Condition::AnyStatus => true,
            // The events of 149 are numbered, the errors of the others are bits.
            Condition::Status(value) if self.code == 149 => status == value,
            Condition::Status(bits) => status & bits != 0,
            Condition::Reason(reason) => (info >> 20) & 0x3f == reason,
        };
        unit && field && condition
    }
}

impl Field {
    fn holds(self, register: u32) -> bool {
        register & self.mask == self.value
    }

    fn parse(bits: &str) -> Option<Self> {
        let width = u32::try_from(bits.len()).ok().filter(|width| *width < 32)?;
        Some(Self {
            mask: (1 << width) - 1,
            value: u32::from_str_radix(bits, 2).ok()?,
        })
    }
}

fn read(line: &'static str) -> Option<SubCode> {
    let mut fields = line.split('\t');
    let mut next = || fields.next();
    let row = SubCode {
        code: next()?.parse().ok()?,
        units: next()?.split('|').collect(),
        old: match next()? {
            "-" => None,
            bits => Some(Field::parse(bits)?),
        },
        new: Field::parse(next()?)?,
        condition: condition(next()?)?,
        severity: Severity::from_name(next()?)?,
        action: Action::from_name(next()?)?,
        cause: Cause::from_name(next()?)?,
        meaning: next()?,
    };
    fields.next().is_none().then_some(row)
}

fn condition(text: &str) -> Option<Condition> {
    match text.split_once('=')? {
        ("status", "*") => Some(Condition::AnyStatus),
        ("status", value) => {
            let digits = value.strip_prefix("0x")?;
            Some(Condition::Status(u32::from_str_radix(digits, 16).ok()?))
        }
        ("reason", bits) => Some(Condition::Reason(u32::from_str_radix(bits, 2).ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(unit: &str, registers: &[u32]) -> NvlinkError {
        NvlinkError {
            unit: unit.to_owned(),
            fatal: false,
            controller: 0,
            instance: 0,
            link: 0,
            registers: registers.to_vec(),
        }
    }

    #[test]
    fn every_row_is_read() {
        assert_eq!(sub_codes().len(), data_lines(TABLE).count());
        for row in sub_codes() {
            assert!((144..=150).contains(&row.code), "{row:?}");
            assert_eq!(row.action.leaves_node(), row.severity == Severity::Fatal);
        }
    }

    #[test]
    fn the_register_shows_its_layout_where_the_driver_is_unknown() {
        let meaning = |code, unit: &str, registers: &[u32], driver: Option<&str>| {
            let driver = driver.map(|text| Driver::parse(text).unwrap());
            find(code, &error(unit, registers), driver).map(|row| (row.action, row.meaning))
        };
        let peer = "NVLink: link down: the device at the other end failed";
        let down = [0x0214_25c6, 0];
        for driver in [None, Some("570.86.15"), Some("580.65.06")] {
            let found = meaning(149, "NETIR_LINK_EVT", &down, driver);
            assert_eq!(found, Some((Action::ResetGpu, peer)), "{driver:?}");
        }
        let remap = meaning(145, "RLW_REMAP", &[0x4, 0x40], None);
        assert_eq!(remap.map(|(action, _)| action), Some(Action::ResetGpu));
        // The bit that makes this one worse exists in the new layout only.
        let pipe = |info| meaning(145, "RLW_RXPIPE", &[info, 0x1], None).map(|(action, _)| action);
        assert_eq!(pipe(0x06), Some(Action::Ignore));
        assert_eq!(pipe(0x86), Some(Action::ResetGpu));
        assert_eq!(pipe(0xc2), Some(Action::Ignore));
        assert_eq!(meaning(145, "RLW_REMAP", &[0x4, 0], None), None);
        assert_eq!(meaning(145, "NO_SUCH_UNIT", &[0x4, 0x40], None), None);
    }

    #[test]
    fn of_several_bits_the_worst_counts() {
        let row = find(145, &error("RLW_TAGSTATE", &[0x8, 0x3]), None).unwrap();
        assert_eq!(row.action, Action::ResetGpu);
        let row = find(149, &error("NETIR_MFDE_EVENT", &[0x14, 0x3]), None).unwrap();
        assert_eq!(row.action, Action::Ignore);
    }
}
