// SPDX-License-Identifier: Apache-2.0
//! Everything that can be broken.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Capability;

/// What is broken. Where it takes no fields, write the name alone: `inject = "power-off"`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Injection {
    /// A signal to the training process of a rank. STOP is undone by CONT when it is healed.
    Signal {
        /// The signal.
        signal: SignalName,
    },
    /// The training process of a rank exits by itself.
    Exit {
        /// Its exit code.
        code: u8,
        /// What it writes to its standard error first.
        #[serde(default)]
        says: String,
    },
    /// An exception is raised in the main thread of a rank.
    Raise {
        /// Its message.
        message: String,
    },
    /// A rank reads from address 0.
    Segfault,
    /// The main thread of a rank sleeps for ever, in Python.
    Hang,
    /// The main thread of a rank runs in a circle for ever.
    Spin,
    /// A thread of a rank keeps Python's global lock for ever.
    HoldLock,
    /// A rank takes longer for each step from now on.
    Slow {
        /// Seconds more.
        seconds: f64,
    },
    /// A rank gets less CPU time, by cgroup.
    CpuLimit {
        /// Percent of one core.
        percent: u32,
    },
    /// A rank wants more memory than its cgroup may have, and is killed by the kernel.
    OutOfMemory,
    /// A rank can open no more files.
    NoFiles,
    /// The rank that saves the next checkpoint is killed while it does.
    DieInSave {
        /// The moment.
        moment: SaveMoment,
    },
    /// A rank starts a process that outlives it.
    LeaveBehind {
        /// How that gets away.
        how: LeftBehind,
    },
    /// A rank is frozen so that not even SIGKILL reaches it, by the freezer of cgroup v1.
    Freeze,
    /// A signal to the agent of a node. STOP is undone by CONT when it is healed.
    Agent {
        /// The signal.
        signal: SignalName,
    },
    /// A signal to the keeper of a node: the process that was started as `steadfast run`.
    Keeper {
        /// The signal.
        signal: SignalName,
    },
    /// A signal to keeper and agent of a node at once.
    Supervisor {
        /// The signal.
        signal: SignalName,
    },
    /// A node loses its power: its cable is pulled, and all its processes are killed.
    PowerOff,
    /// The same, and the node is started again when it is healed, with another boot id.
    Reboot,
    /// All processes of a node are stopped, and go on when it is healed.
    PauseNode,
    /// A command of `steadfast` for the job, such as `restart`, from a node.
    Command {
        /// Its words, such as `["restart"]`.
        words: Vec<String>,
    },
    /// Packets of a node are dropped.
    Cut {
        /// Which ones.
        #[serde(default)]
        direction: Direction,
        /// Only those from and to the members of etcd.
        #[serde(default)]
        only_etcd: bool,
        /// Only those from and to the other nodes.
        #[serde(default)]
        only_nodes: bool,
        /// Whether connections are refused (TCP reset) rather than left without an answer.
        #[serde(default)]
        reset: bool,
    },
    /// The cable of a node is pulled.
    LinkDown,
    /// A part of the packets that come to a node is dropped.
    Loss {
        /// How many of a hundred.
        percent: u32,
    },
    /// A node sends more slowly.
    Rate {
        /// Kilobits in a second.
        kilobits: u32,
    },
    /// What a node sends is delayed.
    Delay {
        /// Milliseconds.
        milliseconds: u32,
    },
    /// Random bytes are sent to every TCP port on which a node's supervisor listens.
    Garbage {
        /// Connections to each.
        #[serde(default = "few")]
        connections: u32,
    },
    /// A signal to members of etcd. Those that are killed are started again when it is healed, those that are stopped go on.
    Etcd {
        /// The signal.
        signal: SignalName,
        /// Which ones.
        members: EtcdMembers,
    },
    /// A member of etcd loses its data, and joins again.
    EtcdWipe,
    /// The database of etcd is full. Healed, it is emptied.
    EtcdFull,
    /// etcd forgets all old revisions, as a lagging watch hates it.
    EtcdCompact,
    /// Somebody revokes the lease of a node.
    LeaseRevoked,
    /// A file system is full.
    DiskFull {
        /// What lies on it.
        place: Place,
    },
    /// A file system can hold no more files.
    InodesFull {
        /// What lies on it.
        place: Place,
    },
    /// A file system can only be read.
    ReadOnly {
        /// What lies on it.
        place: Place,
    },
    /// A file system answers no write: whoever tries sleeps uninterruptibly.
    FsFreeze {
        /// What lies on it.
        place: Place,
    },
    /// Calls of one kind fail on a file system, with EIO.
    DiskError {
        /// What lies on it.
        place: Place,
        /// Which calls.
        call: DiskCall,
    },
    /// A file system takes only the first half of what is written at once, as it may.
    ShortWrites {
        /// What lies on it.
        place: Place,
    },
    /// Each call that writes to a file system or flushes it takes longer.
    SlowDisk {
        /// What lies on it.
        place: Place,
        /// By so many milliseconds.
        milliseconds: u32,
    },
    /// The newest checkpoint is damaged.
    DamageCheckpoint {
        /// How.
        how: Damage,
    },
    /// The driver reports an XID for a GPU of a node.
    Xid {
        /// Its number.
        code: u32,
        /// Which GPU of the node.
        #[serde(default)]
        gpu: u32,
        /// Where it is seen.
        via: GpuVia,
    },
    /// A line in a node's kernel log.
    KernelLog {
        /// The line, without its stamp.
        line: String,
    },
    /// A field of a GPU changes, as the fake NVML library shows it (docs/reference/fake-nvml.md).
    Gpu {
        /// Which GPU of the node.
        #[serde(default)]
        gpu: u32,
        /// The fields and their values, such as `{ lost = true }`.
        set: BTreeMap<String, serde_json::Value>,
    },
    /// A call of the NVML library does not return until it is healed.
    NvmlHang {
        /// The call, such as `nvmlDeviceGetTemperature`.
        call: String,
        /// Which GPU of the node.
        #[serde(default)]
        gpu: u32,
    },
}

