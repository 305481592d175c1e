// SPDX-License-Identifier: Apache-2.0
//! The recovery action of a GPU: what XID 154 and NVML's field of the same name say that it needs.

use super::terms::{Action, Severity};

/// What the driver says that a GPU needs. The number decides: the text beside it differs between drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecoveryAction {
    /// 0: nothing, or nothing any more.
    None,
    /// 1: a reset of the GPU.
    Reset,
    /// 2: a restart of the machine.
    Reboot,
    /// 3: an end of peer-to-peer work.
    DrainPeerToPeer,
    /// 4: a reset, as soon as what still runs has ended.
    DrainAndReset,
    /// 5: a repair of the NVLink domain.
    RecoverImex,
    /// 255, or a number that this version does not know.
    Unknown(u32),
}

impl RecoveryAction {
    /// By the driver's number.
    pub const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Reset,
            2 => Self::Reboot,
            3 => Self::DrainPeerToPeer,
            4 => Self::DrainAndReset,
            5 => Self::RecoverImex,
            other => Self::Unknown(other),
        }
    }

    /// The driver's number.
    pub const fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Reset => 1,
            Self::Reboot => 2,
            Self::DrainPeerToPeer => 3,
            Self::DrainAndReset => 4,
            Self::RecoverImex => 5,
            Self::Unknown(number) => number,
        }
    }

    /// What it asks for.
    pub const fn action(self) -> Action {
        match self {
            Self::None => Action::Ignore,
            Self::Reset | Self::DrainAndReset => Action::ResetGpu,
            Self::Reboot => Action::RebootNode,
            Self::DrainPeerToPeer => Action::DrainPeerToPeer,
            Self::RecoverImex => Action::RecoverImex,
            Self::Unknown(_) => Action::Report,
        }
    }

    /// How bad it is.
    pub const fn severity(self) -> Severity {
        match self {
            Self::None => Severity::Info,
            Self::Unknown(_) => Severity::Unknown,
            Self::DrainPeerToPeer => Severity::Warning,
            _ => Severity::Fatal,
        }
    }

    /// In words, without a full stop.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::None => "The GPU needs no recovery, or none any more",
            Self::Reset => "The GPU needs a reset before it can be used again",
            Self::Reboot => "The machine has to be restarted: a reset of the GPU is not enough",
            Self::DrainPeerToPeer => "Peer-to-peer work with this GPU has to end",
            Self::DrainAndReset => "What still runs on the GPU may end; then it needs a reset",
            Self::RecoverImex => "The NVLink domain between nodes (IMEX) needs repair first",
            Self::Unknown(_) => "The driver asks for something that this version does not know",
        }
    }
}
