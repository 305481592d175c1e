// SPDX-License-Identifier: Apache-2.0
//! What the lines of the kernel log mean that carry no code.

use super::assessment::Assessment;
use super::terms::{Action, Cause, Severity};
use crate::kernel_log::{DriverKind, SystemKind};

pub(super) fn of_driver(kind: DriverKind) -> Assessment {
    let (cause, severity, action) = match kind {
        DriverKind::GpuLost
        | DriverKind::GpuLostAtProbe
        | DriverKind::GpuReset { success: false } => {
            (Cause::Hardware, Severity::Fatal, Action::RebootNode)
        }
        DriverKind::GpuIdentity | DriverKind::GpuReset { success: true } => {
            (Cause::Unknown, Severity::Info, Action::Ignore)
        }
        DriverKind::GspRateLimited => (Cause::Driver, Severity::Fatal, Action::ResetGpu),
        DriverKind::NvlinkDetectFailed => (Cause::Link, Severity::Warning, Action::CheckLink),
        DriverKind::PeermemInvalidContext => (Cause::Driver, Severity::Warning, Action::Report),
    };
    Assessment::new(cause, severity, action, driver_meaning(kind))
}

const fn driver_meaning(kind: DriverKind) -> &'static str {
    match kind {
        DriverKind::GpuLost => "The GPU no longer answers on PCIe",
        DriverKind::GpuLostAtProbe => "The GPU did not answer when the driver started",
        DriverKind::GpuIdentity => "Says which GPU sits at this address",
        DriverKind::GspRateLimited => {
            "The GPU's firmware went on not answering; the driver now holds most messages about it back"
        }
        DriverKind::NvlinkDetectFailed => {
            "The driver cannot find out which NVLink connections there are"
        }
        DriverKind::PeermemInvalidContext => {
            "A network adapter used GPU memory of a context that was already gone"
        }
        DriverKind::GpuReset { success: true } => "A tool has reset the GPU",
        DriverKind::GpuReset { success: false } => "A tool tried to reset the GPU and failed",
    }
}

pub(super) fn of_system(kind: SystemKind) -> Assessment {
    let (cause, severity, action) = match kind {
        SystemKind::OutOfMemory | SystemKind::GroupOutOfMemory | SystemKind::CommunicationCrash => {
            (Cause::Program, Severity::Error, Action::RestartInPlace)
        }
        SystemKind::MachineCheckFatal
        | SystemKind::MemoryUncorrected
        | SystemKind::FileSystemReadOnly => (Cause::Hardware, Severity::Fatal, Action::ExcludeNode),
        SystemKind::MachineCheck
        | SystemKind::MemoryCorrected
        | SystemKind::DiskTimeout
        | SystemKind::DiskError
        | SystemKind::FileSystemError
        | SystemKind::AdapterPower => (Cause::Hardware, Severity::Warning, Action::Report),
        SystemKind::PcieCorrected | SystemKind::LinkUp => {
            (Cause::Link, Severity::Info, Action::Ignore)
        }
        SystemKind::PcieUncorrected | SystemKind::LinkDown | SystemKind::PortModule => {
            (Cause::Link, Severity::Warning, Action::CheckLink)
        }
        SystemKind::PcieFatal => (Cause::Link, Severity::Fatal, Action::ExcludeNode),
        SystemKind::ServerLost | SystemKind::HungTask => {
            (Cause::Unknown, Severity::Warning, Action::Report)
        }
        SystemKind::ServerBack => (Cause::Unknown, Severity::Info, Action::Ignore),
        SystemKind::SoftLockup => (Cause::Driver, Severity::Fatal, Action::RebootNode),
    };
    Assessment::new(cause, severity, action, system_meaning(kind))
}

const fn system_meaning(kind: SystemKind) -> &'static str {
    match kind {
        SystemKind::OutOfMemory => "The machine ran out of memory, and a process was killed for it",
        SystemKind::GroupOutOfMemory => {
            "A control group reached its memory limit, and a process was killed for it"
        }
        SystemKind::MachineCheck => "The processor reported a hardware error that it could handle",
        SystemKind::MachineCheckFatal => {
            "The processor reported a hardware error that it could not handle"
        }
        SystemKind::MemoryCorrected => "Memory errors were corrected",
        SystemKind::MemoryUncorrected => "A memory error could not be corrected",
        SystemKind::PcieCorrected => "PCIe errors were corrected",
        SystemKind::PcieUncorrected => "A PCIe transfer was lost",
        SystemKind::PcieFatal => "A PCIe link failed",
        SystemKind::DiskTimeout => "A disk does not answer in time",
        SystemKind::DiskError => "A disk could not read or write",
        SystemKind::FileSystemError => "A file system found itself damaged",
        SystemKind::FileSystemReadOnly => "A file system was closed for writing after an error",
        SystemKind::ServerLost => "A file server does not answer",
        SystemKind::ServerBack => "A file server answers again",
        SystemKind::HungTask => {
            "A process has been waiting in the kernel for long, as a rule for a disk or a file server"
        }
        SystemKind::SoftLockup => "A processor is stuck in the kernel",
        SystemKind::LinkDown => "A network port lost its link",
        SystemKind::LinkUp => "A network port has its link again",
        SystemKind::PortModule => "Cable or module of a network port is faulty, gone or too hot",
        SystemKind::AdapterPower => "A network adapter gets less power than it asks for",
        SystemKind::CommunicationCrash => {
            "A process crashed in the library for communication between GPUs"
        }
    }
}
