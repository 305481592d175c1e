// SPDX-License-Identifier: Apache-2.0
//! GPUs that are out of order: what makes them so, what ends it, and the finding that says it.

use std::collections::BTreeMap;

use steadfast_proto::v1::{FaultClass, FaultRole, Finding};

use super::Judged;
use crate::gpus::Owner;
use crate::kernel_log::{Detail, DriverKind, PciAddress, SystemKind, What};
use crate::xid::{Cause, RecoveryAction};

/// What the core knows the finding by.
const KIND: &str = "gpu.fault";
/// The same where it is about switches, which more than this node may hang on.
const SWITCH: &str = "switch.fault";

impl Judged {
    /// The GPU or switch that cannot be used any more as it is, if that is what the event says.
    pub fn breaks_gpu(&self) -> Option<PciAddress> {
        let about_gpu = match &self.event.what {
            What::Xid(_) | What::Sxid(_) | What::Driver(_) => true,
            What::System(event) => event.kind == SystemKind::PcieFatal,
            What::Malformed(_) => false,
        };
        (about_gpu && self.found.action.leaves_node())
            .then(|| self.event.pci())
            .flatten()
    }

    /// Whether it is about the switches that connect all GPUs of the node.
    pub fn is_about_switch(&self) -> bool {
        matches!(self.event.what, What::Sxid(_))
    }

    /// The finding that a GPU of the job cannot be used any more. The caller adds generation, node, ranks and wall-clock
    /// time.
    pub fn finding(&self, owner: Owner) -> Finding {
        let title = self.event.title();
        let meaning = self.found.meaning;
        let (local_rank, summary) = match owner {
            Owner::Worker(rank) => (Some(rank), format!("lost its GPU: {title}: {meaning}")),
            _ => (None, format!("{title}: {meaning}")),
        };
        Finding {
            kind: if self.is_about_switch() { SWITCH } else { KIND }.to_owned(),
            device: self.event.uuid.clone().unwrap_or_default(),
            class: self.fault_class().into(),
            role: FaultRole::Cause.into(),
            local_rank,
            monotonic_ns: self.at_ns,
            fingerprint: self.fingerprint(),
            summary,
            evidence: vec![
                self.event.message.clone(),
                self.found.action.advice().to_owned(),
            ],
            pid: self.event.pid().unwrap_or_default(),
            ..Finding::default()
        }
    }

    /// What is at fault, in the words of the core.
    pub(super) fn fault_class(&self) -> FaultClass {
        if let What::System(event) = &self.event.what {
            return match event.kind {
                SystemKind::OutOfMemory | SystemKind::GroupOutOfMemory => FaultClass::HostMemory,
                SystemKind::ServerLost
                | SystemKind::DiskError
                | SystemKind::DiskTimeout
                | SystemKind::FileSystemError
                | SystemKind::FileSystemReadOnly => FaultClass::Storage,
                SystemKind::LinkDown | SystemKind::PortModule => FaultClass::Link,
                SystemKind::CommunicationCrash => FaultClass::Program,
                _ => FaultClass::Unknown,
            };
        }
        match self.found.cause {
            Cause::Program => FaultClass::Program,
            Cause::Link => FaultClass::Link,
            Cause::Hardware | Cause::Driver | Cause::Thermal => FaultClass::GpuHardware,
            Cause::Unknown if self.found.action.leaves_node() => FaultClass::GpuHardware,
            Cause::Unknown => FaultClass::Unknown,
        }
    }

    /// What recurs if the same fault recurs, on whichever GPU.
    pub(super) fn fingerprint(&self) -> String {
        match &self.event.what {
            What::Xid(error) => format!("xid:{}", error.code),
            What::Sxid(error) => format!("sxid:{}", error.code),
            _ => self.event.kind().to_owned(),
        }
    }
}

/// The faults that the event ends.
pub(super) fn mended(judged: &Judged, faults: &BTreeMap<PciAddress, Judged>) -> Vec<PciAddress> {
    match &judged.event.what {
        What::Xid(error) => match &error.detail {
            Some(Detail::Recovery {
                to: RecoveryAction::None,
                ..
            }) => vec![error.pci],
            _ => Vec::new(),
        },
        What::Driver(event) if event.kind == (DriverKind::GpuReset { success: true }) => {
            let uuid = event.uuid.as_ref();
            let same = faults.iter().filter(|(pci, fault)| {
                event.pci == Some(**pci) || (uuid.is_some() && fault.event.uuid.as_ref() == uuid)
            });
            same.map(|(pci, _)| *pci).collect()
        }
        _ => Vec::new(),
    }
}
