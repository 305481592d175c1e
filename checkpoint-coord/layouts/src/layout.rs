// SPDX-License-Identifier: Apache-2.0
//! The layouts that are known.

use std::fmt;
use std::str::FromStr;

/// How a framework lays out its checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// PyTorch distributed checkpoints: `.metadata` and `.distcp` files.
    Dcp,
    /// Single files of `torch.save`, or of safetensors.
    TorchSave,
    /// Megatron-LM: `iter_NNNNNNN` and a tracker file.
    Megatron,
    /// DeepSpeed: `global_stepN` and `latest`.
    DeepSpeed,
    /// The Trainer of Hugging Face: `checkpoint-N`.
    HuggingFace,
    /// Lightning: `.ckpt` files and directories.
    Lightning,
    /// Orbax, as MaxText and others use it.
    Orbax,
    /// NeMo 2: directories with `weights` and `context`.
    Nemo,
    /// What a rule of the user's says.
    Rule,
}

impl Layout {
    /// All but [`Layout::Rule`], in the order in which an entry of a directory is compared with them: those with the most
    /// telling names first.
    pub const KNOWN: [Layout; 8] = [
        Layout::Megatron,
        Layout::DeepSpeed,
        Layout::HuggingFace,
        Layout::Nemo,
        Layout::Orbax,
        Layout::Lightning,
        Layout::Dcp,
        Layout::TorchSave,
    ];

    /// Its name in options, journals and manifests.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dcp => "dcp",
            Self::TorchSave => "torch",
            Self::Megatron => "megatron",
            Self::DeepSpeed => "deepspeed",
            Self::HuggingFace => "huggingface",
            Self::Lightning => "lightning",
            Self::Orbax => "orbax",
            Self::Nemo => "nemo",
            Self::Rule => "rule",
        }
    }

    /// Whether files beside a checkpoint say something about it.
    pub(crate) fn has_marks_beside(self) -> bool {
        matches!(self, Self::Lightning | Self::Nemo)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no layout's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no layout of this name is known")]
pub struct UnknownLayout;

impl FromStr for Layout {
    type Err = UnknownLayout;

    fn from_str(text: &str) -> Result<Self, UnknownLayout> {
        let found = Self::KNOWN.into_iter().find(|layout| layout.name() == text);
        found.ok_or(UnknownLayout)
    }
}
