// SPDX-License-Identifier: Apache-2.0
//! The words of the catalogue: kind of number, cause, severity, action.

use std::fmt;

/// Which numbering a code belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Reported by the driver about a GPU.
    Xid,
    /// Reported by the driver about a switch between GPUs.
    Sxid,
}

/// Who is at fault as a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The program that used the GPU.
    Program,
    /// The GPU, its memory, the board, or the switch.
    Hardware,
    /// The driver, or the firmware that it loads.
    Driver,
    /// A connection: NVLink, PCI Express, or a network port, with its cable and both of its ends.
    Link,
    /// Too much heat.
    Thermal,
    /// Nobody can say.
    Unknown,
}

/// How bad it is for what runs on the GPU, from harmless to fatal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Nothing is lost.
    Info,
    /// Nobody has said how bad this one is; it is kept and shown, and decides nothing by itself.
    Unknown,
    /// Work goes on; somebody should look.
    Warning,
    /// A process is lost; the GPU goes on.
    Error,
    /// The GPU or its fabric cannot be used as it is.
    Fatal,
}

/// What is to be done, from the lightest to the heaviest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Nothing; it is only recorded.
    Ignore,
    /// Tell a person; nothing happens by itself.
    Report,
    /// It is the consequence of something else: do what that asks for.
    FollowCause,
    /// Have the cables, modules and seats of the connection looked at.
    CheckLink,
    /// Have the cooling looked at.
    CheckCooling,
    /// Bring driver or firmware up to date.
    UpdateDriver,
    /// Start the workers again on the same node.
    RestartInPlace,
    /// Put no new peer-to-peer work on the GPU and let the old end.
    DrainPeerToPeer,
    /// Repair the NVLink domain that spans nodes (IMEX).
    RecoverImex,
    /// Reset the GPU before it is used again.
    ResetGpu,
    /// Reset the GPUs and switches of the node together.
    ResetFabric,
    /// Restart the machine.
    RebootNode,
    /// Keep the node out until a person has looked at its hardware.
    ExcludeNode,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Xid, Self::Sxid];

    /// The name in JSON and in policy files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xid => "xid",
            Self::Sxid => "sxid",
        }
    }

    /// The name as people write it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Xid => "XID",
            Self::Sxid => "SXID",
        }
    }
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 6] = [
        Self::Program,
        Self::Hardware,
        Self::Driver,
        Self::Link,
        Self::Thermal,
        Self::Unknown,
    ];

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Hardware => "hardware",
            Self::Driver => "driver",
            Self::Link => "link",
            Self::Thermal => "thermal",
            Self::Unknown => "unknown",
        }
    }
}

impl Severity {
    /// Every severity, the lightest first.
    pub const ALL: [Self; 5] = [
        Self::Info,
        Self::Unknown,
        Self::Warning,
        Self::Error,
        Self::Fatal,
    ];

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Fatal => "fatal",
        }
    }
}

impl Action {
    /// Every action, the lightest first.
    pub const ALL: [Self; 13] = [
        Self::Ignore,
        Self::Report,
        Self::FollowCause,
        Self::CheckLink,
        Self::CheckCooling,
        Self::UpdateDriver,
        Self::RestartInPlace,
        Self::DrainPeerToPeer,
        Self::RecoverImex,
        Self::ResetGpu,
        Self::ResetFabric,
        Self::RebootNode,
        Self::ExcludeNode,
    ];

    /// The name in JSON and in policy files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ignore => "ignore",
            Self::Report => "report",
            Self::FollowCause => "follow-cause",
            Self::CheckLink => "check-link",
            Self::CheckCooling => "check-cooling",
            Self::UpdateDriver => "update-driver",
            Self::RestartInPlace => "restart-in-place",
            Self::DrainPeerToPeer => "drain-peer-to-peer",
            Self::RecoverImex => "recover-imex",
            Self::ResetGpu => "reset-gpu",
            Self::ResetFabric => "reset-fabric",
            Self::RebootNode => "reboot-node",
            Self::ExcludeNode => "exclude-node",
        }
    }

    /// What to do, as a sentence for a person, without a full stop.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Ignore => "Nothing is to be done",
            Self::Report => "Nothing happens by itself; look at it when it comes again",
            Self::FollowCause => "It follows from another fault: do what that one asks for",
            Self::CheckLink => "Look at cables, modules and seats of the connection",
            Self::CheckCooling => "Look at fans, air or water, and at the load of the room",
            Self::UpdateDriver => "Update the driver and the firmware",
            Self::RestartInPlace => "Start the workers again on the same node",
            Self::DrainPeerToPeer => {
                "Let peer-to-peer work with this GPU end, and start none; the job continues elsewhere"
            }
            Self::RecoverImex => "Repair the IMEX domain (NVLink between nodes) first",
            Self::ResetGpu => {
                "Continue the job without this GPU, and reset it (`nvidia-smi --gpu-reset`) before it is used again"
            }
            Self::ResetFabric => {
                "Continue the job without this node, and reset its GPUs and switches together"
            }
            Self::RebootNode => "Continue the job without this node, and restart the machine",
            Self::ExcludeNode => "Keep the node out, and have its hardware inspected",
        }
    }

    /// Whether the job cannot go on with this GPU as it is, so that it must leave it (or the node) at least for a while.
    pub fn leaves_node(self) -> bool {
        self >= Self::DrainPeerToPeer
    }
}

macro_rules! by_name {
    ($($term:ty),*) => {$(
        impl $term {
            /// The term of this name; absent if there is none.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|term| term.name() == name)
            }
        }

        impl fmt::Display for $term {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.name())
            }
        }
    )*};
}

by_name!(Kind, Cause, Severity, Action);
