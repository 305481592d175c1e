// SPDX-License-Identifier: Apache-2.0
//! Checkpoints, as members and leader speak of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Generation;

/// What a member can vouch for in its checkpoint directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CheckpointReport {
    /// Names the directory: members that see the same one give the same text. Empty while there is no checkpoint in it.
    pub directory: String,
    /// The newest whole ones, newest first; at most [`CheckpointReport::MOST`].
    pub whole: Vec<WholeCheckpoint>,
}

/// A checkpoint that was found whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WholeCheckpoint {
    /// The step at which it was made.
    pub step: u64,
    /// Name of the entry in the directory.
    pub name: String,
    /// The only world size that can load it, if that matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_for: Option<u32>,
}

/// Where the workers of a generation resume.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Resume {
    /// The checkpoint; absent when there is none that all can load.
    pub from: Option<ResumePoint>,
    /// Whether members keep parts in directories of their own, so that what is whole on one may be worth nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub apart: bool,
}

/// A checkpoint that workers resume from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumePoint {
    /// The step that they go on from.
    pub step: u64,
    /// Name of the entry in each member's directory.
    pub name: String,
}

/// How workers can be asked for a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaveMeans {
    /// They can be told at which step, so that all save at the same.
    AtStep,
    /// They save as soon as they can; agreeing on a step is their own business.
    AtOnce,
}

/// A checkpoint that the workers of the running generation are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveOrder {
    /// They save at the first step that is not below this one: all at the same. 0: at once.
    pub step: u64,
    /// Number of the [`crate::RequestKind::Checkpoint`] that it answers; 0 for none.
    #[serde(default)]
    pub number: u64,
    /// For how long it is waited for, in milliseconds.
    pub within_ms: u64,
    /// Whether the generation ends after it. Workers that have saved then make no further step, and their ending with code
    /// 0 does not mean that the training is finished.
    pub ends: bool,
    /// Why, in words.
    pub why: String,
}

/// What became of the last [`SaveOrder`] of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveOutcome {
    /// The step that was asked for.
    pub wanted: u64,
    /// See [`SaveOrder::number`].
    #[serde(default)]
    pub number: u64,
    /// The step of the checkpoint that was made; absent when none was, in time.
    pub made: Option<u64>,
    /// Why it was asked for, in words.
    pub why: String,
}

/// A checkpoint that all members have vouched for, under `checkpoints/<step>`. Written by the leader, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRecord {
    /// See [`crate::RECORD_VERSION`].
    pub version: u32,
    /// The step.
    pub step: u64,
    /// The generation that made it.
    pub generation: Generation,
    /// Number of workers that made it.
    pub world_size: u32,
}

impl CheckpointReport {
    /// How many are reported.
    pub const MOST: usize = 8;
}

impl SaveOrder {
    /// See [`SaveOrder::within_ms`].
    pub fn within(&self) -> Duration {
        Duration::from_millis(self.within_ms)
    }
}