/// A signal, without `SIG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum SignalName {
    Kill,
    Term,
    Int,
    Stop,
    Segv,
    Abrt,
    Bus,
    Usr1,
    Usr2,
    Quit,
}

/// A moment in the writing of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SaveMoment {
    /// The data were written, and not yet made durable.
    BeforeFsync,
    /// The file has its temporary name still.
    BeforeRename,
    /// The file has its name, and nobody has been told.
    AfterRename,
}

/// How a process gets away from the one that started it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LeftBehind {
    /// In a session of its own.
    Setsid,
    /// In a session of its own, and its parent has ended.
    DoubleFork,
}

/// Which packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Direction {
    /// All.
    #[default]
    Both,
    /// Those that come.
    Incoming,
    /// Those that leave.
    Outgoing,
}

/// Which members of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EtcdMembers {
    /// The one that leads.
    Leader,
    /// One that does not lead.
    Follower,
    /// More than half of them.
    Majority,
    /// All.
    All,
}

/// What lies on a file system.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Place {
    /// The checkpoints.
    Checkpoints,
    /// The logs and the journals of all nodes.
    Logs,
}

/// A kind of call that can fail on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DiskCall {
    /// To read.
    Read,
    /// To write.
    Write,
    /// To make durable what was written.
    Fsync,
}

/// How a checkpoint is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Damage {
    /// Its second half is missing.
    Truncate,
    /// It is empty.
    Empty,
    /// A bit in its middle is the other way round.
    FlipBit,
    /// A part in its middle is zeros.
    Zeros,
    /// It is gone.
    Delete,
    /// It is the one before under its name.
    Stale,
}

/// Where an XID is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GpuVia {
    /// In the kernel log.
    KernelLog,
    /// In an event of NVML.
    Nvml,
}

fn few() -> u32 {
    20
}

impl Injection {
    /// Its name in scenario files.
    pub(crate) fn name(&self) -> String {
        // What a file calls it is the one key, or the text, that it is written as.
        match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(fields)) => {
                fields.keys().next().cloned().unwrap_or_default()
            }
            Ok(serde_json::Value::String(name)) => name,
            _ => "fault".to_owned(),
        }
    }

    /// What the machine must offer.
    pub(crate) fn needs(&self) -> Vec<Capability> {
        match self {
            Self::Cut { .. } | Self::Loss { .. } => {
                vec![Capability::Namespaces, Capability::PacketFilter]
            }
            Self::LinkDown => vec![Capability::Namespaces],
            Self::Rate { .. } => vec![Capability::Namespaces, Capability::RateLimit],
            Self::Delay { .. } => vec![Capability::Namespaces, Capability::NetworkEmulator],
            Self::OutOfMemory => vec![Capability::MemoryLimit],
            Self::CpuLimit { .. } => vec![Capability::CpuLimit],
            Self::Freeze => vec![Capability::Freezer],
            Self::DiskFull { .. } | Self::InodesFull { .. } | Self::ReadOnly { .. } => {
                vec![Capability::MemoryFileSystem]
            }
            Self::FsFreeze { .. } => vec![Capability::LoopFileSystem],
            Self::DiskError { .. } | Self::ShortWrites { .. } | Self::SlowDisk { .. } => {
                vec![Capability::UserFileSystem]
            }
            Self::Gpu { .. } | Self::NvmlHang { .. } => vec![Capability::FakeNvml],
            Self::Xid {
                via: GpuVia::Nvml, ..
            } => vec![Capability::FakeNvml],
            Self::Etcd { .. }
            | Self::EtcdWipe
            | Self::EtcdFull
            | Self::EtcdCompact
            | Self::LeaseRevoked => vec![Capability::Etcd],
            _ => Vec::new(),
        }
    }

    /// Whether it hits one worker (rather than a node, or etcd).
    pub(crate) fn hits_a_worker(&self) -> bool {
        matches!(
            self,
            Self::Signal { .. }
                | Self::Exit { .. }
                | Self::Raise { .. }
                | Self::Segfault
                | Self::Hang
                | Self::Spin
                | Self::HoldLock
                | Self::Slow { .. }
                | Self::CpuLimit { .. }
                | Self::OutOfMemory
                | Self::NoFiles
                | Self::DieInSave { .. }
                | Self::LeaveBehind { .. }
                | Self::Freeze
        )
    }

    /// Whether it hits etcd or a file system, and no node or worker can be chosen.
    pub(crate) fn hits_no_node(&self) -> bool {
        matches!(
            self,
            Self::Etcd { .. }
                | Self::EtcdWipe
                | Self::EtcdFull
                | Self::EtcdCompact
                | Self::DiskFull { .. }
                | Self::InodesFull { .. }
                | Self::ReadOnly { .. }
                | Self::FsFreeze { .. }
                | Self::DiskError { .. }
                | Self::ShortWrites { .. }
                | Self::SlowDisk { .. }
                | Self::DamageCheckpoint { .. }
        )
    }

    /// The file system that it needs, where it needs one of its own.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Self::DiskFull { place }
            | Self::InodesFull { place }
            | Self::ReadOnly { place }
            | Self::FsFreeze { place }
            | Self::DiskError { place, .. }
            | Self::ShortWrites { place }
            | Self::SlowDisk { place, .. } => Some(*place),
            _ => None,
        }
    }
}
