// SPDX-License-Identifier: Apache-2.0
//! Explains codes without a log.

use std::io::{self, Write};

use serde_json::{Value, json};
use steadfast_health::xid::{
    Branches, Driver, Entry, Kind, RecoveryAction, SubCode, entries, find, find_all, sub_codes,
};

/// Explains one code, as the driver means it where it is known.
pub(super) fn code(
    kind: Kind,
    code: u32,
    driver: Option<Driver>,
    as_json: bool,
    output: &mut impl Write,
) -> io::Result<()> {
    let Some(entry) = find(kind, code, driver, "") else {
        return unknown(kind, code, as_json, output);
    };
    let others: Vec<&Entry> = match driver {
        Some(_) => Vec::new(),
        None => find_all(kind, code)
            .iter()
            .filter(|row| row.branches != entry.branches)
            .collect(),
    };
    if as_json {
        let mut object = object(entry);
        if !others.is_empty() {
            let others: Vec<Value> = others.iter().map(|row| self::object(row)).collect();
            object["other_meanings"] = Value::from(others);
        }
        if is_recovery(entry) {
            object["recovery_actions"] = recovery_actions()
                .into_iter()
                .map(recovery_object)
                .collect();
        }
        if is_nvlink(entry) {
            object["sub_codes"] = sub_codes_of(code).map(sub_code_object).collect();
        }
        return writeln!(output, "{object}");
    }
    text(entry, output)?;
    for row in others {
        writeln!(output)?;
        text(row, output)?;
    }
    if is_recovery(entry) {
        writeln!(output, "\n  to   action              meaning")?;
        for recovery in recovery_actions() {
            let (number, action) = (recovery.number(), recovery.action().name());
            writeln!(
                output,
                "  {number:<3}  {action:<18}  {}",
                recovery.meaning()
            )?;
        }
    }
    if is_nvlink(entry) {
        writeln!(
            output,
            "\n  unit              condition          action            meaning"
        )?;
        for sub_code in sub_codes_of(code) {
            let unit = sub_code.units.first().copied().unwrap_or_default();
            let condition = sub_code.condition.words();
            let (action, meaning) = (sub_code.action.name(), sub_code.meaning);
            writeln!(
                output,
                "  {unit:<16}  {condition:<17}  {action:<16}  {meaning}"
            )?;
        }
        writeln!(
            output,
            "\n  `Nonfatal` in the line makes it a warning at most; `steadfast xid -` reads lines."
        )?;
    }
    Ok(())
}

/// The whole catalogue.
pub(super) fn all(as_json: bool, output: &mut impl Write) -> io::Result<()> {
    if as_json {
        let all: Vec<Value> = entries().iter().map(object).collect();
        serde_json::to_writer(&mut *output, &all)?;
        return writeln!(output);
    }
    for entry in entries() {
        let code = format!("{} {}", entry.kind.title(), entry.code);
        let (severity, action) = (entry.severity.name(), entry.action.name());
        let note = note(entry.branches);
        writeln!(
            output,
            "{code:<10}  {severity:<7}  {action:<16}  {}{note}",
            entry.meaning
        )?;
    }
    Ok(())
}

fn unknown(kind: Kind, code: u32, as_json: bool, output: &mut impl Write) -> io::Result<()> {
    if as_json {
        let object = json!({
            "kind": kind.name(),
            "code": code,
            "known": false,
            "cause": "unknown",
            "severity": "unknown",
            "action": "report",
        });
        return writeln!(output, "{object}");
    }
    writeln!(
        output,
        "{title} {code}: not in the catalogue\n  \
         It is reported when it comes, and decides nothing by itself: what the driver says of the\n  \
         recovery (XID 154), or a policy (`steadfast xid - --policy FILE`), does.\n\n\
         hint: `steadfast xid --list` shows the codes that are known",
        title = kind.title(),
    )
}

fn object(entry: &Entry) -> Value {
    let mut object = json!({
        "kind": entry.kind.name(),
        "code": entry.code,
        "known": true,
        "code_name": entry.name,
        "cause": entry.cause.name(),
        "severity": entry.severity.name(),
        "action": entry.action.name(),
        "leaves_node": entry.action.leaves_node(),
        "meaning": entry.meaning,
        "advice": entry.action.advice(),
    });
    if entry.branches != Branches::Any {
        object["drivers"] = Value::from(entry.branches.words());
    }
    object
}

fn text(entry: &Entry, output: &mut impl Write) -> io::Result<()> {
    let (title, code, note) = (entry.kind.title(), entry.code, note(entry.branches));
    writeln!(output, "{title} {code}: {}{note}", entry.name)?;
    writeln!(output, "  meaning   {}", entry.meaning)?;
    writeln!(output, "  at fault  {}, as a rule", entry.cause)?;
    writeln!(output, "  severity  {}", entry.severity)?;
    writeln!(
        output,
        "  action    {}: {}",
        entry.action,
        entry.action.advice()
    )
}

fn note(branches: Branches) -> String {
    match branches {
        Branches::Any => String::new(),
        named => format!(" ({})", named.words()),
    }
}

fn is_recovery(entry: &Entry) -> bool {
    (entry.kind, entry.code) == (Kind::Xid, 154)
}

fn is_nvlink(entry: &Entry) -> bool {
    entry.kind == Kind::Xid && (144..=150).contains(&entry.code)
}

fn sub_codes_of(code: u32) -> impl Iterator<Item = &'static SubCode> {
    sub_codes()
        .iter()
        .filter(move |sub_code| sub_code.code == code)
}

fn sub_code_object(sub_code: &SubCode) -> Value {
    json!({
        "units": sub_code.units,
        "condition": sub_code.condition.words(),
        "cause": sub_code.cause.name(),
        "severity": sub_code.severity.name(),
        "action": sub_code.action.name(),
        "meaning": sub_code.meaning,
    })
}

fn recovery_actions() -> [RecoveryAction; 6] {
    [0, 1, 2, 3, 4, 5].map(RecoveryAction::from_number)
}

fn recovery_object(recovery: RecoveryAction) -> Value {
    json!({
        "number": recovery.number(),
        "severity": recovery.severity().name(),
        "action": recovery.action().name(),
        "meaning": recovery.meaning(),
    })
}
