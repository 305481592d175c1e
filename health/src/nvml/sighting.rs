// SPDX-License-Identifier: Apache-2.0
//! What the library reports, in the form of what the kernel log says of the same events.

use super::report::GpuIdentity;
use crate::incidents::{Reporter, Sighting};
use crate::kernel_log::{
    Detail, DriverEvent, DriverKind, Event, Header, PciAddress, What, XidError,
};
use crate::xid::RecoveryAction;

/// The XID with which the driver says what a GPU needs.
const RECOVERY: u32 = 154;

/// An XID that the library delivered.
pub fn xid(gpu: &GpuIdentity, code: u32, at_ns: u64) -> Option<Sighting> {
    sighting(gpu, at_ns, "delivered by NVML", |pci| {
        error(pci, code, None)
    })
}

/// A GPU that the library calls lost.
pub fn lost(gpu: &GpuIdentity, at_ns: u64) -> Option<Sighting> {
    sighting(gpu, at_ns, "NVML says that the GPU is lost", |pci| {
        What::Driver(DriverEvent {
            kind: DriverKind::GpuLost,
            pci: Some(pci),
            uuid: None,
        })
    })
}

/// The driver says that a GPU needs something else than before; by the driver's numbers.
pub fn recovery(gpu: &GpuIdentity, from: u32, to: u32, at_ns: u64) -> Option<Sighting> {
    sighting(gpu, at_ns, "read by NVML", |pci| {
        let detail = Detail::Recovery {
            from: RecoveryAction::from_number(from),
            to: RecoveryAction::from_number(to),
            text: String::new(),
        };
        error(pci, RECOVERY, Some(detail))
    })
}

fn error(pci: PciAddress, code: u32, detail: Option<Detail>) -> What {
    What::Xid(XidError {
        pci,
        gpu_instance: None,
        compute_instance: None,
        code,
        pid: None,
        name: None,
        detail,
    })
}

fn sighting(
    gpu: &GpuIdentity,
    at_ns: u64,
    message: &str,
    what: impl FnOnce(PciAddress) -> What,
) -> Option<Sighting> {
    let pci = PciAddress::parse(&gpu.pci)?;
    Some(Sighting {
        event: Event {
            header: Header::default(),
            what: what(pci),
            uuid: (!gpu.uuid.is_empty()).then(|| gpu.uuid.clone()),
            message: message.to_owned(),
        },
        at_ns,
        reporter: Reporter::Nvml,
    })
}
