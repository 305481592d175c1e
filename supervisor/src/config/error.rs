// SPDX-License-Identifier: Apache-2.0
//! Everything that can be wrong with a configuration, and what to do about it.

use std::path::PathBuf;

use super::values::Given;
use crate::slurm::step::StepError;

/// Why a job cannot be started as it was asked for. Nothing has been started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// A value that its option does not take.
    #[error("{given}: {reason}")]
    Value { given: Given, reason: String },
    /// Two values that each make sense, but not together.
    #[error("{first} and {second} cannot both hold: {reason}")]
    Conflict {
        first: Given,
        second: Given,
        reason: &'static str,
    },
    /// More than one node, and nowhere for them to meet; the example is what to write instead.
    #[error("{given}: the nodes of a job need a place to meet, and --coord names none")]
    SeveralNodes { given: Given, example: String },
    /// A job on several nodes whose name would be another one on each.
    #[error(
        "{given}: --job is missing; nodes find each other by the job's name, and the one that is made up would differ on each node"
    )]
    NoSharedName { given: Given },
    /// A Slurm step on several nodes, and nowhere for them to meet.
    #[error(
        "this Slurm step has {nodes} nodes, which need a place to meet, and there is no `etcd` program in PATH to make one"
    )]
    NoEtcdProgram { nodes: u32 },
    /// A Slurm step that the job cannot take its nodes from.
    #[error("{0}")]
    SlurmStep(StepError),
    /// A key of a configuration file that is no option.
    #[error("{}:{line}: unknown key `{key}`", file.display())]
    UnknownKey {
        file: PathBuf,
        line: usize,
        key: String,
        nearest: Option<String>,
    },
    /// A value of a configuration file that is no value of an option at all.
    #[error("{}:{line}: `{key}` is {found}, not a single value or a list", file.display())]
    FileValue {
        file: PathBuf,
        line: usize,
        key: String,
        found: &'static str,
    },
    /// A configuration file that is not TOML.
    #[error("{}:{line}: not valid TOML: {reason}", file.display())]
    FileSyntax {
        file: PathBuf,
        line: usize,
        reason: String,
    },
    /// A configuration file that cannot be read.
    #[error("cannot read the configuration file {} ({given}): {reason}", file.display())]
    FileRead {
        file: PathBuf,
        given: String,
        reason: std::io::Error,
    },
    /// No command after the options.
    #[error("no command to run was given")]
    NoCommand,
    /// The program of the command is in none of the directories of PATH.
    #[error("command `{program}` was not found in PATH ({searched})")]
    CommandNotFound { program: String, searched: String },
    /// The program of the command is there and cannot be executed.
    #[error("command `{program}` cannot be run: {reason}")]
    CommandUnusable { program: String, reason: String },
    /// The training script is not there or cannot be read.
    #[error("training script {}: {reason}", script.display())]
    Script { script: PathBuf, reason: String },
    /// Both restart loops were armed explicitly.
    #[error(
        "{outer} and `{inner}` of {launcher} are both set: only one of the two may restart the workers"
    )]
    TwoRestartLoops {
        outer: Given,
        inner: String,
        launcher: String,
    },
    /// A command line of torchrun that torchrun would not take either.
    #[error("torchrun: {0}")]
    Torchrun(TorchrunError),
    /// A directory that is needed and cannot be used.
    #[error("{what}: {}: {reason}", path.display())]
    Directory {
        what: String,
        path: PathBuf,
        reason: String,
    },
    /// A path that cannot be handed to the agent or written to the journal.
    #[error("{what} {} is not valid UTF-8", path.display())]
    PathNotText { what: &'static str, path: PathBuf },
    /// The machine does not tell something that is needed.
    #[error("cannot read {what}: {reason}")]
    Host { what: &'static str, reason: String },
}

/// What is wrong with a command line of `steadfast torchrun`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TorchrunError {
    /// No such flag.
    #[error("unrecognized flag `{flag}`")]
    UnknownFlag {
        flag: String,
        nearest: Option<String>,
    },
    /// A shortened flag that stands for several.
    #[error("ambiguous flag `{flag}`: it could be {candidates}")]
    AmbiguousFlag { flag: String, candidates: String },
    /// A flag without its value.
    #[error("flag `{flag}` needs a value")]
    MissingValue { flag: String },
    /// A value for a flag that takes none.
    #[error("flag `{flag}` takes no value, but got `{value}`")]
    UnexpectedValue { flag: String, value: String },
    /// A flag or value that is not text.
    #[error("`{argument}` is not valid UTF-8")]
    NotText { argument: String },
    /// No script.
    #[error("no training script was given")]
    NoScript,
    /// A module cannot be run without Python.
    #[error("`--module` and `--no-python` cannot both be given: a module is run by Python")]
    ModuleWithoutPython,
    /// `--print-completion`.
    #[error("`--print-completion` is not taken here")]
    PrintCompletion,
}

impl ConfigError {
    /// What to do next, where the message alone does not say it.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKey {
                nearest: Some(nearest),
                ..
            } => Some(format!("did you mean `{nearest}`?")),
            Self::UnknownKey { nearest: None, .. } => {
                Some("`steadfast config --sample` prints every key with its meaning".to_owned())
            }
            Self::FileValue { .. } => {
                Some("keys stand at the top level, one a line: `max_restarts = 3`".to_owned())
            }
            Self::SeveralNodes { example, .. } => Some(format!(
                "add `--coord {example}` (or set STEADFAST_COORD), or `--coord managed --hosts A,B,C` to have the nodes run etcd themselves"
            )),
            Self::NoSharedName { .. } => {
                Some("add `--job NAME`, the same on every node, and another one for each job".to_owned())
            }
            Self::NoEtcdProgram { .. } => Some(
                "put `etcd` into PATH on every node, or name one that is there already: `--coord etcd://HOST:2379`; with `--nnodes 1` each node is a job of its own"
                    .to_owned(),
            ),
            Self::SlurmStep(error) => Some(error.hint()),
            Self::NoCommand => Some("steadfast run [OPTIONS] -- python train.py".to_owned()),
            Self::CommandNotFound { .. } => Some(
                "give its path, or add its directory to PATH before starting steadfast".to_owned(),
            ),
            Self::TwoRestartLoops { launcher, .. } => Some(format!(
                "leave the restarts to steadfast: take the option out of the {launcher} command line"
            )),
            Self::Torchrun(error) => error.hint(),
            _ => None,
        }
    }

    /// The message and the hint, as they go to standard error.
    pub(crate) fn render(&self) -> String {
        match self.hint() {
            Some(hint) => format!("error: {self}\n\nhint: {hint}\n"),
            None => format!("error: {self}\n"),
        }
    }
}

impl TorchrunError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownFlag { nearest: Some(nearest), .. } => Some(format!("did you mean `{nearest}`?")),
            Self::UnknownFlag { nearest: None, .. } => {
                Some("`steadfast torchrun --help` lists the flags; the script's own come after the script".to_owned())
            }
            Self::NoScript => Some("steadfast torchrun [FLAGS] train.py [ARGUMENTS]".to_owned()),
            Self::PrintCompletion => Some("use `steadfast completions SHELL`".to_owned()),
            _ => None,
        }
    }
}
