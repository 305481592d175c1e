// SPDX-License-Identifier: Apache-2.0
//! What a check is given: its thresholds, the node, and what it remembers.

use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::gpus::{GpuAnswer, GpuSource, GpuView};
use crate::outcome::Outcome;
use crate::outside::{Ended, KernelClock, Work, in_time_for};
use crate::plan::Plan;
use crate::profile::Profile;
use crate::spec::{Number, Spec, Switch, Words};

/// The most that is read of one file.
const MOST_BYTES: u64 = 1 << 20;

/// What a check is given.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) spec: &'static Spec,
    pub(crate) plan: &'a Plan,
    pub(crate) gpus: &'a GpuSource,
    pub(crate) remembered: Option<&'a Value>,
    /// When the check must have ended.
    pub(crate) until: Instant,
}

/// Why a file was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    /// Whether there is no such file.
    pub(crate) absent: bool,
    /// In words.
    pub(crate) why: String,
}

impl From<Unread> for Outcome {
    fn from(unread: Unread) -> Self {
        Self::unknown(unread.why)
    }
}

impl Context<'_> {
    pub(crate) fn profile(&self) -> Profile {
        self.plan.profile
    }

    pub(crate) fn number(&self, number: &Number) -> Option<u64> {
        self.plan.settings.number(self.spec.name, number)
    }

    pub(crate) fn words(&self, words: &Words) -> Vec<String> {
        self.plan.settings.words(self.spec.name, words)
    }

    pub(crate) fn switch(&self, switch: &Switch) -> bool {
        self.plan.settings.switch(self.spec.name, switch)
    }

    /// A file below the root.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.plan.node.path(path)
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// Reads a file below the root.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Result<String, Unread> {
        let path = path.as_ref();
        let mut bytes = Vec::new();
        let read = std::fs::File::open(self.path(path))
            .and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
        match read {
            Ok(_) => Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
            Err(error) => Err(Unread {
                absent: matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
                why: format!("cannot read /{}: {error}", path.display()),
            }),
        }
    }

    /// Reads a file that holds one number.
    pub(crate) fn read_number(&self, path: impl AsRef<Path>) -> Result<u64, Unread> {
        let text = self.read(&path)?;
        text.trim().parse().map_err(|_| Unread {
            absent: false,
            why: format!(
                "/{} says `{}`, which is no number",
                path.as_ref().display(),
                text.chars().take(40).collect::<String>()
            ),
        })
    }

    /// Names in a directory below the root, in order; none when there is no such directory.
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
        names.sort();
        names
    }

    /// Since when the machine runs, not counting from any clock that somebody sets.
    pub(crate) fn since_boot(&self) -> Result<Duration, Unread> {
        let path = "proc/uptime";
        let text = self.read(path)?;
        let seconds = text.split_ascii_whitespace().next().unwrap_or_default();
        let seconds: Option<f64> = seconds.parse().ok();
        seconds
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .ok_or_else(|| Unread {
                absent: false,
                why: format!("/{path} holds no time"),
            })
    }

    /// Names this boot of the machine.
    pub(crate) fn boot(&self) -> Result<String, Unread> {
        self.read("proc/sys/kernel/random/boot_id")
    }

    /// What the last run of this check has left, if it can be read.
    pub(crate) fn remembered<Kept: DeserializeOwned>(&self) -> Option<Kept> {
        serde_json::from_value(self.remembered?.clone()).ok()
    }

    /// Whether anything can be remembered.
    pub(crate) fn has_memory(&self) -> bool {
        self.plan.node.state.is_some()
    }

    /// Lets another process do this work, until shortly before the check must have ended.
    pub(crate) fn run(&self, work: &Work) -> Ended {
        self.plan.node.outside.run(work, in_time_for(self.until))
    }

    pub(crate) fn kernel_clock(&self) -> Result<KernelClock, String> {
        self.plan.node.outside.kernel_clock()
    }

    /// What the driver says of the GPUs, when it has said all or its time is over.
    pub(crate) fn gpus(&self) -> Arc<GpuView> {
        self.gpus.wait(self.until)
    }

    /// Whether a GPU matters. One that has not said who it is does unless all that matter are known to be others.
    pub(crate) fn cares_for(&self, view: &GpuView, index: u32, gpu: &GpuAnswer) -> bool {
        let node = &self.plan.node;
        match (&gpu.identity, &node.gpus) {
            (Some(identity), _) => node.cares_for(identity),
            (None, None) => true,
            (None, Some(wanted)) => {
                wanted
                    .iter()
                    .any(|wanted| match wanted.trim().parse::<u32>() {
                        Ok(wanted) => index == wanted,
                        Err(_) => !view.has(wanted),
                    })
            }
        }
    }
}
