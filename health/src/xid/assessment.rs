// SPDX-License-Identifier: Apache-2.0
//! What one event of the kernel log means.

use super::catalogue::{self, Entry};
use super::driver::Driver;
use super::nvlink::{self, Condition};
use super::other_events;
use super::terms::{Action, Cause, Kind, Severity};
use crate::kernel_log::{Continuation, Detail, Event, NvlinkError, SwitchError, What, XidError};

/// What an event means, by itself. Whether it is only the consequence of another is for
/// [`Grouping`](super::Grouping) to say, and what a user wants instead for [`Judge`](super::Judge).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assessment {
    /// The driver's name for the code, if the catalogue has it.
    pub name: Option<&'static str>,
    /// Who is at fault as a rule.
    pub cause: Cause,
    /// How bad it is.
    pub severity: Severity,
    /// What it asks for.
    pub action: Action,
    /// In words, without a full stop.
    pub meaning: &'static str,
}

/// Assesses one event; the driver, where it is known, decides what a renumbered code means.
pub fn assess(event: &Event, driver: Option<Driver>) -> Assessment {
    match &event.what {
        What::Xid(error) => xid(error, &event.message, driver),
        What::Sxid(error) => sxid(error, &event.message, driver),
        What::Malformed(_) => Assessment::new(
            Cause::Unknown,
            Severity::Unknown,
            Action::Report,
            "Looks like a GPU error, but cannot be read as one",
        ),
        What::Driver(event) => other_events::of_driver(event.kind),
        What::System(event) => other_events::of_system(event.kind),
    }
}

impl Assessment {
    pub(super) const fn new(
        cause: Cause,
        severity: Severity,
        action: Action,
        meaning: &'static str,
    ) -> Self {
        Self {
            name: None,
            cause,
            severity,
            action,
            meaning,
        }
    }

    const fn of_entry(entry: &Entry) -> Self {
        Self {
            name: Some(entry.name),
            cause: entry.cause,
            severity: entry.severity,
            action: entry.action,
            meaning: entry.meaning,
        }
    }

    fn of_code(kind: Kind, code: u32, driver: Option<Driver>, message: &str) -> Self {
        catalogue::find(kind, code, driver, message).map_or(
            Self::new(
                Cause::Unknown,
                Severity::Unknown,
                Action::Report,
                "A code that the catalogue does not hold: what the driver says of the recovery (XID 154) decides",
            ),
            Self::of_entry,
        )
    }
}

fn xid(error: &XidError, message: &str, driver: Option<Driver>) -> Assessment {
    let mut found = Assessment::of_code(Kind::Xid, error.code, driver, message);
    match &error.detail {
        Some(Detail::Recovery { to, .. }) => {
            found.severity = to.severity();
            found.action = to.action();
            found.meaning = to.meaning();
        }
        Some(Detail::Containment {
            reset,
            drain_and_reset,
        }) if *reset || *drain_and_reset => {
            found.severity = Severity::Fatal;
            found.action = found.action.max(Action::ResetGpu);
        }
        Some(Detail::Nvlink(detail)) => of_nvlink(&mut found, error.code, detail, driver),
        _ => {}
    }
    found
}

/// The driver's word for this one error goes before what the table says of all of its kind.
fn of_nvlink(found: &mut Assessment, code: u32, error: &NvlinkError, driver: Option<Driver>) {
    let row = nvlink::find(code, error, driver);
    if let Some(row) = row {
        found.severity = row.severity;
        found.action = row.action;
        found.cause = row.cause;
        found.meaning = row.meaning;
    }
    let decided_by_reason = row.is_some_and(|row| matches!(row.condition, Condition::Reason(_)));
    if error.fatal && !found.action.leaves_node() && !decided_by_reason {
        found.severity = Severity::Fatal;
        found.action = Action::ResetGpu;
    } else if !error.fatal && found.action.leaves_node() {
        found.severity = Severity::Warning;
        found.action = Action::CheckLink;
    }
}

