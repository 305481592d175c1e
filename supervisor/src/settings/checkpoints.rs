// SPDX-License-Identifier: Apache-2.0
//! Where a job saves, and how its checkpoints are laid out.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast_checkpoints::{Layout, Rule, Selection};

/// What is done about the job's checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoints {
    /// The directory that they are in; absolute.
    pub(crate) directory: PathBuf,
    /// How they are laid out.
    pub(crate) layout: LayoutChoice,
    /// Whether a tracker that names another one than the newest whole one is corrected.
    pub(crate) fix_tracker: bool,
    /// How many of the newest are kept once a newer one is committed; `None`: all.
    pub(crate) keep: Option<NonZeroU32>,
    /// The signal upon which the program saves, if there is one.
    pub(crate) signal: Option<i32>,
    /// The file that asks the program for one, if it looks for a file; absolute.
    pub(crate) file: Option<PathBuf>,
}

impl Checkpoints {
    /// Whether the program can be asked without a word of its own.
    pub(crate) fn can_ask(&self) -> bool {
        self.signal.is_some() || self.file.is_some()
    }
}

/// After how long without a committed checkpoint the workers are asked for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CheckpointEvery {
    /// Never: the program alone decides.
    Never,
    /// After the time with which most is kept, as far as is known.
    Auto,
    /// After this time.
    Time(Duration),
}

/// How checkpoints are laid out, as it goes to the agent; checked when it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LayoutChoice {
    /// As they look.
    Auto,
    /// By the layout of this name.
    Named(String),
    /// By the rule with this text.
    Rule(String),
}

impl LayoutChoice {
    /// Reads `auto`, a layout's name, or the path of a rule, relative to `working_dir`.
    pub(crate) fn parse(text: &str, working_dir: &Path) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        if text.parse::<Layout>().is_ok() {
            return Ok(Self::Named(text.to_owned()));
        }
        if !text.contains(['/', '.']) {
            let names = Layout::KNOWN.map(Layout::name).join(", ");
            return Err(format!("must be auto, {names}, or the path of a rule"));
        }
        let rule = std::fs::read_to_string(working_dir.join(text))
            .map_err(|error| format!("cannot be read: {error}"))?;
        Rule::parse(&rule).map_err(|error| error.to_string())?;
        Ok(Self::Rule(rule))
    }

    /// What is looked for.
    pub(crate) fn selection(&self) -> Selection {
        let known = match self {
            Self::Auto => None,
            Self::Named(name) => name.parse().ok().map(Selection::Only),
            Self::Rule(text) => Rule::parse(text).ok().map(Selection::Rule),
        };
        known.unwrap_or_default()
    }
}
