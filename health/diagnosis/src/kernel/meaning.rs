// SPDX-License-Identifier: Apache-2.0
//! What an event of the kernel log says about a job.

use steadfast_health::kernel_log::{DriverKind, SystemKind, What};
use steadfast_health::xid::{Action as Advice, Cause, Severity};

use super::Told;
use crate::answer::{Action, Class};

/// Class, action, strength.
pub(super) type Meaning = (Class, Action, u8);

/// Strength of what nothing has to be done about.
const REPORTED: u8 = 40;
/// Strength up to which nothing is wrong: what was corrected.
pub(super) const HARMLESS: u8 = 30;

pub(super) fn of(told: &Told) -> Meaning {
    match &told.event.what {
        What::System(event) => of_system(event.kind),
        What::Driver(event) if event.kind == DriverKind::GspRateLimited => {
            (Class::GpuHardware, Action::ExcludeNode, 90)
        }
        _ => of_gpu(told),
    }
}

fn of_gpu(told: &Told) -> Meaning {
    let class = match told.found.cause {
        Cause::Program => Class::ProgramError,
        Cause::Link => Class::Link,
        Cause::Hardware | Cause::Driver | Cause::Thermal => Class::GpuHardware,
        Cause::Unknown if told.found.action.leaves_node() => Class::GpuHardware,
        Cause::Unknown => Class::Unknown,
    };
    // What the switches between the GPUs report is about links, whoever broke them.
    let class = match &told.event.what {
        What::Sxid(_) if class == Class::Unknown || class == Class::GpuHardware => Class::Link,
        What::Malformed(_) => Class::Unknown,
        _ => class,
    };
    if told.found.action.leaves_node() {
        return (class, Action::ExcludeNode, 97);
    }
    match told.found.action {
        Advice::RestartInPlace => (class, Action::RestartInPlace, 79),
        _ if told.found.severity >= Severity::Error => (class, Action::RestartInPlace, 70),
        _ => (class, Action::ReportOnly, REPORTED),
    }
}

fn of_system(kind: SystemKind) -> Meaning {
    match kind {
        SystemKind::OutOfMemory | SystemKind::GroupOutOfMemory => {
            (Class::HostMemory, Action::RestartInPlace, 92)
        }
        SystemKind::ServerLost => (Class::Storage, Action::RestartInPlace, 83),
        SystemKind::DiskError | SystemKind::DiskTimeout => {
            (Class::Storage, Action::ExcludeNode, 86)
        }
        SystemKind::FileSystemError | SystemKind::FileSystemReadOnly => {
            (Class::Storage, Action::ExcludeNode, 89)
        }
        SystemKind::LinkDown | SystemKind::PortModule => (Class::Link, Action::ExcludeNode, 88),
        SystemKind::AdapterPower => (Class::Link, Action::ReportOnly, REPORTED),
        SystemKind::PcieFatal => (Class::Link, Action::ExcludeNode, 94),
        SystemKind::PcieUncorrected => (Class::Link, Action::ReportOnly, 50),
        SystemKind::PcieCorrected => (Class::Link, Action::ReportOnly, 30),
        SystemKind::MachineCheckFatal | SystemKind::MemoryUncorrected => {
            (Class::NodeLost, Action::ExcludeNode, 88)
        }
        SystemKind::MachineCheck | SystemKind::MemoryCorrected => {
            (Class::Unknown, Action::ReportOnly, 30)
        }
        SystemKind::HungTask => (Class::Storage, Action::RestartInPlace, 50),
        SystemKind::SoftLockup => (Class::NodeLost, Action::ExcludeNode, 75),
        SystemKind::CommunicationCrash => (Class::ProgramError, Action::RestartInPlace, 80),
        SystemKind::ServerBack | SystemKind::LinkUp => (Class::Unknown, Action::ReportOnly, 0),
    }
}