fn sxid(error: &SwitchError, message: &str, driver: Option<Driver>) -> Assessment {
    let mut found = Assessment::of_code(Kind::Sxid, error.code, driver, message);
    // A line that was cut off from its first one has only the number.
    let word = error.severity.as_deref().or(match error.continuation {
        Some(Continuation::Severity(1)) => Some("Fatal"),
        Some(Continuation::Severity(0)) => Some("Non-fatal"),
        _ => None,
    });
    match word {
        Some("Fatal") if !found.action.leaves_node() && found.cause != Cause::Thermal => {
            found.severity = Severity::Fatal;
            found.action = Action::ResetFabric;
        }
        Some("Fatal") | None => {}
        Some(_) => match found.severity {
            Severity::Fatal => {
                found.severity = Severity::Warning;
                found.action = Action::Report;
            }
            Severity::Unknown => {
                found.severity = Severity::Info;
                found.action = Action::Ignore;
            }
            _ => {}
        },
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_log::parse_line;

    fn of(line: &str) -> Assessment {
        assess(&parse_line(line.as_bytes()).unwrap(), None)
    }

    fn sxid(rest: &str) -> (Severity, Action) {
        let found = of(&format!(
            "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): {rest}"
        ));
        (found.severity, found.action)
    }

    fn xid(rest: &str) -> (Severity, Action) {
        let found = of(&format!("NVRM: Xid (PCI:0000:01:00): {rest}"));
        (found.severity, found.action)
    }

    #[test]
    fn the_number_of_a_recovery_action_decides() {
        for (number, action) in [
            ("0x0", Action::Ignore),
            ("0x1", Action::ResetGpu),
            ("0x2", Action::RebootNode),
            ("0x3", Action::DrainPeerToPeer),
            ("0x4", Action::ResetGpu),
            ("0x5", Action::RecoverImex),
            ("0x6", Action::Report),
            ("0xff", Action::Report),
        ] {
            let line =
                format!("154, GPU recovery action changed from 0x0 (None) to {number} (Any)");
            assert_eq!(xid(&line).1, action, "{number}");
        }
    }

    #[test]
    fn unknown_codes_are_reported_and_nothing_more() {
        let unknown = (Severity::Unknown, Action::Report);
        assert_eq!(xid("99999, unknown error"), unknown);
        assert_eq!(sxid("99999"), unknown);
        assert_eq!(xid("abc, pid=1"), unknown);
    }

    #[test]
    fn the_word_in_the_line_goes_before_the_table() {
        let remap = "(0x00000004 0x00000040 0x0 0x0)";
        assert_eq!(
            xid(&format!("145, RLW_REMAP Nonfatal XC1 i0 Link 10 {remap}")),
            (Severity::Warning, Action::CheckLink)
        );
        let fatal = (Severity::Fatal, Action::ResetGpu);
        assert_eq!(
            xid(&format!("145, RLW_REMAP Fatal XC1 i0 Link 10 {remap}")),
            fatal
        );
        assert_eq!(xid("145, NEW_UNIT Fatal XC1 i0 Link 10 (0x7f)"), fatal);
        let up = "Fatal, Link 30 LTSSM Fault Up";
        assert_eq!(
            sxid(&format!("20034, {up}")),
            (Severity::Fatal, Action::ResetFabric)
        );
        assert_eq!(
            sxid("20034, Non-fatal, Link 30 x"),
            (Severity::Warning, Action::Report)
        );
        assert_eq!(
            sxid("12033, Fatal, Link 1 x"),
            (Severity::Fatal, Action::ResetFabric)
        );
        assert_eq!(
            sxid("12028, Non-fatal, Link 33 x"),
            (Severity::Warning, Action::Report)
        );
        assert_eq!(
            sxid("12033, Severity 1 Engine"),
            (Severity::Fatal, Action::ResetFabric)
        );
        assert_eq!(
            sxid("11012, Non-fatal, Link 33 x"),
            (Severity::Info, Action::Ignore)
        );
    }

    #[test]
    fn a_contained_error_that_asks_for_a_reset_gets_one() {
        let line = |answer| format!("94, pid=7, Contained: CE (0x9). RST: {answer}, D-RST: No");
        assert_eq!(xid(&line("No")), (Severity::Error, Action::RestartInPlace));
        assert_eq!(xid(&line("Yes")), (Severity::Fatal, Action::ResetGpu));
    }
}
