// SPDX-License-Identifier: Apache-2.0
//! What was seen of a rank when the training had stalled.

use serde::{Deserialize, Serialize};

use super::allowance::Activity;
use crate::{LocalRank, NodeName, Rank};

/// What was seen of a rank, in plain words of its kernel and its interpreter. It travels between nodes as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankSigns {
    /// Where it runs.
    pub node: NodeName,
    /// Which rank.
    pub rank: Rank,
    /// Its place on the node.
    pub local_rank: LocalRank,
    /// The process that trains.
    pub pid: u32,
    /// The last step that it has made.
    pub step: Option<u64>,
    /// What it says that it is busy with.
    pub activity: Option<Activity>,
    /// How its main thread is.
    pub kernel: KernelState,
    /// The kernel function in which it sleeps.
    pub wchan: Option<String>,
    /// What it is doing, by its stack or by the system call that it is in.
    pub doing: Doing,
    /// Functions on the stack of its main thread, innermost first; empty when there is no stack.
    pub stack: Vec<String>,
    /// Whether stack, system call and state were the same at each look.
    pub still: bool,
    /// The share of the time for which it was on a processor; 1 is one processor.
    pub cpu: f64,
    /// Whether its main thread asks for the interpreter's lock all the time and does not get it.
    #[serde(default)]
    pub wants_lock: bool,
    /// To whom it has sent what is not acknowledged although the kernel has tried again and again, in words.
    #[serde(default)]
    pub unheard_by: Option<String>,
    /// What the communication library says is wrong with it.
    #[serde(default)]
    pub reported: Option<String>,
}

/// How a thread is, as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelState {
    /// On a processor, or waiting for one.
    Running,
    /// Waiting for something, and can be interrupted.
    Sleeping,
    /// Waiting uninterruptibly, as for a disk.
    Uninterruptible,
    /// Stopped by a signal.
    Stopped,
    /// Held by a debugger.
    Traced,
    /// Dead, though not reaped.
    Dead,
    /// In a cgroup that is frozen.
    Frozen,
    /// Nothing is heard of its node.
    Unheard,
    /// It could not be seen.
    Unknown,
}

/// What a rank is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// In a collective operation, or looking for the others.
    Collective,
    /// Waiting for something from the network that cannot be told closer.
    Network,
    /// Waiting for its data.
    Data,
    /// Reading or writing a file.
    Storage,
    /// Sleeping for a set time.
    Pause,
    /// Computing, or spinning.
    Computing,
    /// Waiting for another thread or process of its own.
    Waiting,
    /// It cannot be told.
    Unknown,
}
