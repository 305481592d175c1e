// SPDX-License-Identifier: Apache-2.0
//! What can be held against a rank, and what a person should look at then.

/// From the clearest to the vaguest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Stopped,
    Frozen,
    Dead,
    Traced,
    /// Nothing is heard of its node.
    Unheard,
    Storage,
    Data,
    Waiting,
    /// Another of its threads keeps the interpreter's lock.
    Locked,
    Spinning,
    /// It waits, but not where the others are.
    Elsewhere,
    Working,
    /// The communication library says that something is wrong with it.
    Reported,
    /// It has made fewer steps.
    Behind,
}

impl Kind {
    /// What a person should look at next.
    pub(super) fn advice(self) -> &'static str {
        match self {
            Self::Stopped => {
                "find out who stopped it: a scheduler that suspends jobs, a person, a debugger that left it behind"
            }
            Self::Frozen => {
                "find out who froze its cgroup: a scheduler or a container runtime does that"
            }
            Self::Dead => "look at its last lines of output and at the kernel log",
            Self::Traced => "end the debugger or let it go on",
            Self::Unheard => {
                "see whether the node is up and reaches the others; if it is cut off, its own supervisor stops its workers"
            }
            Self::Storage => {
                "look at the file system that its open files are on, and at the kernel log"
            }
            Self::Data => {
                "look at its data loader: the source of the data, the worker processes, their memory"
            }
            Self::Waiting => "look at its stacks in the evidence: what it waits for does not come",
            Self::Locked => {
                "look at its stacks in the evidence: a thread keeps the interpreter's lock (GIL) in a call of native code"
            }
            Self::Spinning => "look at its stacks in the evidence: a loop there does not end",
            Self::Elsewhere => {
                "compare its stack with that of the others: it takes another way through the program"
            }
            Self::Working => {
                "it may only be slow: look at the load of its node and at its share of the data"
            }
            Self::Reported => {
                "look at what its communication library says in the evidence, and at its GPU"
            }
            Self::Behind => "look at its stacks in the evidence",
        }
    }
}
