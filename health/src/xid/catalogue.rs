// SPDX-License-Identifier: Apache-2.0
//! The table of codes: read once from the files that are compiled in.

use std::sync::LazyLock;

use super::driver::{Branches, Driver};
use super::terms::{Action, Cause, Kind, Severity};

const XIDS: &str = include_str!("xid.tsv");
const SXIDS: &str = include_str!("sxid.tsv");

/// One row: a code as some drivers mean it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whose number it is.
    pub kind: Kind,
    /// The number.
    pub code: u32,
    /// The drivers that mean this by it.
    pub branches: Branches,
    /// The name in the driver.
    pub name: &'static str,
    /// Who is at fault as a rule.
    pub cause: Cause,
    /// How bad it is, if the line does not say it.
    pub severity: Severity,
    /// What it asks for, if nothing else is known.
    pub action: Action,
    /// What it means, as a sentence without a full stop.
    pub meaning: &'static str,
    /// Words in the driver's message, in lower case, that mark this meaning where the driver is not known.
    words: Option<&'static str>,
}

/// Sorted by kind and code; the meaning in today's drivers first.
static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let mut entries: Vec<Entry> = [(Kind::Xid, XIDS), (Kind::Sxid, SXIDS)]
        .into_iter()
        .flat_map(|(kind, table)| data_lines(table).filter_map(move |line| read(kind, line)))
        .collect();
    entries.sort_by_key(|entry| (entry.kind, entry.code, entry.branches != Branches::Any));
    entries
});

/// The whole catalogue, by kind and code.
pub fn entries() -> &'static [Entry] {
    &ENTRIES
}

/// Everything that a code means or has meant; empty for a code that the catalogue does not hold.
pub fn find_all(kind: Kind, code: u32) -> &'static [Entry] {
    let start = ENTRIES.partition_point(|entry| (entry.kind, entry.code) < (kind, code));
    let end = ENTRIES.partition_point(|entry| (entry.kind, entry.code) <= (kind, code));
    ENTRIES.get(start..end).unwrap_or_default()
}

/// What a code means: by the driver where it is known, else by the driver's message, else in today's drivers.
pub fn find(
    kind: Kind,
    code: u32,
    driver: Option<Driver>,
    message: &str,
) -> Option<&'static Entry> {
    let rows = find_all(kind, code);
    let named = match driver {
        Some(driver) => rows.iter().find(|row| row.branches.name_driver(driver)),
        None if rows.len() > 1 => {
            let message = message.to_ascii_lowercase();
            rows.iter()
                .find(|row| row.words.is_some_and(|words| message.contains(words)))
        }
        None => None,
    };
    // A code that only older drivers use keeps its meaning: a wrong guess at the driver must not lose it.
    named.or_else(|| rows.first())
}

pub(super) fn data_lines(table: &'static str) -> impl Iterator<Item = &'static str> {
    table
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn read(kind: Kind, line: &'static str) -> Option<Entry> {
    let mut fields = line.split('\t');
    let mut next = || fields.next();
    let entry = Entry {
        kind,
        code: next()?.parse().ok()?,
        branches: Branches::parse(next()?)?,
        name: next()?,
        cause: Cause::from_name(next()?)?,
        severity: Severity::from_name(next()?)?,
        action: Action::from_name(next()?)?,
        words: Some(next()?).filter(|words| *words != "-"),
        meaning: next()?,
    };
    fields.next().is_none().then_some(entry)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_row_is_read_and_unique() {
        let rows = data_lines(XIDS).count() + data_lines(SXIDS).count();
        assert_eq!(entries().len(), rows);
        let keys: HashSet<_> = entries()
            .iter()
            .map(|entry| (entry.kind, entry.code, entry.branches.words()))
            .collect();
        assert_eq!(keys.len(), rows);
        for entry in entries() {
            assert!(entry.meaning.len() > 8, "{entry:?}");
            assert!(!entry.meaning.ends_with('.'), "{entry:?}");
            assert!(entry.meaning.is_ascii() && entry.name.is_ascii());
        }
    }

    #[test]
    fn every_xid_up_to_176_is_there() {
        for code in 1..=176 {
            assert!(find(Kind::Xid, code, None, "").is_some(), "{code}");
        }
        assert_eq!(find(Kind::Xid, 99_999, None, ""), None);
        assert_eq!(find(Kind::Sxid, 79, None, ""), None);
    }

    #[test]
    fn severity_and_action_fit_each_other() {
        for entry in entries() {
            let leaves = entry.action.leaves_node();
            assert_eq!(leaves, entry.severity == Severity::Fatal, "{entry:?}");
            if entry.action == Action::Ignore {
                assert!(entry.severity <= Severity::Warning, "{entry:?}");
            }
        }
    }

    #[test]
    fn what_programs_cause_never_costs_a_node() {
        for code in [8, 11, 13, 25, 31, 32, 43, 45, 68, 69, 94, 137, 141] {
            let entry = find(Kind::Xid, code, None, "").unwrap();
            assert!(!entry.action.leaves_node(), "{entry:?}");
        }
        for entry in entries() {
            let condemned = entry.cause == Cause::Program && entry.action.leaves_node();
            assert!(!condemned, "{entry:?}");
        }
        for code in [48, 62, 64, 79, 95, 119, 120, 140] {
            let entry = find(Kind::Xid, code, None, "").unwrap();
            assert!(entry.action.leaves_node(), "{entry:?}");
        }
    }

    #[test]
    fn renumbered_codes_follow_the_driver_or_the_message() {
        let name = |kind, code, driver: &str, message| {
            let driver = (!driver.is_empty()).then(|| Driver::parse(driver).unwrap());
            find(kind, code, driver, message).unwrap().name
        };
        assert_eq!(name(Kind::Xid, 139, "535.104.05", ""), "FAST_PATH_ERROR");
        assert_eq!(name(Kind::Xid, 139, "570.86.15", ""), "OFA1_ERROR");
        assert_eq!(name(Kind::Xid, 144, "550.54.15", ""), "KEY_ROTATION_ERROR");
        assert_eq!(name(Kind::Xid, 144, "", ""), "NVLINK_SAW_ERROR");
        let multicast = "Non-fatal, Link 46 MC TS crumbstore MCTO (First)";
        for (driver, message, expected) in [
            ("545.23.08", "", "NPORT_MULTICASTTSTATE_TAGPOOL_ECC_DBE_ERR"),
            ("550.40.07", "", "OSFP_THERM_WARN_DEACTIVATED"),
            ("", multicast, "NPORT_MULTICASTTSTATE_TAGPOOL_ECC_DBE_ERR"),
            ("", "Therm Warn Deactivated", "OSFP_THERM_WARN_DEACTIVATED"),
        ] {
            assert_eq!(name(Kind::Sxid, 28_002, driver, message), expected);
        }
        let only_old = "NPORT_MULTICASTTSTATE_CRUMBSTORE_MCTO_ERR";
        assert_eq!(name(Kind::Sxid, 28_006, "", multicast), only_old);
        assert_eq!(name(Kind::Sxid, 28_006, "570.1", ""), only_old);
        let reduction = "NPORT_REDUCTIONTSTATE_CRUMBSTORE_RTO_ERR";
        assert_eq!(name(Kind::Sxid, 29_006, "535", ""), reduction);
        assert_eq!(name(Kind::Sxid, 29_006, "", "Link 3 Red TS RTO"), reduction);
    }
}
