// SPDX-License-Identifier: Apache-2.0
//! What the GPU driver, and tools around it, say beside XIDs.

use super::event::{DriverEvent, DriverKind};
use super::pci::PciAddress;
use super::scan::{Scan, between};

/// First line of the three that say that a GPU was not there when the driver started.
const PROBE_START: &str = "The NVIDIA GPU ";
/// Last line of them.
const PROBE_END: &str = "fallen off the bus and is not responding";

/// Reads what comes after `NVRM: `.
pub(super) fn parse(text: &str) -> Option<DriverEvent> {
    let mut scan = Scan::new(text);
    let event = |kind, pci| {
        Some(DriverEvent {
            kind,
            pci,
            uuid: None,
        })
    };
    if scan.eat("GPU at PCI:") {
        let pci = PciAddress::scan(&mut scan);
        scan.eat(":").then_some(())?;
        scan.blanks();
        return Some(DriverEvent {
            kind: DriverKind::GpuIdentity,
            pci,
            uuid: Some(uuid(scan.rest())?),
        });
    }
    if scan.eat("GPU ") {
        let pci = PciAddress::scan(&mut scan)?;
        let lost = scan.rest().starts_with(": GPU has fallen off the bus");
        return lost
            .then(|| event(DriverKind::GpuLost, Some(pci)))
            .flatten();
    }
    if text.contains(PROBE_END) {
        return event(DriverKind::GpuLostAtProbe, None);
    }
    if text.starts_with("Rate limiting GSP RPC error prints") {
        let pci = between(text, "PCI:", " ").and_then(PciAddress::parse);
        return event(DriverKind::GspRateLimited, pci);
    }
    let detect = text.starts_with("knvlink") && text.to_ascii_lowercase().contains("rxdet");
    let failed = text.contains("Failed") || text.contains("failed");
    (detect && failed)
        .then(|| event(DriverKind::NvlinkDetectFailed, None))
        .flatten()
}

/// The address in the first of the three lines about a GPU that was not there; what comes after `NVRM: `.
pub(super) fn probe_start(text: &str) -> Option<PciAddress> {
    let address = text.strip_prefix(PROBE_START)?;
    PciAddress::scan(&mut Scan::new(address))
}

/// Reads lines that are not the driver's own, but about it.
pub(super) fn around(text: &str) -> Option<DriverEvent> {
    if let Some(after) = text.strip_prefix("GPU reset executed: ") {
        return Some(DriverEvent {
            kind: DriverKind::GpuReset {
                success: after.contains("success: true"),
            },
            pci: None,
            uuid: uuid(after),
        });
    }
    let peermem = text.starts_with("nvidia-peermem") && text.contains("invalid context");
    peermem.then_some(DriverEvent {
        kind: DriverKind::PeermemInvalidContext,
        pci: None,
        uuid: None,
    })
}

fn uuid(text: &str) -> Option<String> {
    let word = Scan::new(text).up_to(&[' ', ',', '\t']);
    word.starts_with("GPU-").then(|| word.to_owned())
}
