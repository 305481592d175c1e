// SPDX-License-Identifier: Apache-2.0
//! What lines of the kernel log say.

use super::header::Header;
use super::pci::PciAddress;
use crate::xid::{Kind, RecoveryAction};

/// One thing that the log says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Where the line comes from, and when.
    pub header: Header,
    /// What it says.
    pub what: What,
    /// The identity of the GPU that it is about, where the log has told it.
    pub uuid: Option<String>,
    /// The driver's or kernel's own words, without what was understood before them.
    pub message: String,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// An error of a GPU.
    Xid(XidError),
    /// An error of a switch between GPUs.
    Sxid(SwitchError),
    /// A line that looks like an XID or SXID, and is none: never acted on, never dropped in silence.
    Malformed(Kind),
    /// Something else that the GPU driver says.
    Driver(DriverEvent),
    /// Something that the rest of the kernel says.
    System(SystemEvent),
}

/// A value that the driver may say that it does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known<T> {
    /// The driver wrote `<unknown>` or the like.
    Unknown,
    /// The value.
    Is(T),
}

/// An XID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidError {
    /// The GPU.
    pub pci: PciAddress,
    /// MIG: the GPU instance, if the error is that instance's.
    pub gpu_instance: Option<u32>,
    /// MIG: the compute instance in it.
    pub compute_instance: Option<u32>,
    /// The number.
    pub code: u32,
    /// The process, by its id in the host's own namespace: a container sees another number. For a code that no
    /// channel is named for, this is who asked the driver, not who is at fault.
    pub pid: Option<Known<u32>>,
    /// The name of that process, at most 15 bytes.
    pub name: Option<Known<String>>,
    /// What the message gives beyond that.
    pub detail: Option<Detail>,
}

/// What the message of an XID gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detail {
    /// 144 to 150.
    Nvlink(NvlinkError),
    /// 154: what the GPU needed before, and needs now; the text beside the new number.
    Recovery {
        /// Before.
        from: RecoveryAction,
        /// Now.
        to: RecoveryAction,
        /// The driver's text for it.
        text: String,
    },
    /// 94, 95: whether the GPU needs a reset, and whether it may wait until its other users have ended.
    Containment {
        /// `RST`.
        reset: bool,
        /// `D-RST`.
        drain_and_reset: bool,
    },
    /// 74: the link and the registers of its unit.
    LinkRegisters {
        /// Number of the link.
        link: u32,
        /// The registers, in the order of the line.
        registers: Vec<u32>,
    },
    /// 13: the multiprocessor.
    Multiprocessor {
        /// Graphics processing cluster.
        gpc: u32,
        /// Texture processing cluster.
        tpc: u32,
        /// Multiprocessor.
        sm: u32,
    },
    /// 63, 64: the row of memory.
    Row(u64),
    /// 45: the error that the channels were taken down for.
    CausedBy(u32),
}

/// How the sub-code stands in the first register of an NVLink error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvlinkLayout {
    /// Before driver 575: ten bits.
    Old,
    /// Since driver 575: seven bits.
    New,
}

/// An error of fifth-generation NVLink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvlinkError {
    /// The unit that reports, such as `RLW_SRC_TRACK`; empty if the line names none.
    pub unit: String,
    /// Whether the driver calls it fatal.
    pub fatal: bool,
    /// Link controller.
    pub controller: u32,
    /// Instance in it.
    pub instance: u32,
    /// The link; negative when none is meant.
    pub link: i64,
    /// The registers: interrupt information, error status, and more; at least 1, at most 16.
    pub registers: Vec<u32>,
}

/// An SXID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchError {
    /// Number of the switch on this machine.
    pub switch: u32,
    /// The switch.
    pub pci: PciAddress,
    /// The number.
    pub code: u32,
    /// The driver's word: `Fatal`, `Non-fatal` or `Correctable`; absent where it gives none.
    pub severity: Option<String>,
    /// The link.
    pub link: Option<u32>,
    /// Whether it is marked as the first of its kind.
    pub first: bool,
    /// Set on a line that only adds to the one before it.
    pub continuation: Option<Continuation>,
}

/// What a further line of an SXID gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuation {
    /// The severity as a number; 1 is fatal.
    Severity(u32),
    /// Registers.
    Data,
}

/// Something that the GPU driver says beside XIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverEvent {
    /// What.
    pub kind: DriverKind,
    /// The GPU, if the line names one.
    pub pci: Option<PciAddress>,
    /// The GPU's identity, if the line gives it.
    pub uuid: Option<String>,
}

/// What the GPU driver says beside XIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// The GPU is no longer on the bus.
    GpuLost,
    /// The same, found while the driver started.
    GpuLostAtProbe,
    /// Which GPU sits at which address; printed before its first XID.
    GpuIdentity,
    /// Further messages about firmware timeouts are held back: silence is no recovery.
    GspRateLimited,
    /// NVLink connections could not be detected.
    NvlinkDetectFailed,
    /// The module that lets network adapters reach GPU memory met a context that is gone.
    PeermemInvalidContext,
    /// A tool says that it has reset a GPU, and whether that succeeded.
    GpuReset {
        /// Whether it did.
        success: bool,
    },
}

/// Something that the rest of the kernel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemEvent {
    /// What.
    pub kind: SystemKind,
    /// The process that it is about.
    pub pid: Option<u32>,
    /// Its name.
    pub name: Option<String>,
    /// The disk, file system, port, server, processor or memory that it is about.
    pub device: Option<String>,
    /// The PCI device that it is about.
    pub pci: Option<PciAddress>,
}

impl SystemEvent {
    pub(super) const fn new(kind: SystemKind) -> Self {
        Self {
            kind,
            pid: None,
            name: None,
            device: None,
            pci: None,
        }
    }
}

/// What the rest of the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SystemKind {
    /// Memory of the machine ran out, and a process was killed for it.
    OutOfMemory,
    /// The memory limit of a control group was reached, and a process was killed for it.
    GroupOutOfMemory,
    /// The processor reports a hardware error.
    MachineCheck,
    /// The processor reports a hardware error that it cannot go on from.
    MachineCheckFatal,
    /// Memory errors, corrected.
    MemoryCorrected,
    /// A memory error that could not be corrected.
    MemoryUncorrected,
    /// Errors of PCI Express, corrected.
    PcieCorrected,
    /// An error of PCI Express that was not corrected.
    PcieUncorrected,
    /// An error of PCI Express that took the link down.
    PcieFatal,
    /// A disk does not answer.
    DiskTimeout,
    /// A disk could not read or write.
    DiskError,
    /// A file system found itself damaged.
    FileSystemError,
    /// A file system was closed for writing.
    FileSystemReadOnly,
    /// A file server does not answer.
    ServerLost,
    /// A file server answers again.
    ServerBack,
    /// A process waits in the kernel for long.
    HungTask,
    /// A processor is stuck in the kernel.
    SoftLockup,
    /// A network port lost its link.
    LinkDown,
    /// A network port has its link again.
    LinkUp,
    /// Cable or module of a network port is faulty, gone or too hot.
    PortModule,
    /// A network adapter gets too little power.
    AdapterPower,
    /// A process crashed in a library for communication between GPUs.
    CommunicationCrash,
}
