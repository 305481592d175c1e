// SPDX-License-Identifier: Apache-2.0
//! `nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)`

use super::event::{Continuation, SwitchError, What};
use super::pci::PciAddress;
use super::scan::Scan;
use crate::xid::Kind;

const SEVERITIES: [&str; 4] = ["Fatal", "Non-fatal", "Nonfatal", "Correctable"];

/// Reads what comes after `nvidia-nvswitch`. Absent if it is none of the lines that report errors.
pub(super) fn parse(text: &str) -> Option<(What, &str)> {
    let mut scan = Scan::new(text);
    let switch = scan.number()?;
    scan.eat(": SXid").then_some(())?;
    let after = scan.rest();
    let found = error(switch, after);
    Some(
        found.map_or((What::Malformed(Kind::Sxid), after), |(error, message)| {
            (What::Sxid(error), message)
        }),
    )
}

fn error(switch: u32, text: &str) -> Option<(SwitchError, &str)> {
    let mut scan = Scan::new(text);
    scan.blanks();
    scan.eat("(").then_some(())?;
    scan.eat("PCI:");
    let pci = PciAddress::scan(&mut scan)?;
    scan.eat("):").then_some(())?;
    scan.blanks();
    let code = scan.number()?;
    (scan.rest().is_empty() || scan.eat(",")).then_some(())?;
    scan.blanks();
    let message = scan.rest().trim_end();
    let continuation = continuation(message);
    let severity = SEVERITIES.into_iter().find(|word| {
        let mut ahead = scan;
        ahead.eat(word) && (ahead.rest().is_empty() || ahead.rest().starts_with(','))
    });
    let link = severity.and_then(|word| {
        let mut ahead = scan;
        ahead.eat(word);
        (ahead.eat(", Link ")).then(|| ahead.number()).flatten()
    });
    let error = SwitchError {
        switch,
        pci,
        code,
        severity: severity.map(str::to_owned),
        link,
        first: message.ends_with("(First)"),
        continuation,
    };
    Some((error, message))
}

fn continuation(message: &str) -> Option<Continuation> {
    if let Some(number) = message.strip_prefix("Severity ") {
        return Scan::new(number).number().map(Continuation::Severity);
    }
    let data = message.starts_with("Data {") || message.contains(" data[");
    data.then_some(Continuation::Data)
}
