// SPDX-License-Identifier: Apache-2.0
//! What a machine must offer for a fault to be possible.

use std::fmt;

/// Something that not every machine offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Capability {
    /// Python 3, for the workers.
    Python,
    /// etcd and etcdctl.
    Etcd,
    /// Root, and the tools for network, mount and host-name namespaces.
    Namespaces,
    /// nftables, to drop packets.
    PacketFilter,
    /// A token bucket filter, to slow a network down.
    RateLimit,
    /// The network emulator of the kernel, to delay packets.
    NetworkEmulator,
    /// A cgroup in which memory can be limited.
    MemoryLimit,
    /// A cgroup in which CPU time can be limited.
    CpuLimit,
    /// The freezer of cgroup v1, which not even SIGKILL gets through.
    Freezer,
    /// File systems in memory can be mounted.
    MemoryFileSystem,
    /// Loop devices can be formatted and mounted, and their file systems frozen.
    LoopFileSystem,
    /// File systems that a program answers for can be mounted (FUSE).
    UserFileSystem,
    /// The fake NVML library beside this program.
    FakeNvml,
}

impl Capability {
    /// All of them.
    pub(crate) const ALL: [Self; 13] = [
        Self::Python,
        Self::Etcd,
        Self::Namespaces,
        Self::PacketFilter,
        Self::RateLimit,
        Self::NetworkEmulator,
        Self::MemoryLimit,
        Self::CpuLimit,
        Self::Freezer,
        Self::MemoryFileSystem,
        Self::LoopFileSystem,
        Self::UserFileSystem,
        Self::FakeNvml,
    ];

    /// What is done on a machine without it.
    pub(crate) fn fallback(self) -> &'static str {
        match self {
            Self::Python => "none: the workers of the default job are a Python program",
            Self::Etcd => "none: only jobs on one node can be run",
            Self::Namespaces => "nodes are processes on the loopback interface",
            Self::PacketFilter | Self::RateLimit | Self::NetworkEmulator => {
                "none: scenarios that need it are skipped"
            }
            Self::MemoryLimit => "none: scenarios with a lack of memory are skipped",
            Self::CpuLimit => "`slow` makes steps longer without it",
            Self::Freezer => "`signal` with STOP pauses, though SIGKILL gets through to it",
            Self::MemoryFileSystem | Self::LoopFileSystem => {
                "none: scenarios with full or frozen disks are skipped"
            }
            Self::UserFileSystem => "none: scenarios with disks that fail or are slow are skipped",
            Self::FakeNvml => "the kernel log tells of XIDs without it",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Python => "python",
            Self::Etcd => "etcd",
            Self::Namespaces => "namespaces",
            Self::PacketFilter => "packet filter",
            Self::RateLimit => "rate limit",
            Self::NetworkEmulator => "network emulator",
            Self::MemoryLimit => "memory limit",
            Self::CpuLimit => "CPU limit",
            Self::Freezer => "freezer",
            Self::MemoryFileSystem => "memory file system",
            Self::LoopFileSystem => "loop file system",
            Self::UserFileSystem => "user file system",
            Self::FakeNvml => "fake NVML",
        })
    }
}
