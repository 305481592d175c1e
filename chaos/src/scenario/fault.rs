// SPDX-License-Identifier: Apache-2.0
//! A fault: what, whom, when, how often.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Injection, Target, Trigger};

/// A fault.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    /// A name for it, by which other faults and expectations speak of it.
    #[serde(default)]
    pub(crate) id: Option<String>,
    /// What is done.
    pub(crate) inject: Injection,
    /// Whom it hits.
    #[serde(default)]
    pub(crate) on: Target,
    /// When it is done.
    #[serde(default)]
    pub(crate) at: Trigger,
    /// Seconds that pass between that moment and the fault.
    #[serde(default)]
    pub(crate) delay_seconds: f64,
    /// Up to so many seconds more, drawn with the seed.
    #[serde(default)]
    pub(crate) jitter_seconds: f64,
    /// Seconds after which it is undone; it stays until the end without it.
    #[serde(default)]
    pub(crate) heal_after_seconds: Option<f64>,
    /// How often it is done. Each further time waits until the job has made a step again, and then as long as
    /// `delay_seconds` and `jitter_seconds` say.
    #[serde(default = "once")]
    pub(crate) times: u32,
    /// How probable it is that it is done at all, from 0 to 1.
    #[serde(default = "always")]
    pub(crate) probability: f64,
}

fn once() -> u32 {
    1
}

fn always() -> f64 {
    1.0
}

impl Fault {
    /// Its name, or what it does.
    pub(crate) fn name(&self, index: usize) -> String {
        match &self.id {
            Some(id) => id.clone(),
            None => format!("{}-{}", self.inject.name(), index + 1),
        }
    }
}
